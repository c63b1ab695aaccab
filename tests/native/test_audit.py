"""`queue.audit()` and `windlass audit`: whatever was done to a queue's keys is named, and repaired if asked for.

A look writes nothing. Each kind of damage is done with plain commands, as somebody with redis-cli would do it.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from click.testing import CliRunner, Result

from tests.support.internals import layout_of, perform_call, settle
from tests.support.layouts import LAYOUTS, queue_on
from tests.support.queue_clock import change_core
from tests.support.server import Server
from windlass import Audit, Lease, Limits, Queue, RawJob, Windlass
from windlass.cli import main
from windlass.errors import AccessDenied
from windlass.storage.native.keys import queue_key
from windlass.storage.port import Capability
from windlass.values.outcome import Broken

SEED = int(os.environ.get("WINDLASS_AUDIT_SEED", "1"))
EVERY_LAYOUT = ("native", *LAYOUTS)
ACL = Path(__file__).parents[2] / "docs" / "acl"
NAME = "audited"

Damage = Callable[["Keys"], object]


def everything(client: Any) -> dict[bytes, bytes]:
    """All keys, byte for byte."""
    return {key: client.dump(key) for key in client.keys("*")}


def writes(server: Server) -> str:
    """How many writes the server has ever counted."""
    return server.info("persistence")["rdb_changes_since_last_save"]


def kinds(audit: Audit) -> dict[str, Counter[str]]:
    """The problems, by part and kind."""
    return {part.part: Counter(example.kind for example in part.examples) for part in audit.damaged_parts}


def named(audit: Audit, part: str) -> list[tuple[str, str]]:
    """What is named in one part."""
    parts = [each for each in audit.damaged_parts if each.part == part]
    return [(each.kind, each.id) for damaged in parts for each in damaged.examples]


def look_twice(server: Server, client: redis.Redis, queue: Queue) -> Audit:
    """A look: it writes nothing, and sees the same again."""
    before, counted = everything(client), writes(server)
    found = queue.audit()
    assert queue.audit() == found
    assert everything(client) == before
    assert writes(server) == counted
    assert found.repaired == found.recovered == 0
    return found


# -- a native queue --------------------------------------------------------------------------------


class Keys:
    """The queue under test, its keys by name, and a client to do damage with."""

    def __init__(self, queue: Queue, client: redis.Redis) -> None:
        self.queue = queue
        self.client: Any = client

    def __getattr__(self, name: str) -> str:
        return queue_key(self.queue.name, name)

    def lease(self, id: str, holder: str | None = None) -> Lease:
        """A job of this id, leased."""
        self.queue.enqueue(b"", id=id, priority=0)
        (lease,) = self.queue.lease_many(1, 600, holder=holder)
        assert lease.id == id
        return lease


def lose_from_ready(keys: Keys) -> None:
    keys.queue.enqueue(b"", id="x")
    assert keys.client.zrem(keys.ready, "x")


def lose_from_scheduled(keys: Keys) -> None:
    keys.queue.enqueue(b"", id="x", delay=600)
    keys.client.delete(keys.scheduled)


def lose_lease(keys: Keys) -> None:
    keys.lease("x", "w")
    keys.client.hdel(keys.leases, "x")


def lose_held(keys: Keys) -> None:
    keys.lease("x", "w")
    keys.client.delete(keys.held)


def lose_holder(keys: Keys) -> None:
    keys.lease("x", "w")
    keys.client.zrem(keys.holders, "w")


def lose_data(keys: Keys) -> None:
    keys.lease("x", "w")
    keys.client.hdel(keys.data, "x")


def lose_record(keys: Keys) -> None:
    keys.queue.enqueue(b"", id="x", delay=600)
    keys.client.hdel(keys.meta, "x")


def lose_running_job(keys: Keys) -> None:
    keys.lease("x", "w")
    keys.queue.enqueue(b"", id="x")
    keys.client.delete(keys.data, keys.leases, keys.held)


def free_running_job(keys: Keys) -> None:
    lease = keys.lease("x", "w")
    keys.queue.enqueue(b"", id="x", update_data=False)
    blocked = keys.client.hget(keys.blocked, "x")
    keys.queue.purge()
    keys.queue.enqueue(b"", id=lease.id)
    keys.client.hset(keys.blocked, "x", blocked)


def lose_dead_record(keys: Keys) -> None:
    keys.queue.fail(keys.lease("x"))
    keys.client.hdel(keys.dead_records, "x")


def lose_dead(keys: Keys) -> None:
    keys.queue.fail(keys.lease("x"))
    keys.client.zrem(keys.dead, "x")


def swap_dead_and_broken(keys: Keys) -> None:
    keys.queue.fail(keys.lease("x"))
    keys.client.rename(keys.dead, keys.broken)


def mix_dead_and_broken(keys: Keys) -> None:
    settle(keys.queue, Broken(keys.lease("x"), "no JSON"))
    keys.client.zadd(keys.dead, {"x": 1})


def forget_sequence(keys: Keys) -> None:
    keys.queue.enqueue_many([b""] * 9)
    change_core(keys.client, keys.queue.name, seq=3)


DAMAGES: dict[str, tuple[Damage, dict[str, str]]] = {
    "ready loses": (lose_from_ready, {"data": "in no index"}),
    "scheduled loses": (lose_from_scheduled, {"data": "in no index"}),
    "leases loses": (lose_lease, {"data": "in no index", "held": "no lease"}),
    "held loses": (lose_held, {"leases": "no holder"}),
    "holders loses": (lose_holder, {"held": "holder unknown"}),
    "data loses": (lose_data, {"leases": "no job"}),
    "meta loses": (lose_record, {"scheduled": "no record"}),
    "the running job is lost": (lose_running_job, {"blocked": "no running job"}),
    "the running job waits": (free_running_job, {"blocked": "its job is not running"}),
    "dead_records loses": (lose_dead_record, {"dead": "no dead record"}),
    "dead loses": (lose_dead, {"dead_records": "neither dead nor broken"}),
    "dead is broken": (swap_dead_and_broken, {"broken": "it is dead"}),
    "broken is dead too": (mix_dead_and_broken, {"dead": "it is broken"}),
    "ready gets": (lambda k: k.client.zadd(k.ready, {"x": 1}), {"ready": "no job"}),
    "ready gets a leased one": (lambda k: (k.lease("x"), k.client.zadd(k.ready, {"x": 1})), {"ready": "running too"}),
    "scheduled gets": (
        lambda k: k.client.zadd(k.scheduled, {struct.pack(">Q", 1) + b"x": 2**45}),
        {"scheduled": "no job"},
    ),
    "held gets": (lambda k: k.client.zadd(k.held, {b"w\0x": 0}), {"held": "no lease"}),
    "meta gets": (lambda k: k.client.hset(k.meta, "x", "?"), {"meta": "no job"}),
    "last_errors gets": (lambda k: k.client.hset(k.last_errors, "x", "?"), {"last_errors": "no job"}),
    "progress gets": (lambda k: k.client.hset(k.progress, "x", "?"), {"progress": "no lease"}),
    "dead gets": (lambda k: k.client.zadd(k.dead, {"x": 1}), {"dead": "no dead record"}),
    "broken gets": (lambda k: k.client.zadd(k.broken, {"x": 1}), {"broken": "no dead record"}),
    "dead_records gets": (
        lambda k: k.client.hset(k.dead_records, "x", "?"),
        {"dead_records": "neither dead nor broken"},
    ),
    "ticks gets": (lambda k: k.client.zadd(k.ticks, {"x": 1}), {"ticks": "no schedule"}),
    "seq is put back": (forget_sequence, {"counters": "seq is behind"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named_and_mended(server: Server, client: redis.Redis, raw_queue: Queue, damage: str) -> None:
    raw_queue.enqueue_many([RawJob(b"", id="fine"), RawJob(b"", id="later", delay=600)])
    do, expected = DAMAGES[damage]
    do(Keys(raw_queue, client))
    found = look_twice(server, client, raw_queue)
    assert not found.ok
    for part, kind in expected.items():
        assert (kind, "11" if part == "counters" else "x") in named(found, part)
    repaired = raw_queue.audit(repair=True)
    assert repaired.repaired >= 1
    assert repaired.ok, "nothing of it is left"
    after = look_twice(server, client, raw_queue)
    assert after.ok
    assert after.damaged_parts == ()


def test_a_sound_queue_of_jobs_in_every_state_is_sound(
    server: Server, client: redis.Redis, queue: Queue, raw_queue: Queue
) -> None:
    keys = Keys(raw_queue, client)
    raw_queue.fail(keys.lease("dead"))
    settle(raw_queue, Broken(keys.lease("broken"), "no JSON"))
    raw_queue.progress(keys.lease("runs", "w"), 0.5)
    raw_queue.enqueue(b"", id="runs")
    raw_queue.retry(keys.lease("again"), delay=600, message="note")
    raw_queue.enqueue_many([RawJob(b"", id="plain"), RawJob(b"", id="own", max_failures=1), b"", b""])
    look_twice(server, client, raw_queue)
    assert queue.audit() == Audit(raw_queue.name, "native", jobs=9), (
        "6 jobs, one behind another, a dead and a broken one"
    )


def test_a_queue_that_nobody_uses_is_sound_and_stays_unused(client: redis.Redis, raw_queue: Queue) -> None:
    assert raw_queue.audit() == Audit(raw_queue.name, "native", jobs=0)
    assert client.keys("*") == []


def test_at_most_ten_of_a_part_are_named_and_all_are_counted(client: redis.Redis, raw_queue: Queue) -> None:
    raw_queue.enqueue(b"", id="fine")
    client.zadd(queue_key(raw_queue.name, "ready"), {f"ghost {n}": n for n in range(1000)})
    (ready, _) = raw_queue.audit().damaged_parts
    assert (ready.part, ready.problems, len(ready.examples)) == ("ready", 1000, 10)
    assert raw_queue.audit(repair=True).repaired == 1000


def test_numbers_that_differ_are_told_and_go_with_what_made_them_differ(client: redis.Redis, raw_queue: Queue) -> None:
    raw_queue.enqueue_many([RawJob(b"", id="a"), RawJob(b"", id="b")])
    client.zrem(queue_key(raw_queue.name, "ready"), "a")
    found = raw_queue.audit()
    assert named(found, "counters") == [("data and its indexes differ", "2 and 1")]
    assert (found.problems, found.repaired) == (2, 0)
    assert raw_queue.audit(repair=True).problems == 1, "repaired before they are compared"


def test_new_jobs_do_not_overtake_old_ones_after_the_sequence_was_mended(client: redis.Redis, raw_queue: Queue) -> None:
    old = [receipt.id for receipt in raw_queue.enqueue_many([b""] * 5)]
    change_core(client, raw_queue.name, seq=0)
    assert raw_queue.audit(repair=True).repaired == 1
    new = raw_queue.enqueue(b"").id
    assert [lease.id for lease in raw_queue.lease_many(9)] == [*old, new]


def test_a_repair_takes_back_what_the_unknown_held(client: redis.Redis, raw_queue: Queue) -> None:
    keys = Keys(raw_queue, client)
    keys.lease("x", "w")
    client.zrem(keys.holders, "w")
    assert raw_queue.audit(repair=True).recovered == 1
    assert [lease.id for lease in raw_queue.lease_many(2)] == ["x"]


def test_a_sweep_counts_jobs_and_not_entries_without_a_lease(client: redis.Redis, raw_queue: Queue) -> None:
    keys = Keys(raw_queue, client)
    keys.lease("x", "w")
    keys.lease("y", "w")
    client.hdel(queue_key(raw_queue.name, "leases"), "y")
    client.zadd(keys.holders, {"w": 1})
    assert raw_queue.clean().recovered == 1
    assert client.zcard(queue_key(raw_queue.name, "held")) == 0


@pytest.mark.parametrize("number", range(12))
def test_whatever_entries_are_lost_a_repair_leaves_a_sound_queue(
    server: Server, client: Any, app: Windlass, raw_queue: Queue, number: int
) -> None:
    """Random entries of random keys go, or come. What is named is repaired, and each job that has data is somewhere."""
    chance = random.Random(f"{SEED} {number}")
    populate(raw_queue)
    for _ in range(chance.randint(1, 6)):
        disturb(client, chance, f"windlass:{{{raw_queue.name}}}:")
    jobs = set(client.hkeys(queue_key(raw_queue.name, "data")))
    found = look_twice(server, client, raw_queue)
    raw_queue.audit(repair=True)
    assert look_twice(server, client, raw_queue).ok, kinds(found)
    assert jobs <= set(client.hkeys(queue_key(raw_queue.name, "data"))) | dead_and_broken(client, raw_queue)


def populate(queue: Queue) -> None:
    """Jobs in every state that the layout has."""
    can = layout_of(queue).can
    names = [f"job {n}" for n in range(12)]
    if Capability.IDS in can:
        queue.enqueue_many(RawJob(b"{}", id=name) for name in names)
    else:
        queue.enqueue_many([name.encode() for name in names])
    first, second, third, *_ = [*queue.lease_many(4, 600), *queue.lease_many(2, 600, holder="w")]
    queue.retry(second)
    queue.fail(third)
    if Capability.RUN_TIME in can:
        queue.enqueue(b"{}", id="late", delay=600)
    if Capability.SINGLETON in can:
        queue.enqueue(b"{}", id=first.id)
    if Capability.PROGRESS in can:
        queue.progress(first, 0.5)


def disturb(client: Any, chance: random.Random, beginning: str) -> None:
    """Some entry of some key goes or comes, as by a hand that knows not what it does."""
    names = sorted(key for key in client.keys("*") if key.startswith(beginning.encode()) and b":state" not in key)
    if not names:
        return
    key = chance.choice(names)
    kind = client.type(key).decode()
    ghost = chance.choice([b"ghost", b"ghost:w", b"w\0ghost", b"w\x007", struct.pack(">Q", 3) + b"ghost"])
    if chance.random() < 0.15:
        client.delete(key)
    elif kind == "hash":
        field = chance.choice(sorted(client.hkeys(key)))
        client.hdel(key, field) if chance.random() < 0.6 else client.hset(key, ghost, b"ghost")
    elif kind == "zset":
        member = chance.choice(client.zrange(key, 0, -1))
        client.zrem(key, member) if chance.random() < 0.6 else client.zadd(key, {ghost: 1})
    elif kind == "set":
        member = chance.choice(sorted(client.smembers(key)))
        client.srem(key, member) if chance.random() < 0.6 else client.sadd(key, ghost)
    elif kind == "list":
        entry = chance.choice(client.lrange(key, 0, -1))
        client.lrem(key, 1, entry) if chance.random() < 0.6 else client.lpush(key, chance.choice([entry, ghost]))


def dead_and_broken(client: Any, queue: Queue) -> set[bytes]:
    return set(client.hkeys(queue_key(queue.name, "dead_records")))


# -- the other layouts -----------------------------------------------------------------------------


@pytest.fixture(params=EVERY_LAYOUT)
def any_queue(app: Windlass, client: redis.Redis, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue of each layout that takes any payload."""
    queue = app.queue(NAME) if request.param == "native" else queue_on(app, request.param, NAME)
    yield queue
    queue.purge()


