"""No name leads to another's keys, and no script is made of what somebody sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import redis

from tests.security.watching import KeyWatch
from tests.support.bad_input import dump
from tests.support.internals import layout_of, perform, perform_call, settle
from tests.support.layouts import queue_on
from tests.support.proxy import FORWARD, Fault, FaultProxy
from tests.support.server import Server
from windlass import Queue, RawJob, State, Windlass, errors
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.compat.base.scripts import script as foreign_script
from windlass.storage.native import scripts as native_scripts
from windlass.storage.port import Capability, Script
from windlass.transport import presence
from windlass.values.job import NewJob
from windlass.values.outcome import Broken, Completed, Crashed, Failed, HandOver, Kept, UnknownTask
from windlass.values.worker_record import WorkerRecord

# -- names -----------------------------------------------------------------------------------------

SIGNS = (
    "{",
    "}",
    "{}",
    "{a}",
    ":",
    "\0",
    "\n",
    "\r",
    " ",
    "*",
    "?",
    "[",
    "]",
    "\\",
    "/",
    "'",
    '"',
    "%",
    "$",
    "é",
    "\x7f",
)
HOSTILE = [f"a{sign}b" for sign in SIGNS] + [f"{sign}ab" for sign in SIGNS] + [f"ab{sign}" for sign in SIGNS]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_no_name_with_a_meaning_elsewhere_is_taken(app: Windlass, client: redis.Redis, name: str) -> None:
    before = dump(client)
    queue = app.queue("plain")
    for verb in (
        lambda: app.queue(name),
        lambda: queue.lease(holder=name),
        lambda: queue.lease_many(2, holder=name),
        lambda: queue.beat(name, register=True),
        lambda: app.schedules.add(name, ("plain", b""), every="1h"),
        lambda: app.schedules.add("good", (name, b""), every="1h"),
        lambda: app.schedules.pause("plain", name),
        lambda: app.schedules.run_now("plain", name),
        lambda: app.schedules.delete("plain", name),
        lambda: app.schedules.get("plain", name),
        lambda: app.schedules.list(name),
        lambda: app.worker([name]),
        lambda: app.worker(["plain"], name=name),
        lambda: app.task(queue=name)(lambda: None),
        lambda: app.handler(name),
        lambda: app.job(name, "a"),
    ):
        with pytest.raises(errors.InvalidInput):
            verb()
    assert dump(client) == before


IDS = [f"a{sign}b" for sign in (*SIGNS, "}:ready", ":result:x", "\0".join("abc"))] + [
    "windlass:{other}:ready", "{other}", "}{other}", "*", "caller:x", "from:other", "failure-1", "../x", "x" * 511,
]  # fmt: skip


def test_any_id_stays_within_its_queue(server: Server, app: Windlass, client: redis.Redis) -> None:
    """An id is a member, a field or the end of a key, never more: whatever is in it, the slot is that of the queue."""
    queue, other = app.queue("tagged"), app.queue("other")
    other.enqueue(b"untouched", id="x")
    before = {key: value for key, value in dump(client).items() if key.startswith(b"windlass:{other}:")}
    with KeyWatch(server) as watch:
        watch.expect("tagged")
        for id in IDS:
            _live_as(queue, id)
        assert watch.finish() == []
        assert watch.commands > 30 * len(IDS)
    assert {key: value for key, value in dump(client).items() if key.startswith(b"windlass:{other}:")} == before
    for name in (queue, other):
        name.purge()
    for key in client.keys("windlass:{tagged}:result:*"):
        client.delete(key)


def _live_as(queue: Queue, id: str) -> None:
    """Every step that a job of this id may take."""
    queue.enqueue(b"first", id=id, delay=60)
    assert queue.update(id, data=b"second", delay=0)
    perform(queue, lambda layout: layout.watch(id, 1))
    first = queue.lease(holder="someone")
    assert first is not None
    assert (first.id, first.data) == (id, b"second")
    queue.progress(first, 0.5)
    queue.enqueue(b"third", id=id)
    child = HandOver("tagged", NewJob(f"{id}+", b"child"))
    assert settle(queue, Completed(first, Kept(b"1", 60_000), (child,))) == (True,)
    assert perform(queue, lambda layout: layout.remains(id)).result is not None
    (second, third) = queue.lease_many(2)
    assert settle(queue, UnknownTask(second, id), Broken(third, id)) == (True, True)
    assert perform(queue, lambda layout: layout.unpark([id])) == 1
    assert queue.revive([third.id]) == [True]
    for lease in queue.lease_many(2):
        assert settle(queue, Failed(lease, id, 0)) == (True,)
    assert queue.get(id) is not None or queue.get(f"{id}+") is not None
    assert {job.id for job in queue.all_jobs(State.DEAD)} <= {id, f"{id}+"}
    queue.purge()


def test_keys_that_a_stranger_planted_name_no_queue(app: Windlass, client: redis.Redis) -> None:
    tags = ("a*", "a:b", "", "a\nb", "{x}", ".workers", "\xff", "ok")
    planted = [f"windlass:{{{tag}}}:{name}" for tag in tags for name in ("state", "inbox")]
    for key in planted:
        client.set(key, "x")
    assert app.queues() == ["ok"]
    client.delete(*planted)


# -- scripts ---------------------------------------------------------------------------------------


def constant_scripts() -> dict[str, str]:
    """Every script that there is: hash → name. All come from files of the package, put together without any input."""
    found: list[Script] = [each for each in vars(native_scripts).values() if isinstance(each, Script)]
    shared = {path.name.removesuffix(".lua") for path in (files("windlass.storage.compat.base") / "lua").iterdir()}
    for layout in CAPABILITIES:
        if layout != "native":
            own = {path.name.removesuffix(".lua") for path in files(f"windlass.storage.compat.{layout}").iterdir()}
            verbs = {verb for verb in shared | own if not verb.endswith(".py")} - {"ledger", layout, "__pycache__"}
            found += [foreign_script(layout, verb) for verb in sorted(verbs) if "." not in verb]
    return {each.sha: each.name for each in found}


class Listening:
    """What is asked of the server through a proxy: which scripts, by hash, and any text that is sent to be one."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.loaded: set[str] = set()
        self.texts: list[bytes] = []
        self._lock = threading.Lock()

    def __call__(self, request: list[bytes]) -> Fault:
        with self._lock:
            word = request[0].upper()
            if word in (b"EVALSHA", b"EVALSHA_RO"):
                self.ran.add(request[1].decode())
            elif word == b"SCRIPT" and request[1].upper() == b"LOAD":
                self.loaded.add(Script("", request[2].decode()).sha)
            elif word in (b"EVAL", b"EVAL_RO", b"FUNCTION", b"FCALL"):
                self.texts.append(b" ".join(request)[:200])
        return FORWARD


