"""The capability table decides which tests of the contract run on a layout, so the table itself is held here.

A capability that is declared and refused fails the contract. A capability that is silently taken out of the table would
only deselect tests: the table below and the count of tests would notice.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import tests.contract
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.port import Capability

# What each layout's document promises, apart from the table in the code. Change both on purpose.
PROMISED = {
    "worqr": "BYTES CANCEL CANCEL_RUNNING FRONT ORDER",
    "workqueue": "BYTES CANCEL IDS ORDER PIPELINE",
    "queasy": "CANCEL CLUSTER FAILURE_HANDLERS IDS LIMITS RUN_TIME SINGLETON UPDATE",
    "hworker": "BROKEN DEAD FRONT ORDER",
    "processor": "CANCEL FRONT IDS ORDER PRIORITY PROGRESS",
}

# Not asked for by a mark of the contract, with the place that proves them instead.
ELSEWHERE = {
    "BYTES": "tests/support/layouts.py wraps payloads where it is missing",
    "BROKEN": "tests/compat/hworker/test_texts.py",
    "HAND_OVER": "tests/native/test_hand_over.py",
    "SCHEDULES": "tests/native/schedules",
    "PIPELINE": "tests/native/test_inbox.py and tests/compat/workqueue/test_semantics.py",
    "CLUSTER": "tests/topology and tests/compat/queasy/test_cluster.py",
}


def test_each_layout_can_do_what_its_document_promises() -> None:
    assert {name: " ".join(sorted(each.name for each in can)) for name, can in CAPABILITIES.items()} == {
        "native": " ".join(sorted(each.name for each in Capability)),
        **PROMISED,
    }


@pytest.mark.parametrize("capability", [each.name for each in Capability if each.name not in ELSEWHERE])
def test_the_contract_asks_for_each_capability(capability: str) -> None:
    needed = set()
    for found in pkgutil.iter_modules(tests.contract.__path__):
        module = importlib.import_module(f"{tests.contract.__name__}.{found.name}")
        for test in [module, *vars(module).values()]:
            marks = getattr(test, "pytestmark", [])
            for mark in marks if isinstance(marks, list) else [marks]:
                needed |= set(mark.args if mark.name == "needs" else ())
    assert capability in needed