def test_a_look_at_any_layout_writes_nothing_and_finds_nothing_in_a_sound_queue(
    server: Server, client: redis.Redis, any_queue: Queue
) -> None:
    populate(any_queue)
    found = look_twice(server, client, any_queue)
    assert found.damaged_parts == ()
    counts = any_queue.counts()
    assert found.jobs == counts.waiting + counts.running + counts.dead + counts.broken


def test_a_look_beside_live_workers_finds_no_problem(app: Windlass, any_queue: Queue) -> None:
    ids = Capability.IDS in layout_of(any_queue).can
    any_queue.enqueue_many(RawJob(b"{}", id=f"{n}") if ids else b"%d" % n for n in range(600))

    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(lambda: [any_queue.audit() for _ in range(3)]) for _ in range(2)]
        done = sum(pool.map(lambda _: work(any_queue), range(2)))
        found = [audit for look in looks for audit in look.result()]
    assert {audit.damaged_parts for audit in found} == {()}
    assert done == 600


def work(queue: Queue) -> int:
    """Take, give back and finish; until all is done."""
    done = 0
    while leases := queue.lease_many(10, 60):
        if len(leases) > 1:
            queue.release(leases.pop())
        done += sum(queue.complete_many(leases))
    return done


FOREIGN_DAMAGES: dict[str, tuple[str, Callable[[Any, Queue], object], str, str]] = {
    "worqr: a process that is not there": (
        "worqr",
        lambda client, _: client.sadd(f"worqr:workingProcesses:{NAME}", f"{NAME}_ghost"),
        "listed",
        "no process",
    ),
    "worqr: a process that is not listed": (
        "worqr",
        lambda client, queue: (leased(queue), client.delete(f"worqr:workingProcesses:{NAME}")),
        "processes",
        "not listed",
    ),
    "worqr: a run that cannot be cancelled": (
        "worqr",
        lambda client, queue: (leased(queue), client.delete(f"windlass:{{{NAME}}}:worqr:tokens")),
        "runs",
        "not in the index",
    ),
    "workqueue: an item in no list": (
        "workqueue",
        lambda client, _: client.set(f"{NAME}:item:x", "{}"),
        "items",
        "in no list",
    ),
    "workqueue: an id that is no item": (
        "workqueue",
        lambda client, _: client.lpush(f"{NAME}:queue", "x"),
        "queue",
        "no item",
    ),
    "workqueue: an id twice": (
        "workqueue",
        lambda client, queue: (queue.enqueue(b"", id="x"), client.lpush(f"{NAME}:queue", "x")),
        "queue",
        "twice",
    ),
    "workqueue: an id that is worked on": (
        "workqueue",
        lambda client, queue: client.lpush(f"{NAME}:queue", leased(queue).id),
        "queue",
        "running too",
    ),
    "workqueue: work on no item": (
        "workqueue",
        lambda client, _: client.lpush(f"{NAME}:processing", "x"),
        "processing",
        "no item",
    ),
    "queasy: a job in no index": (
        "queasy",
        lambda client, queue: (queue.enqueue(b"", id="x"), client.zrem(f"{{{NAME}}}:waiting", "x")),
        "jobs",
        "in no index",
    ),
    "queasy: a job blocked by nothing": (
        "queasy",
        lambda client, queue: (queue.enqueue(b"", id="x"), client.zadd(f"{{{NAME}}}:waiting", {"x": -1})),
        "jobs",
        "blocked by nothing",
    ),
    "queasy: a running job of nobody": (
        "queasy",
        lambda client, queue: (leased(queue), client.delete(f"{{{NAME}}}:active")),
        "jobs",
        "no worker",
    ),
    "queasy: an entry with no job": (
        "queasy",
        lambda client, _: client.zadd(f"{{{NAME}}}:waiting", {"x": 5}),
        "waiting",
        "no job",
    ),
    "queasy: a running job that waits too": (
        "queasy",
        lambda client, queue: _wait_too(client, queue),
        "waiting",
        "running too",
    ),
    "queasy: a worker with no job": (
        "queasy",
        lambda client, _: client.zadd(f"{{{NAME}}}:active", {"x:w": 2**42}),
        "active",
        "no job",
    ),
    "queasy: a failure with no job": (
        "queasy",
        lambda client, _: client.zadd(f"{{{NAME}}}-fail:waiting", {"x": 5}),
        "fail_waiting",
        "no job",
    ),
    "queasy: a failure handled by no job": (
        "queasy",
        lambda client, _: client.zadd(f"{{{NAME}}}-fail:active", {"x:w": 2**42}),
        "fail_active",
        "no job",
    ),
    "processor: a job in no list": (
        "processor",
        lambda client, queue: (queue.enqueue(b"", id="x"), client.delete(f"jobs_queued:{NAME}")),
        "jobs",
        "in no list",
    ),
    "processor: an uuid that is no job": (
        "processor",
        lambda client, _: client.lpush(f"jobs_queued_7:{NAME}", "x"),
        "queued",
        "no job",
    ),
    "processor: an uuid that somebody has": (
        "processor",
        lambda client, queue: client.lpush(f"jobs_queued:{NAME}", leased(queue).id),
        "queued",
        "running too",
    ),
    "processor: a dispatched one that is no job": (
        "processor",
        lambda client, _: client.zadd(f"jobs_dispatched:{NAME}", {"x": 2**40}),
        "dispatched",
        "no job",
    ),
    "processor: a processed one that is no job": (
        "processor",
        lambda client, queue: client.delete(leased(queue).id),
        "processing",
        "no job",
    ),
    "processor: no progress": (
        "processor",
        lambda client, queue: (leased(queue), client.delete(f"jobs_progress:{NAME}")),
        "processing",
        "no progress",
    ),
    "processor: progress of nothing": (
        "processor",
        lambda client, _: client.zadd(f"jobs_progress:{NAME}", {"x": 0}),
        "progress",
        "not processed",
    ),
    "processor: finished and gone": (
        "processor",
        lambda client, queue: _finish_and_delete(client, queue),
        "finished",
        "no job",
    ),
    "processor: a counter": (
        "processor",
        lambda client, queue: (leased(queue, "w"), client.hset(f"windlass:{{{NAME}}}:processor:state", "busy:w", 7)),
        "counters",
        "is busy with 1",
    ),
}
LEDGER_DAMAGES: dict[str, tuple[Callable[[Any, str], object], str, str]] = {
    "a run that nobody holds": (lambda client, ledger: client.delete(f"{ledger}:held"), "runs", "no holder"),
    "a holder that nobody knows": (lambda client, ledger: client.delete(f"{ledger}:holders"), "runs", "holder unknown"),
    "a run without its mark": (lambda client, ledger: drop_fields(client, ledger, b"="), "runs", "not indexed"),
    "a mark without its run": (lambda client, ledger: drop_runs(client, ledger), "runs", "index entry without run"),
    "a note of nothing": (
        lambda client, ledger: client.hset(f"{ledger}:runs", "@f00", "x"),
        "runs",
        "note without run",
    ),
    "a record that says nothing": (
        lambda client, ledger: client.hset(f"{ledger}:runs", "17", "x"),
        "runs",
        "no record",
    ),
    "a holder of no run": (lambda client, ledger: client.zadd(f"{ledger}:held", {b"w\x0017": 0}), "held", "no run"),
}


