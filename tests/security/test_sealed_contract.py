"""Parts of the contract once more with encrypted payloads: where jobs are changed, merged, caught, or leave results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.contract import test_failure_jobs, test_results, test_singleton, test_upsert
from tests.support.server import Server
from windlass import Queue, Windlass

TAKEN_OVER = (test_failure_jobs, test_results, test_singleton, test_upsert)


@pytest.fixture
def app(server: Server, client: redis.Redis) -> Iterator[Windlass]:
    """The app that all fixtures of the contract stand on, here with keys."""
    with Windlass(server.url, retry_for=5, encryption_keys={"k1": b"n" * 32}) as app:
        yield app


@pytest.fixture
def queue(raw_queue: Queue) -> Queue:
    """One face: that both do the same is proved where the contract is at home."""
    return raw_queue


@pytest.fixture
def same_face() -> object:
    """The face of every other queue."""
    return lambda other: other


def _take_over() -> None:
    for module in TAKEN_OVER:
        for name, thing in vars(module).items():
            if name.startswith("test_"):
                globals()[f"{module.__name__.rpartition('.')[2]}__{name.removeprefix('test_')}"] = thing
            elif type(thing).__name__ == "FixtureFunctionDefinition":
                globals()[name] = thing


_take_over()
