"""The contract once more, each test either on the oldest server that is supported or on a cluster, by turns.

`make topologies` runs all of them on each kind of server.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import cast
from zlib import crc32

import pytest

import tests.contract
from tests.support.faces import Awaitable, Blocking
from tests.support.seats import ClusterSeat, cluster_seat
from tests.support.server import Server
from windlass import Queue


@pytest.fixture(scope="module")
def steady_cluster() -> Iterator[ClusterSeat]:
    """Not the shared one: what is known of a cluster in which nothing moves need not be asked before each test."""
    with cluster_seat() as seat:
        yield seat


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server | ClusterSeat:
    """What every fixture and test of the contract stands on, here another: by the test's name, so always the same."""
    elsewhere = "redis7" if crc32(request.node.name.encode()) % 2 else "steady_cluster"
    found: Server | ClusterSeat = request.getfixturevalue(elsewhere)
    return found


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