@pytest.fixture
def listening(server: Server) -> Iterator[tuple[Listening, FaultProxy]]:
    ear = Listening()
    with FaultProxy(server.address, faults=ear, unix=True) as proxy:
        yield ear, proxy


def cached(client: redis.Redis) -> int:
    return int(client.info("memory")["number_of_cached_scripts"])


def test_scripts_are_constant_whatever_the_jobs_are(
    listening: tuple[Listening, FaultProxy], client: redis.Redis
) -> None:
    """2,000 jobs of all kinds, on all layouts: no script but those in the package, and not one more in the cache."""
    ear, proxy = listening
    known = constant_scripts()
    with Windlass(proxy.url, retry_for=5) as app:
        queues = [
            app.queue("constant"),
            *(queue_on(app, name, "constant") for name in CAPABILITIES if name != "native"),
        ]
        for queue in queues:
            _all_kinds(app, queue, 0)  # every script has been used once
        before = cached(client)
        for number in range(1, 12):
            for queue in queues:
                _all_kinds(app, queue, number)
        _many(app.queue("constant"), 1000)
        assert cached(client) == before
        for queue in queues:
            queue.purge()
    assert ear.texts == [], "a script's text was sent to be run"
    assert {known.get(sha, sha) for sha in ear.ran} <= set(known.values())
    assert {known.get(sha, sha) for sha in ear.loaded} <= set(known.values())
    assert len(ear.ran) > 60, "so few scripts that most verbs cannot have been used"
    assert cached(client) <= len(known)


def _all_kinds(app: Windlass, queue: Queue, number: int) -> None:
    """About fifteen jobs that differ in all that can be said of one, and every end that they can have."""
    can = layout_of(queue).can
    payload = json.dumps({"number": number, "lua": f"return redis.call('FLUSHALL') -- {number}"}).encode()
    ids: list[dict[str, Any]] = [{}] * 15
    if Capability.IDS in can:
        ids = [{"id": f"job-{number}-{n}"} for n in range(15)]
    queue.enqueue_many(RawJob(payload + b" " * n, **options) for n, options in enumerate(ids))
    if Capability.PRIORITY in can:
        queue.enqueue(payload, priority=number % 10)
    if Capability.RUN_TIME in can:
        queue.enqueue(payload, delay=60 + number)
    if Capability.UPDATE in can:
        queue.update(f"job-{number}-1", data=payload)
    if Capability.CANCEL in can:
        queue.cancel(f"job-{number}-2")
    if Capability.PAUSE in can:
        queue.pause()
        queue.resume()
    queue.counts()
    for state in (State.READY, State.RUNNING):
        _unless_refused(lambda state=state: queue.jobs(state, limit=3))
    holder = f"holder-{number}"
    queue.beat(holder, 10, register=True)
    leases = queue.lease_many(20, holder=holder)
    assert len(leases) > 10
    first, second, third, fourth, fifth, *others = leases
    _unless_refused(lambda: queue.get(first.id))
    _unless_refused(lambda: queue.extend(first, 20))
    _unless_refused(lambda: queue.progress(first, number / 20))
    queue.release(second)
    queue.retry(third, message=f"again {number}")
    queue.fail(fourth, f"no {number}")
    settle(queue, Crashed(fifth, f"died {number}", True))
    queue.complete_many(others)
    queue.complete(first)
    if Capability.DEAD in can:
        _unless_refused(lambda: queue.revive([fourth.id]))
    if Capability.SCHEDULES in can:
        app.schedules.add(f"every-{number}", (queue.name, payload), every=f"{number + 1}h")
        app.schedules.run_now(queue.name, f"every-{number}")
        app.schedules.list(queue.name)
        app.schedules.delete(queue.name, f"every-{number}")
        perform_call(app, presence.beat(WorkerRecord(name=f"worker-{number}")))
        perform_call(app, presence.forget(f"worker-{number}"))
        app.workers()
    queue.clean()
    if number == 0:
        queue.audit(repair=True)
    queue.purge()


def _many(queue: Queue, count: int) -> None:
    queue.enqueue_many(RawJob(b"%d" % n, id=f"many-{n}") for n in range(count))
    while leases := queue.lease_many(200):
        queue.complete_many(leases)


def _unless_refused(verb: Any) -> None:
    try:
        verb()
    except errors.UnsupportedByLayout:
        pass