def leased(queue: Queue, holder: str | None = None) -> Lease:
    queue.enqueue(b"runs")
    (lease,) = queue.lease_many(1, 600, holder=holder)
    return lease


def _wait_too(client: Any, queue: Queue) -> None:
    queue.enqueue(b"", id="x")
    (lease,) = queue.lease_many(1, 600)
    queue.enqueue(b"", id=lease.id)
    client.zadd(f"{{{NAME}}}:waiting", {"x": 5000})


def _finish_and_delete(client: Any, queue: Queue) -> None:
    lease = leased(queue)
    queue.complete(lease)
    client.delete(lease.id)


def drop_fields(client: Any, ledger: str, beginning: bytes) -> None:
    for field in client.hkeys(f"{ledger}:runs"):
        if field.startswith(beginning):
            client.hdel(f"{ledger}:runs", field)


def drop_runs(client: Any, ledger: str) -> None:
    for field in client.hkeys(f"{ledger}:runs"):
        if field.isdigit():
            client.hdel(f"{ledger}:runs", field)


@pytest.mark.parametrize("damage", FOREIGN_DAMAGES)
def test_each_damage_in_another_layout_is_named_and_mended(
    server: Server, client: redis.Redis, app: Windlass, damage: str
) -> None:
    layout, do, part, kind = FOREIGN_DAMAGES[damage]
    queue = queue_on(app, layout, NAME)
    do(client, queue)
    found = look_twice(server, client, queue)
    assert kind in kinds(found)[part]
    assert queue.audit(repair=True).ok
    assert look_twice(server, client, queue).damaged_parts == ()
    queue.purge()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("damage", LEDGER_DAMAGES)
