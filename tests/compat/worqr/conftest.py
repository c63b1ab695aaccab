"""A Worqr queue, the messages of its peers, and the server's contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.compat.worqr.peer import Peer
from tests.support.layouts import pass_time
from windlass import Queue, Windlass

NAME = "tubes"
Later = Callable[[float], None]
ClockView = Callable[[], list[tuple[str, bytes]]]


@pytest.fixture
def queue(app: Windlass) -> Iterator[Queue]:
    queue = app.queue(NAME, layout="worqr")
    yield queue
    queue.purge()


@pytest.fixture
def later(client: redis.Redis) -> Later:
    """Let time pass for the queue and all workers, without waiting."""
    return lambda seconds: pass_time(client, "worqr", NAME, seconds)


@pytest.fixture
def peer(client: redis.Redis) -> Iterator[Peer]:
    """A worker of the published package on the queue."""
    peer = Peer(client, "peer").start(NAME)
    yield peer
    peer.fail("peer")


@pytest.fixture
def heard(client: redis.Redis) -> Iterator[ClockView]:
    """Messages since the last call, on all channels."""
    plain: Any = client
    with plain.pubsub() as ear:
        ear.psubscribe("worqr_*", "windlass:cancel:*")
        assert ear.get_message(timeout=5)
        assert ear.get_message(timeout=5)

        def listen() -> list[tuple[str, bytes]]:
            client.publish("worqr_nothing", "")
            said: list[tuple[str, bytes]] = []
            while True:
                message: Any = ear.get_message(timeout=5)
                assert message is not None
                if message["channel"] == b"worqr_nothing":
                    return said
                said.append((message["channel"].decode(), message["data"]))

        yield listen


def entries(client: redis.Redis, key: str) -> list[bytes]:
    """The entries of a list, from its head."""
    plain: Any = client
    return list(plain.lrange(key, 0, -1))


def members(client: redis.Redis, key: str) -> set[str]:
    """The members of a set."""
    plain: Any = client
    return {member.decode() for member in plain.smembers(key)}


def contents(client: redis.Redis) -> dict[str, Any]:
    """Every key known to peers, with its value."""
    read: dict[str, Callable[[redis.Redis, str], Any]] = {
        "list": entries,
        "set": members,
        "string": lambda client, key: client.get(key),
    }
    plain: Any = client
    keys = sorted(key.decode() for key in plain.keys("worqr:*"))
    return {key: read[plain.type(key).decode()](client, key) for key in keys}


def worker_keys(name: str, queue: str = NAME) -> dict[str, Any]:
    """The keys of a worker that serves one queue."""
    return {
        "worqr:workers": {name},
        "worqr:expiringWorkers": {name},
        f"worqr:workerTimers:{name}": b"RUN",
        f"worqr:workingQueues:{name}": {queue},
    }
