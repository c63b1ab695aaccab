"""The contract once more, by a user who has only the rights of docs/acl/worker.acl: nothing more is ever needed.

By default those parts of it that use the most commands; WINDLASS_CONTRACT_TOPICS=all runs the whole, which takes half a
minute. `test_roles.py` has every verb for every role.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from typing import cast

import pytest

import tests.contract
from tests.security.roles import RoleSeat, breaches, guarded_server
from tests.support.faces import Blocking
from tests.support.server import Server
from windlass import Queue

TOPICS = os.environ.get("WINDLASS_CONTRACT_TOPICS", "outcomes recovery pause_purge_clean").split()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with guarded_server() as server:
        yield server


@pytest.fixture
def server(guarded: Server) -> Iterator[RoleSeat]:
    """What every fixture and test of the contract stands on; under it the check that the server noted no breach."""
    guarded.command("ACL", "LOG", "RESET")
    yield RoleSeat(guarded, "worker")
    assert breaches(guarded) == []


@pytest.fixture
def queue(raw_queue: Queue) -> Queue:
    """One face is enough: both send the same."""
    return cast(Queue, Blocking(raw_queue))


def _take_over() -> None:
    """Makes the tests of the contract, with the fixtures beside them, tests of this module."""
    for found in pkgutil.iter_modules(tests.contract.__path__):
        module = importlib.import_module(f"{tests.contract.__name__}.{found.name}")
        topic = found.name.removeprefix("test_")
        if TOPICS != ["all"] and found.name.startswith("test_") and topic not in TOPICS:
            continue
        for name, thing in vars(module).items():
            if name.startswith("test_"):
                globals()[f"test_{topic}__{name.removeprefix('test_')}"] = thing
            elif type(thing).__name__ == "FixtureFunctionDefinition":
                globals()[name] = thing


_take_over()
