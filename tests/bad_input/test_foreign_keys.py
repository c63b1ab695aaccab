"""Keys of a queue that somebody else has used for something else: each verb names it and changes nothing."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.contract.leasing import drain, take
from tests.support.bad_input import dump, restore
from tests.support.internals import layout_of, perform, perform_call, settle
from windlass import Lease, Limits, Queue, RawJob
from windlass.errors import KeyConflict
from windlass.storage.formats import VERSION
from windlass.storage.native.keys import NAMES, queue_key, result_key
from windlass.storage.port import Parcel
from windlass.values.job import NewJob
from windlass.values.outcome import Broken, Completed, Crashed, HandOver, NoFailureHandler, UnknownTask

_ALL = set(NAMES)
_TURN = _ALL - {"schedules"}
_ROW = {"state", "data", "meta", "progress", "last_errors"}
_ENQUEUE = {"state", "ready", "scheduled", "leases", "data", "meta", "blocked", "idle"}
_ENQUEUE_ID = _ENQUEUE | {"ended"}
_CANCEL = _ENQUEUE_ID - {"idle"} | {"last_errors", "watched"}

# Each verb, and the keys that it has to do with. With the others it does not care what they hold.
VERBS: dict[str, tuple[Callable[[Queue, Lease], Any], set[str]]] = {
    "enqueue": (lambda queue, _: queue.enqueue(b"new"), _ENQUEUE),
    "enqueue with options": (lambda queue, _: queue.enqueue(b"", priority=1, max_failures=1), _ENQUEUE),
    "enqueue later": (lambda queue, _: queue.enqueue(b"", delay=60), _ENQUEUE),
    "enqueue a ready id": (lambda queue, _: queue.enqueue(b"", id="ready", delay=60), _ENQUEUE_ID),
    "enqueue a scheduled id": (lambda queue, _: queue.enqueue(b"", id="late"), _ENQUEUE_ID),
    "enqueue a running id": (lambda queue, _: queue.enqueue(b"", id="running"), _ENQUEUE_ID),
    "enqueue_many": (lambda queue, _: queue.enqueue_many([b"", RawJob(b"", id="x", delay=60)]), _ENQUEUE_ID),
    "update": (lambda queue, _: queue.update("ready", data=b"new", max_stalls=1), _ENQUEUE),
    "lease": (lambda queue, _: queue.lease(), _TURN),
    "lease_many": (lambda queue, _: queue.lease_many(5, holder="worker-2"), _TURN),
    "lease and wait": (lambda queue, _: queue.lease_many(5, wait=0.01), _TURN),
    "complete": (lambda queue, lease: queue.complete(lease), _TURN),
    "complete_many": (lambda queue, lease: queue.complete_many([lease]), _TURN),
    "release": (lambda queue, lease: queue.release(lease), _TURN),
    "retry": (lambda queue, lease: queue.retry(lease, message="no"), _TURN),
    "fail": (lambda queue, lease: queue.fail(lease, "no"), _TURN),
    "extend": (lambda queue, lease: queue.extend(lease, 60), {"state", "leases", "held", "holders"}),
    "progress": (lambda queue, lease: queue.progress(lease, 0.9), {"state", "leases", "progress", "watched"}),
    "beat": (lambda queue, _: queue.beat("worker-2", register=True), {"state", "holders", "parked"}),
    "cancel": (lambda queue, _: queue.cancel("ready"), _CANCEL),
    "cancel running": (lambda queue, _: queue.cancel("running", running=True), _CANCEL),
    "pause": (lambda queue, _: queue.pause(), {"state", "ready", "idle"}),
    "resume": (lambda queue, _: queue.resume(), {"state", "ready", "idle"}),
    "purge": (lambda queue, _: queue.purge(), _ALL),
    "purge ready": (lambda queue, _: queue.purge("ready"), _ALL),
    "clean": (lambda queue, _: queue.clean(), _TURN),
    "clean deep": (lambda queue, _: queue.audit(repair=True), _TURN),
    "counts": (
        lambda queue, _: queue.counts(),
        {"state", "ready", "scheduled", "leases", "blocked", "dead", "broken", "inbox", "holders", "parked", "outbox"}
        | {"schedules"},
    ),
    "get": (lambda queue, _: queue.get("running"), _ROW | {"leases"}),
    "jobs ready": (lambda queue, _: queue.jobs("ready"), _ROW | {"ready"}),
    "jobs scheduled": (lambda queue, _: queue.jobs("scheduled"), _ROW | {"scheduled"}),
    "jobs leased": (lambda queue, _: queue.jobs("running"), _ROW | {"leases", "held"}),
    "jobs blocked": (lambda queue, _: queue.jobs("blocked"), {"state", "blocked", "held"}),
    "jobs dead": (lambda queue, _: queue.jobs("dead"), {"state", "dead", "dead_records"}),
    "jobs broken": (lambda queue, _: queue.jobs("broken"), {"state", "broken", "dead_records"}),
    "revive": (
        lambda queue, _: queue.revive(["dead", "broken"]),
        {"state", "ready", "scheduled", "dead", "broken", "dead_records", "data", "meta", "idle", "ended"},
    ),
    "crash": (lambda queue, lease: settle(queue, Crashed(lease, "no", True)), _TURN),
    "crash of suspects": (lambda queue, lease: settle(queue, Crashed(lease, "no", False)), _TURN),
    "break": (lambda queue, lease: settle(queue, Broken(lease, "no")), _TURN),
    "put aside": (lambda queue, lease: settle(queue, UnknownTask(lease, "task")), _TURN),
    "leave uncaught": (lambda queue, lease: settle(queue, NoFailureHandler(lease)), _TURN),
    "hand over": (lambda queue, lease: settle(queue, Completed(lease, hand_overs=_children(queue))), _TURN),
    "beat and catch": (
        lambda queue, _: perform(queue, lambda layout: layout.beat("w", 30, register=True, failure_handler=Limits())),
        {"state", "holders", "parked"},
    ),
    "unpark": (
        lambda queue, _: perform(queue, lambda layout: layout.unpark(["task"])),
        {"state", "ready", "scheduled", "parked", "idle", "meta", "last_errors"},
    ),
    "watch": (lambda queue, _: perform(queue, lambda layout: layout.watch("ready", 60)), {"state", "watched"}),
    "outbox": (lambda queue, _: perform(queue, lambda layout: layout.outbox(10, [1])), {"state", "outbox"}),
    "forward": (
        lambda queue, _: perform(queue, lambda layout: layout.forward("other", [Parcel(1, "here", "x", b"", b"")])),
        _ENQUEUE_ID,
    ),
}


def _children(queue: Queue) -> tuple[HandOver, ...]:
    return (HandOver(queue.name, NewJob("child", b"")), HandOver("other", NewJob("child", b"")))


def occupy(queue: Queue, client: redis.Redis) -> Lease:
    """A queue with something in each of its keys; the lease on the job that runs."""
    queue.enqueue(b"", id="dead", priority=0)
    assert queue.fail(take(queue), "dead")
    queue.enqueue(b"", id="running", priority=0, max_failures=3)
    assert queue.retry(take(queue), delay=0, message="once")
    lease = take(queue, seconds=600)
    assert queue.progress(lease, 0.5)
    queue.enqueue(b"", id="running")
    queue.enqueue(b"", id="broken", priority=0)
    assert settle(queue, Broken(take(queue), "not JSON")) == (True,)
    queue.enqueue(b"", id="aside", priority=0)
    assert settle(queue, UnknownTask(take(queue), "task")) == (True,)
    queue.enqueue(b"", id="parent", priority=0)
    assert settle(queue, Completed(take(queue), hand_overs=(HandOver("other", NewJob("child", b"")),))) == (True,)
    assert perform(queue, lambda layout: layout.watch("running", 600))
    schedules = layout_of(queue).schedules
    assert schedules is not None
    assert perform_call(queue, schedules.put("nightly", None, b"{}", 2**42, keep_tick=False))
    queue.enqueue(b"", id="ready")
    queue.enqueue(b"", id="late", delay=600)
    client.lpush(queue_key(queue.name, "inbox"), "pushed")
    client.zadd(queue_key(queue.name, "idle"), {"gone": 2**45})
    assert len(dump(client)) == len(NAMES)
    return lease


FOREIGN: dict[str, Callable[[redis.Redis, str], Any]] = {
    "string": lambda client, key: client.set(key, "somebody else's"),
    "set": lambda client, key: client.sadd(key, "somebody", "else's"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("verb", VERBS)
def test_a_key_of_ours_that_holds_another_type(raw_queue: Queue, client: redis.Redis, verb: str, kind: str) -> None:
    queue = raw_queue
    lease = occupy(queue, client)
    whole = dump(client)
    run, concerned = VERBS[verb]
    noticed: set[str] = set()
    for name in NAMES:
        key = queue_key(queue.name, name)
        client.delete(key)
        FOREIGN[kind](client, key)
        before = dump(client)
        try:
            run(queue, lease)
        except KeyConflict as conflict:
            noticed.add(name)
            problem = str(conflict)
            unchanged = dump(client) == before
        else:
            problem = ""
            unchanged = client.dump(key) == before[key.encode()]
        restore(client, whole)
        assert unchanged, f"{verb} changed something though {name} is not ours"
        if problem:
            assert repr(queue.name) in problem
            assert "rename or delete that key" in problem
    restore(client, {})
    assert noticed == concerned


def test_the_message_says_which_key_it_is(raw_queue: Queue, client: redis.Redis) -> None:
    queue = raw_queue
    occupy(queue, client)
    whole = dump(client)
    messages: dict[str, str] = {}
    for name in NAMES:
        key = queue_key(queue.name, name)
        client.delete(key)
        client.set(key, "somebody else's")
        with pytest.raises(KeyConflict) as caught:
            queue.purge()
        messages[key] = str(caught.value)
        restore(client, whole)
    restore(client, {})
    assert [key for key, message in messages.items() if key not in message] == []


def test_a_result_that_is_not_ours(raw_queue: Queue, client: redis.Redis) -> None:
    key = result_key(raw_queue.name, "a")
    client.lpush(key, "somebody else's")
    with pytest.raises(KeyConflict, match=re.escape(key)):
        perform(raw_queue, lambda layout: layout.remains("a"))
    client.delete(key)


def test_other_keys_of_the_server_are_left_alone(queue: Queue, client: redis.Redis) -> None:
    client.set("windlass", "mine")
    client.set(f"windlass:{queue.name}:ready", "mine")
    queue.enqueue(b"", id="a")
    assert drain(queue) == ["a"]
    assert queue.purge() == 0
    assert client.get("windlass") == client.get(f"windlass:{queue.name}:ready") == b"mine"
    client.delete("windlass", f"windlass:{queue.name}:ready")


def test_a_queue_that_was_written_by_a_stranger_is_still_read(queue: Queue, client: redis.Redis) -> None:
    """Records of the right type and the wrong shape: no crash, and the payload is safe."""
    queue.enqueue(b"data", id="a")
    client.hset(queue_key(queue.name, "meta"), "a", struct.pack(">H", 7))
    job = queue.get("a")
    assert job is not None
    assert (job.data, job.failures) == (b"data", 0)
    assert take(queue).data == b"data"


@pytest.mark.parametrize("fields", [{"format": "4", "seq": "7"}, {"core": b"\x05" + bytes(49)}, {"core": b"\x06"}])
def test_a_queue_of_another_version_is_refused_and_left_as_it_is(
    raw_queue: Queue, client: redis.Redis, fields: dict[Any, Any]
) -> None:
    key = queue_key(raw_queue.name, "state")
    client.hset(key, mapping=fields)
    before = dump(client)
    for verb in (lambda: raw_queue.enqueue(b""), raw_queue.lease, raw_queue.counts, raw_queue.pause):
        with pytest.raises(KeyConflict, match=r"was written by another version.*use one version of Windlass"):
            verb()
    assert dump(client) == before
    client.delete(key)


def test_earlier_versions_find_that_a_queue_is_not_theirs(raw_queue: Queue, client: redis.Redis) -> None:
    raw_queue.enqueue(b"")
    assert client.hget(queue_key(raw_queue.name, "state"), "format") == str(VERSION).encode()
    raw_queue.purge()
    assert client.hget(queue_key(raw_queue.name, "state"), "format") == str(VERSION).encode()
