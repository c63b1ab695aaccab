"""A queue on this layout, and the keys that its peers see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import pytest
import redis

from tests.support.internals import perform_call
from tests.support.layouts import pass_time
from windlass import Queue, Windlass
from windlass.storage.compat.processor import ProcessorLayout
from windlass.storage.port import Call

QUEUE = "ffmpeg"
T = TypeVar("T")
Look = Callable[[], dict[str, Any]]
Perform = Callable[[Call[Any]], Any]


@pytest.fixture
def queue(app: Windlass) -> Iterator[Queue]:
    """A queue on this layout, purged at the end."""
    queue = app.queue(QUEUE, layout="processor")
    yield queue
    queue.purge()


@pytest.fixture
def layout(app: Windlass, queue: Queue) -> ProcessorLayout:
    """The layout of that queue, for calls that only the service makes."""
    return cast(ProcessorLayout, app.layout(QUEUE, "processor"))


@pytest.fixture
def perform(app: Windlass) -> Perform:
    """Executes a call."""
    return lambda call: perform_call(app, call)


@pytest.fixture
def later(client: redis.Redis) -> Callable[[float], None]:
    """Let time pass, without waiting."""
    return lambda seconds: pass_time(client, "processor", QUEUE, seconds)


@pytest.fixture
def look(client: redis.Redis) -> Look:
    """All keys except Windlass's own ledger, with their values; the queue's name is left out."""
    return lambda: stored(client)


def stored(client: redis.Redis) -> dict[str, Any]:
    """Key → the fields of a hash, the entries of a list, the members of a set, the scores of a sorted set.

    What is a time of the last minute reads "now": as a score, and as a text.
    """
    server: Any = client  # its types do not know that all is bytes here
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": lambda key: {_text(name): _now_or(_text(value)) for name, value in server.hgetall(key).items()},
        b"list": lambda key: [_text(each) for each in server.lrange(key, 0, -1)],
        b"set": lambda key: {_text(each) for each in server.smembers(key)},
        b"zset": lambda key: {_text(m): _now_or(score) for m, score in server.zrange(key, 0, -1, withscores=True)},
    }
    keys = [key for key in server.keys("*") if not key.startswith(b"windlass:")]
    return {_text(key).removesuffix(f":{QUEUE}"): read[server.type(key)](key) for key in sorted(keys)}


def _text(value: bytes) -> str:
    return value.decode()


def _now_or(value: Any) -> Any:
    if isinstance(value, float):
        return "now" if abs(time.time() - value) < 60 else value
    if len(value) == 24 and value.endswith("Z"):
        then = time.mktime(time.strptime(value[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone + int(value[20:23]) / 1000
        return "now" if abs(time.time() - then) < 60 else value
    return value
