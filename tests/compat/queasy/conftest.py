"""A queue `emails` in this layout, a peer of the published kind on it, and time that passes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from tests.compat.queasy.peer import Peer
from tests.support.layouts import pass_time
from windlass import Queue, Windlass

NAME = "emails"
Look = Callable[[], dict[str, Any]]
Later = Callable[[float], None]


@pytest.fixture
def emails(app: Windlass) -> Iterator[Queue]:
    """The queue, purged at the end."""
    queue = app.queue(NAME, layout="queasy")
    yield queue
    queue.purge()


@pytest.fixture
def peer(client: redis.Redis) -> Peer:
    """A peer without Windlass."""
    return Peer(client, NAME)


@pytest.fixture
def later(client: redis.Redis) -> Later:
    """Let time pass, without waiting."""
    return lambda seconds: pass_time(client, "queasy", NAME, seconds)


@pytest.fixture
def look(client: redis.Redis) -> Look:
    """All keys of the queue, without its name, and their values."""

    def look() -> dict[str, Any]:
        found: dict[str, Any] = {}
        server = cast(Any, client)
        for key in sorted(server.keys(f"{{{NAME}}}*")):
            name = key.decode().removeprefix(f"{{{NAME}}}")
            if server.type(key) == b"zset":
                found[name] = {id.decode(): score for id, score in server.zrange(key, 0, -1, withscores=True)}
            else:
                found[name] = {field.decode(): value.decode() for field, value in server.hgetall(key).items()}
        return found

    return look