def test_each_damage_in_a_ledger_is_named_and_mended(
    server: Server, client: redis.Redis, app: Windlass, layout: str, damage: str
) -> None:
    do, part, kind = LEDGER_DAMAGES[damage]
    queue = queue_on(app, layout, NAME)
    leased(queue, "w")
    do(client, f"windlass:{{{NAME}}}:{layout}")
    found = look_twice(server, client, queue)
    assert kind in kinds(found)[part]
    assert queue.audit(repair=True).ok
    assert look_twice(server, client, queue).damaged_parts == ()
    queue.purge()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(4))
def test_whatever_is_done_to_another_layout_a_repair_leaves_a_sound_queue(
    server: Server, client: Any, app: Windlass, layout: str, number: int
) -> None:
    chance = random.Random(f"{SEED} {layout} {number}")
    queue = queue_on(app, layout, NAME)
    populate(queue)
    for _ in range(chance.randint(1, 5)):
        disturb(client, chance, "")
    found = look_twice(server, client, queue)
    queue.audit(repair=True)
    assert look_twice(server, client, queue).ok, kinds(found)
    queue.purge()
    client.flushall()


def test_a_reader_may_look_and_not_repair(server: Server, client: redis.Redis, raw_queue: Queue) -> None:
    raw_queue.enqueue_many([RawJob(b"", id="a"), RawJob(b"", id="late", delay=600)])
    client.zadd(queue_key(raw_queue.name, "ready"), {"ghost": 7})
    words = [word for word in (ACL / "reader.acl").read_text().split()[3:] if not word.startswith(">")]
    server.command("ACL", "SETUSER", "reader", "on", ">secret", *words)
    server.command("ACL", "LOG", "RESET")
    with Windlass(f"unix://reader:secret@{server.socket_path}", retry_for=1) as app:
        assert named(app.queue(raw_queue.name).audit(), "ready") == [("no job", "ghost")]
        assert server.command("ACL", "LOG") == []
        with pytest.raises(AccessDenied):
            app.queue(raw_queue.name).audit(repair=True)
    server.command("ACL", "DELUSER", "reader")


