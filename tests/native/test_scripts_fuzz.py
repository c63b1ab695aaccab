"""Every script on a damaged queue: keys missing, of a foreign type, or with foreign things in them. All or nothing.

A script that ends with an error must have written nothing at all. A script that does its work on a damaged
queue must not make it worse: a deep clean brings every job back into exactly one place.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from tests.support.internals import perform_call
from windlass import Lease, State, Windlass
from windlass.errors import KeyConflict, WindlassError
from windlass.storage.native import NativeLayout, scripts
from windlass.storage.native.keys import NAMES, queue_key
from windlass.storage.port import Call, LeaseRequest, Parcel, ScheduleBook
from windlass.values.job import Change, Limits, NewJob
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    HandOver,
    Kept,
    NoFailureHandler,
    Outcome,
    Released,
    Retried,
    UnknownTask,
)
from windlass.values.schedule import StoredSchedule, new_schedule, write_schedule

ROUNDS = int(os.environ.get("WINDLASS_FUZZ_ROUNDS", "30"))
QUEUE = "fuzz"
IDS = [f"id{i}" for i in range(12)]
DUE = 3_600_000
SCHEDULE = write_schedule(new_schedule("s", QUEUE, b"tick", every="1h"))
FOREIGN: dict[str, Callable[[redis.Redis, str], Any]] = {
    "string": lambda client, key: client.set(key, b"foreign"),
    "list": lambda client, key: client.rpush(key, b"foreign"),
    "set": lambda client, key: client.sadd(key, b"foreign"),
    "hash": lambda client, key: client.hset(key, "foreign", b"x"),
    "zset": lambda client, key: client.zadd(key, {b"foreign": 1}),
    "stream": lambda client, key: client.xadd(key, {b"f": b"x"}),
}


def populate(app: Windlass) -> dict[str, Lease]:
    """A queue with jobs in every state."""
    queue = app.queue(QUEUE)
    for id in ("broken", "parked", "done", *IDS[:8]):
        queue.enqueue(b"data", id=id, max_stalls=2)
    broken, parked, done = queue.lease_many(3, 600)
    away = (HandOver("elsewhere", NewJob("c", b"child")),)
    settle(app, Broken(broken, "m"), UnknownTask(parked, "task"), Completed(done, hand_overs=away))
    leases = {lease.id: lease for lease in [*queue.lease_many(3, 600), *queue.lease_many(3, 600, holder="w")]}
    queue.enqueue(b"behind", id=IDS[0])
    queue.enqueue(b"behind", id=IDS[4], delay=900)
    queue.progress(leases[IDS[1]], 0.5)
    queue.fail(leases[IDS[2]], "dead now")
    queue.retry(leases[IDS[5]], delay=900, message="again")
    queue.enqueue(b"later", id=IDS[8], delay=900)
    put = book(NativeLayout(QUEUE)).put("s", None, SCHEDULE, DUE, keep_tick=False)
    perform_call(app, put)
    return leases


def book(layout: NativeLayout) -> ScheduleBook:
    assert layout.schedules is not None
    return layout.schedules


def settle(app: Windlass, *outcomes: Outcome) -> None:
    perform_call(app, NativeLayout(QUEUE).turn(outcomes))


def calls(layout: NativeLayout, leases: dict[str, Lease], chance: random.Random) -> dict[str, Call[Any]]:
    """One plausible call of every script."""
    lease = chance.choice(list(leases.values()))
    retried = Retried(lease, chance.choice([None, ("in", 900)]), "m")
    children = (HandOver(QUEUE, NewJob(IDS[10], b"child")), HandOver("elsewhere", NewJob("c", b"child")))
    outcomes: list[Outcome] = [
        Completed(lease),
        Completed(lease, hand_overs=children),
        Completed(lease, Kept(b"1", 5)),
        Released(lease),
        retried,
        Failed(lease, "m"),
        Failed(lease, "m", 5),
        Crashed(lease, "m", is_cause=True),
        Crashed(lease, "m", is_cause=False),
        Broken(lease, "m"),
        UnknownTask(lease, "task"),
        NoFailureHandler(lease),
    ]
    changes = [Change(), Change(when=("in", 5000))]
    some = [NewJob(id, b"new", chance.choice(changes)) for id in chance.sample(IDS, 3)]
    jobs = [(id, chance.choice(changes)) for id in chance.sample(IDS, 3)]
    row = StoredSchedule("s", SCHEDULE, DUE)
    return {
        "native/schedule": chance.choice(
            [
                book(layout).put("s", SCHEDULE, SCHEDULE, chance.choice([None, DUE]), keep_tick=True),
                book(layout).put("t", None, SCHEDULE, DUE, keep_tick=False),
                book(layout).delete("s"),
            ]
        ),
        "native/tick": book(layout).fire(row, DUE, 2 * DUE, jobs, b"tick", last_tick=DUE, missed=1, dropped=1),
        "native/schedules": chance.choice(
            [book(layout).named(["s"]), book(layout).page(None), book(layout).due([], None)]
        ),
        "native/enqueue": layout.enqueue(some),
        "native/turn": layout.turn(
            [chance.choice(outcomes)],
            LeaseRequest(want=chance.randint(0, 3), seconds=60, waiter=chance.choice([None, "me"])),
        ),
        "native/extend": layout.extend([lease], 60),
        "native/beat": layout.beat("w", 60, register=True, failure_handler=chance.choice([None, Limits(100)])),
        "native/progress": layout.progress(lease, 0.75),
        "native/cancel": layout.cancel(chance.sample(IDS, 2), running=chance.random() < 0.5),
        "native/pause": layout.pause(chance.random() < 0.5),
        "native/purge": layout.purge(chance.choice([None, State.READY, State.SCHEDULED, State.BLOCKED, State.DEAD])),
        "native/audit": layout.audit(chance.choice(layout.audit_parts), "0"),
        "native/unregister": layout.unregister_waiter("me"),
        "native/counts": layout.counts(),
        "native/probe": cast(Call[Any], layout.probe()),
        "native/get": layout.get(chance.choice(IDS)),
        "native/page": layout.page(chance.choice(list(State)), None, 10),
        "native/unpark": layout.unpark(["task", "other"]),
        "native/revive": layout.revive(chance.sample(IDS, 3)),
        "native/watch": layout.watch(chance.choice(IDS), 5),
        "native/outbox": layout.outbox(10, [1, 2]),
        "native/forward": layout.forward("other", [Parcel(chance.randint(1, 9), QUEUE, IDS[11], b"sent", b"")]),
        "native/remains": layout.remains(IDS[0]),
    }


def attempt(app: Windlass, call: Call[Any]) -> WindlassError | None:
    """Make a call; the error it ends with, if any."""
    try:
        perform_call(app, call)
    except WindlassError as error:
        return error
    return None


def dump(client: Any) -> dict[str, bytes | None]:
    return {name: client.dump(queue_key(QUEUE, name)) for name in NAMES}


def restore(client: Any, dumped: dict[str, bytes | None]) -> None:
    client.delete(*(queue_key(QUEUE, name) for name in NAMES))
    for name, value in dumped.items():
        if value is not None:
            client.restore(queue_key(QUEUE, name), 0, value)


def test_a_call_of_every_script_is_made() -> None:
    layout = NativeLayout(QUEUE)
    made = calls(layout, {"a": Lease(QUEUE, "a", b"", 1)}, random.Random(1))
    assert set(made) == {script.name for script in scripts.ALL}


@pytest.mark.parametrize("script", [script.name for script in scripts.ALL])
def test_a_foreign_type_stops_a_script_before_it_writes(client: Any, app: Windlass, script: str) -> None:
    """Every key in turn holds something of every foreign type."""
    layout = NativeLayout(QUEUE)
    chance = random.Random(script)
    leases = populate(app)
    healthy = dump(client)
    conflicts = 0
    for name in NAMES:
        for foreign in FOREIGN.values():
            restore(client, healthy)
            client.delete(queue_key(QUEUE, name))
            foreign(client, queue_key(QUEUE, name))
            before = dump(client)
            error = attempt(app, calls(layout, leases, chance)[script])
            conflicts += isinstance(error, KeyConflict)
            assert error is None or dump(client) == before, f"{script} wrote before it saw a foreign {name}: {error}"
    # One has a key of its own, the other is content with the first job that it sees.
    assert conflicts > 0 or script in ("native/remains", "native/probe")
    restore(client, healthy)
    tidy(client, app)


@pytest.mark.parametrize("script", [script.name for script in scripts.ALL])
def test_a_damaged_queue_is_not_made_worse_and_can_be_mended(client: Any, app: Windlass, script: str) -> None:
    """Random keys and fields are gone or garbled; the script writes nothing, or a deep clean mends the rest."""
    layout = NativeLayout(QUEUE)
    chance = random.Random(script)
    queue = app.queue(QUEUE)
    leases = populate(app)
    healthy = dump(client)
    for _ in range(ROUNDS):
        restore(client, healthy)
        for _ in range(chance.randint(1, 3)):
            damage(client, chance)
        before = dump(client)
        error = attempt(app, calls(layout, leases, chance)[script])
        assert error is None or dump(client) == before, f"{script} wrote half of it: {error}"
        queue.audit(repair=True)
        assert queue.audit(repair=True).repaired == 0
        check_conservation(client)
    restore(client, healthy)
    tidy(client, app)


def tidy(client: Any, app: Windlass) -> None:
    client.delete(queue_key(QUEUE, "schedules"), queue_key(QUEUE, "ticks"))
    app.queue(QUEUE).purge()


def damage(client: Any, chance: random.Random) -> None:
    name = chance.choice([name for name in NAMES if name != "state"])
    key = queue_key(QUEUE, name)
    kind = client.type(key)
    if chance.random() < 0.4:
        client.delete(key)
    elif kind == b"hash":
        field = chance.choice(client.hkeys(key))
        if chance.random() < 0.5 and name in ("meta", "leases", "progress", "last_errors"):
            client.hset(key, field, b"garbled")
        else:
            client.hdel(key, field)
    elif kind == b"zset":
        client.zrem(key, chance.choice(client.zrange(key, 0, -1)))


def check_conservation(client: Any) -> None:
    """Every job is in exactly one index, and every index entry is a job."""
    jobs = set(client.hkeys(queue_key(QUEUE, "data")))
    ready = client.zrange(queue_key(QUEUE, "ready"), 0, -1)
    scheduled = [member[8:] for member in client.zrange(queue_key(QUEUE, "scheduled"), 0, -1)]
    leased = client.hkeys(queue_key(QUEUE, "leases"))
    places = [*ready, *scheduled, *leased]
    assert len(places) == len(set(places)), "a job is in two places"
    assert set(places) == jobs
    held = [member.split(b"\0", 1)[1] for member in client.zrange(queue_key(QUEUE, "held"), 0, -1)]
    assert sorted(held) == sorted(leased)
