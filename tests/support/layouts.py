"""Support for running the contract tests on foreign layouts, including the passing of time."""

from __future__ import annotations

import importlib
import json
import pkgutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from typing import Any, cast

import pytest
import redis
from msgspec import structs

import tests.contract
from tests.support.faces import Blocking
from tests.support.internals import use_layout
from windlass import Queue, Windlass
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.compat.base import ForeignLayout
from windlass.storage.layouts import make_layout
from windlass.storage.port import Capability
from windlass.values.job import NewJob

LAYOUTS = tuple(name for name in CAPABILITIES if name != "native")


def wrap_payloads(layout: ForeignLayout) -> ForeignLayout:
    """Let a JSON-only layout carry the arbitrary bytes that the contract tests use."""
    plain_encode, plain_decode = layout.encode, layout.decode

    def encode(job: NewJob) -> bytes:
        return plain_encode(structs.replace(job, data=json.dumps({"bytes": b64encode(job.data).decode()}).encode()))

    def decode(data: bytes) -> bytes:
        return b64decode(json.loads(plain_decode(data))["bytes"])

    layout.encode, layout.decode = encode, decode  # type: ignore[method-assign]
    return layout


def queue_on(app: Windlass, layout: str, name: str) -> Queue:
    """A queue on that layout that accepts arbitrary bytes."""
    made = cast(ForeignLayout, make_layout(layout, name))
    if Capability.BYTES not in made.can:
        wrap_payloads(made)
    use_layout(app, made)
    return app.queue(name, layout=layout)


def pass_time(client: redis.Redis, layout: str, queue: str, seconds: float) -> None:
    """Let time pass for a queue: shift all its stored times into the past."""
    ms = round(seconds * 1000)
    ledger = f"windlass:{{{queue}}}:{layout}"
    _shift(client, f"{ledger}:holders", -ms)
    if client.hexists(f"{ledger}:state", "swept"):
        client.hincrby(f"{ledger}:state", "swept", -ms)
    _PASSING[layout](client, queue, ms)


def _shift(client: redis.Redis, key: str, by: float) -> None:
    scores: list[Any] = cast(Any, client).zrange(key, 0, -1, withscores=True)
    for member, score in scores:
        client.zadd(key, {member: score + by if score >= 0 else score - by})


def _age(client: redis.Redis, pattern: str, ms: int) -> None:
    """Shorten the expiry of keys."""
    for key in client.scan_iter(pattern):
        left = client.pttl(key)
        if left > ms:
            client.pexpire(key, left - ms)
        elif left >= 0:
            client.delete(key)


def _pass_worqr(client: redis.Redis, queue: str, ms: int) -> None:
    _age(client, "worqr:workerTimers:*", ms)


def _pass_workqueue(client: redis.Redis, queue: str, ms: int) -> None:
    _age(client, f"{queue}:lease*", ms)  # its two keys for a lease


def _pass_queasy(client: redis.Redis, queue: str, ms: int) -> None:
    for part in ("", "-fail"):
        _shift(client, f"{{{queue}}}{part}:active", -ms)
        key = f"{{{queue}}}{part}:waiting"
        scores: list[Any] = cast(Any, client).zrange(key, 0, -1, withscores=True)
        for member, score in scores:  # a score below zero means blocked; far below, not a run time
            if -1e15 < score < -1 or score > 1:
                client.zadd(key, {member: max(1, score - ms) if score > 0 else min(-1, score + ms)})


def _pass_hworker(client: redis.Redis, queue: str, ms: int) -> None:
    key = f"hworker-progress-{queue}"
    for field, value in client.hgetall(key).items():
        begun = datetime.fromisoformat(json.loads(value).replace("Z", "+00:00")) - timedelta(milliseconds=ms)
        text = begun.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        client.hset(key, field, json.dumps(text))
        runs, note = f"windlass:{{{queue}}}:hworker:runs", f"@{sha1(cast(bytes, field)).hexdigest()}"
        if client.hget(runs, note) == value:  # Windlass's own copy marks the run as its own
            client.hset(runs, note, json.dumps(text))


def _pass_processor(client: redis.Redis, queue: str, ms: int) -> None:
    for name in ("jobs_dispatched", "jobs_processing", "workers_last_seen"):
        _shift(client, f"{name}:{queue}", -ms / 1000)


_PASSING: dict[str, Callable[[redis.Redis, str, int], None]] = {
    "worqr": _pass_worqr,
    "workqueue": _pass_workqueue,
    "queasy": _pass_queasy,
    "hworker": _pass_hworker,
    "processor": _pass_processor,
}


def take_over(module: dict[str, Any], layout: str) -> None:
    """Copy the contract tests and their fixtures into a module, to run on that layout."""
    for found in pkgutil.iter_modules(tests.contract.__path__):
        source = importlib.import_module(f"{tests.contract.__name__}.{found.name}")
        topic = found.name.removeprefix("test_")
        needs: Any = getattr(source, "pytestmark", lambda test: test)
        for name, thing in vars(source).items():
            if name.startswith("test_"):
                module[f"test_{topic}__{name.removeprefix('test_')}"] = needs(thing)
            elif type(thing).__name__ == "FixtureFunctionDefinition":
                module[name] = thing
    module |= {
        "raw_queue": _raw_queue(layout),
        "queue": _queue,
        "later": _later,
        "pytestmark": pytest.mark.layout(layout),
    }


def _raw_queue(layout: str) -> Any:
    @pytest.fixture
    def raw_queue(app: Windlass, request: pytest.FixtureRequest) -> Iterator[Queue]:
        """A queue on another layout, named after the test."""
        name: Any = request.node.originalname or request.node.name
        queue = queue_on(app, layout, str(name)[:100])
        yield queue
        queue.purge()

    return raw_queue


@pytest.fixture
def _queue(raw_queue: Queue) -> Queue:
    """One face is enough here: the native contract tests compare both."""
    return cast(Queue, Blocking(raw_queue))


@pytest.fixture
def _later(client: redis.Redis, raw_queue: Queue) -> Callable[[float], None]:
    """Let time pass, without waiting."""
    return lambda seconds: pass_time(client, raw_queue.layout, raw_queue.name, seconds)