# -- bounded steps ---------------------------------------------------------------------------------


def test_a_look_is_made_of_many_small_steps(client: redis.Redis, raw_queue: Queue) -> None:
    raw_queue.enqueue_many([b""] * 5000)
    cast(Any, client).config_resetstat()
    assert raw_queue.audit().jobs == 5000
    stats: Any = client.info("commandstats")
    calls = stats["cmdstat_evalsha"]["calls"]
    assert calls >= 60, "at most two hundred entries or so in one"
    assert stats["cmdstat_hscan"]["calls"] + stats["cmdstat_zscan"]["calls"] <= 3 * calls
    assert set(stats).isdisjoint({"cmdstat_hgetall", "cmdstat_hkeys", "cmdstat_keys", "cmdstat_scan"})


# -- the command -----------------------------------------------------------------------------------

Run = Callable[..., Result]


@pytest.fixture
def run(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_URL", server.url)
    return lambda *words: CliRunner().invoke(main, ["audit", *words])


@pytest.fixture
def queues(app: Windlass) -> Iterator[tuple[Queue, Queue]]:
    """Two queues, with a job each."""
    both = app.queue("emails"), app.queue("media")
    for queue in both:
        queue.enqueue(b"", id="a")
    yield both
    for queue in both:
        queue.purge()


def test_the_command_looks_at_all_queues_and_is_content(run: Run, queues: tuple[Queue, Queue]) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    head, *lines = [line.split() for line in result.stdout.splitlines()]
    assert head == ["queue", "layout", "jobs", "problems", "repaired"]
    assert lines == [["emails", "native", "1", "0", "0"], ["media", "native", "1", "0", "0"]]


def test_the_command_names_the_problems_and_exits_with_1_until_it_is_repaired(
    run: Run, client: redis.Redis, queues: tuple[Queue, Queue]
) -> None:
    client.zadd(queue_key("media", "ready"), {"ghost\x1b[31m": 7})
    before = everything(client)
    result = run()
    assert result.exit_code == 1
    assert "media: 1 problem in ready: ghost\\x1b[31m (no job)" in result.stdout
    assert everything(client) == before
    assert run("emails").exit_code == 0, "only those that are named"
    repaired = run("--repair")
    assert repaired.exit_code == 0, repaired.output
    assert "media: 1 problem in ready, repaired" in repaired.stdout
    assert run().exit_code == 0


def test_the_command_speaks_json(run: Run, client: redis.Redis, queues: tuple[Queue, Queue]) -> None:
    client.zrem(queue_key("emails", "ready"), "a")
    emails, media = json.loads(run("--json").stdout)["queues"]
    assert (emails["queue"], emails["ok"], emails["problems"], emails["repaired"]) == ("emails", False, 2, 0)
    assert emails["damaged_parts"][0] == {
        "part": "data",
        "problems": 1,
        "repaired": 0,
        "examples": [{"kind": "in no index", "id": "a"}],
    }
    assert media == {
        "queue": "media",
        "layout": "native",
        "jobs": 1,
        "damaged_parts": [],
        "recovered": 0,
        "problems": 0,
        "repaired": 0,
        "ok": True,
        "error": None,
    }


def test_a_key_that_is_not_ours_hides_no_other_queue(
    run: Run, client: redis.Redis, queues: tuple[Queue, Queue]
) -> None:
    key = queue_key("emails", "ready")
    client.rename(key, "aside")
    client.set(key, "scribble")
    result = run()
    assert result.exit_code == 1
    assert "emails: " in result.stdout
    assert key in result.stdout
    assert ["media", "native", "1", "0", "0"] in [line.split() for line in result.stdout.splitlines()]
    client.delete(key)
    client.rename("aside", key)


def test_a_queue_of_another_layout_is_named_with_its_layout(run: Run, client: redis.Redis) -> None:
    client.set("thumbs:item:lost", "x")
    result = run("thumbs", "--layout", "thumbs=workqueue", "--json")
    assert result.exit_code == 1
    (thumbs,) = json.loads(result.stdout)["queues"]
    assert (thumbs["layout"], thumbs["damaged_parts"][0]["part"]) == ("workqueue", "items")
    assert run("thumbs", "--layout", "thumbs=workqueue", "--repair").exit_code == 0
    assert client.lrange("thumbs:queue", 0, -1) == [b"lost"]
    client.delete("thumbs:item:lost", "thumbs:queue")


def test_a_server_that_cannot_be_reached_is_exit_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.cli.connect.RETRY_FOR_S", 0.0)
    assert CliRunner().invoke(main, ["audit", "--url", "redis://127.0.0.1:1"]).exit_code == 4


def test_limits_of_a_failure_handler_are_no_job(server: Server, client: redis.Redis, app: Windlass) -> None:
    """The placeholder that tells peers of a failure handler is not taken for an entry without a job."""
    queue = queue_on(app, "queasy", NAME)
    queue.enqueue(b"")
    perform_call(app, layout_of(queue).beat("w", 30, register=True, failure_handler=Limits()))
    assert look_twice(server, client, queue).damaged_parts == ()
    queue.purge()
