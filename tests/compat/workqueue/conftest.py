"""A queue on this layout, and the keys that its peers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis
from redis_work_queue import KeyPrefix, WorkQueue  # type: ignore[import-untyped]

from tests.support.server import Server
from tests.support.waiting import FOREVER_S, LIMIT_S
from windlass import Queue, Windlass

PREFIX = "parcels"
QUEUE, PROCESSING, CLEANING = f"{PREFIX}:queue", f"{PREFIX}:processing", f"{PREFIX}:cleaning"
Look = Callable[[], dict[str, Any]]


@pytest.fixture
def queue(app: Windlass) -> Iterator[Queue]:
    """A queue on this layout, purged at the end."""
    queue = app.queue(PREFIX, layout="workqueue")
    yield queue
    queue.purge()


@pytest.fixture
def patient(server: Server, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """The same queue for one who waits for a message: it does not look by itself within the time of a test."""
    monkeypatch.setattr("windlass.queue.LEASE_WAIT_POLL_S", FOREVER_S)
    with Windlass(server.url, call_timeout=4 * LIMIT_S) as app:
        yield app.queue(queue.name, layout="workqueue")


@pytest.fixture
def look(client: redis.Redis) -> Look:
    """Stored keys below the prefix, key → value, without Windlass's own ledger."""
    return lambda: stored(client, PREFIX)


@pytest.fixture
def theirs() -> WorkQueue:
    """The published client on the same queue."""
    return WorkQueue(KeyPrefix(PREFIX))


def names(client: redis.Redis, pattern: str) -> list[str]:
    """The keys that match this pattern."""
    return sorted(key.decode() for key in cast(Any, client).keys(pattern))


def stored(client: redis.Redis, prefix: str) -> dict[str, Any]:
    """All keys below a prefix, without it, and their values: the bytes of a string, the entries of a list."""
    found: dict[str, Any] = {}
    for key in names(client, f"{prefix}:*"):
        held = client.lrange(key, 0, -1) if client.type(key) == b"list" else client.get(key)
        found[key.removeprefix(f"{prefix}:")] = held
    return found


def lease_keys(id: str) -> tuple[str, str]:
    """The lease keys of an item: that of the document, and that of the packages 0.1.x."""
    return f"{PREFIX}:lease:{id}", f"{PREFIX}:leased_by_session:{id}"


def somebody_waits(client: redis.Redis) -> bool:
    """Whether a client is blocked waiting for an item."""
    return int(client.info("clients")["blocked_clients"]) > 0


def add(client: redis.Redis, id: str, data: bytes = b"x") -> None:
    """Add an item as a peer that knows its id to be new: in one transaction, which may be the caller's."""
    with client.pipeline() as pipeline:
        pipeline.set(f"{PREFIX}:item:{id}", data)
        pipeline.lpush(QUEUE, id)
        pipeline.execute()
