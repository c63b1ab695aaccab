"""The whole contract once more: on the oldest server that is supported, and on a cluster."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import cast

import pytest

import tests.contract
from tests.support.faces import Awaitable, Blocking
from tests.support.server import Server
from tests.topology.conftest import ClusterSeat
from windlass import Queue


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Server | ClusterSeat:
    """What every fixture and test of the contract stands on, here another."""
    found = request.getfixturevalue(request.param)
    return ClusterSeat(found) if request.param == "cluster" else found


@pytest.fixture
def queue(raw_queue: Queue, server: Server | ClusterSeat) -> Iterator[Queue]:
    """One face on each: that both do the same is proved where the contract is at home."""
    face = Awaitable(raw_queue) if isinstance(server, ClusterSeat) else Blocking(raw_queue)
    yield cast(Queue, face)
    face.close()


def _take_over() -> None:
    """Makes the tests of the contract, with the fixtures beside them, tests of this module."""
    for found in pkgutil.iter_modules(tests.contract.__path__):
        module = importlib.import_module(f"{tests.contract.__name__}.{found.name}")
        topic = found.name.removeprefix("test_")
        for name, thing in vars(module).items():
            if name.startswith("test_"):
                globals()[f"test_{topic}__{name.removeprefix('test_')}"] = thing
            elif type(thing).__name__ == "FixtureFunctionDefinition":
                globals()[name] = thing


_take_over()
