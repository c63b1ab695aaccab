"""Keys of workers that hold something else, a ledger that vanishes, marks that nobody would take away, many tasks."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import md5
from typing import Any, cast

import pytest
import redis

from tests.compat.worqr.conftest import NAME, ClockView, Later, contents, entries, members, worker_keys
from tests.compat.worqr.peer import Peer
from tests.contract.leasing import take
from tests.support.internals import perform
from windlass import Lease, Queue, Windlass
from windlass.errors import KeyConflict
from windlass.storage.compat.worqr import WorqrLayout
from windlass.storage.compat.worqr.layout import name_of
from windlass.values.outcome import Crashed

LONG = b"\xff" + b"x" * 600


def ledger(client: redis.Redis) -> list[bytes]:
    plain: Any = client
    return list(plain.keys("windlass:*"))


# -- keys of another kind ------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["worqr:workingQueues:w1", "worqr:workerTimers:w1"])
def test_a_workers_key_of_another_kind_is_found_before_anything_is_written(
    client: redis.Redis, queue: Queue, key: str
) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    raw = take(queue)
    client.hset(key, "field", "value")
    mine = Lease(NAME, "T0", b"T0", raw.fence, holder="w1")
    before = client.keys("*")
    for act in (
        lambda: queue.lease(1, holder="w1"),
        lambda: queue.beat("w1", register=True),
        lambda: queue.beat("w1"),
        lambda: queue.extend(mine, 5),
    ):
        with pytest.raises(KeyConflict, match=key):
            act()
    assert client.keys("*") == before
    assert entries(client, "worqr:queues:tubes") == [b"T1"]
    assert client.hgetall(key) == {b"field": b"value"}
    client.delete(key)
    assert take(queue, holder="w1").id == "T1"


@pytest.mark.speaks("worqr", "W14")
def test_one_bad_key_does_not_hold_up_the_recovery_of_others(client: redis.Redis, queue: Queue, later: Later) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    for holder in ("bad", "good"):
        take(queue, seconds=10, holder=holder)
    client.delete("worqr:workingQueues:bad")
    client.set("worqr:workingQueues:bad", "odd")
    later(11)
    assert queue.clean().recovered == 2
    assert entries(client, "worqr:queues:tubes") == [b"T2", b"T1", b"T0"]
    assert client.get("worqr:workingQueues:bad") == b"odd"
    assert members(client, "worqr:workers") == {"bad"}, "until somebody mends it"
    client.delete("worqr:workingQueues:bad")
    queue.clean()
    assert set(contents(client)) == {"worqr:queues:tubes"}


def test_a_purge_leaves_what_is_no_process(client: redis.Redis, queue: Queue) -> None:
    client.sadd("worqr:workingProcesses:tubes", "odd")
    client.set("worqr:processes:odd", "precious")
    queue.enqueue_many([b"%d" % n for n in range(1500)])
    queue.lease_many(1000)
    queue.lease_many(200)
    assert queue.purge() == 1500
    assert contents(client) == {"worqr:processes:odd": b"precious"}
    client.delete("worqr:processes:odd")


# -- the ledger ----------------------------------------------------------------------------------


@pytest.mark.speaks("worqr", "W14", "W3")
def test_a_worker_whose_ledger_vanished_is_recovered_as_a_stranger(
    client: redis.Redis, queue: Queue, later: Later
) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    queue.beat("w1", 3, register=True)
    lease = take(queue, seconds=3, holder="w1")
    client.delete(*ledger(client))
    assert not queue.beat("w1", 3), "it has to begin again"
    perform(queue, lambda layout: layout.unregister_holder("w1"))
    assert members(client, "worqr:workers") == {"w1"}, "nobody knows what it had, so it is not just struck off"
    assert queue.clean().recovered == 0, "by its timer it is alive"
    later(4)
    assert queue.clean().recovered == 1
    assert not queue.complete(lease)
    assert contents(client) == {"worqr:queues:tubes": [b"T1", b"T0"]}


def test_the_ledger_keeps_nothing_of_what_has_ended(client: redis.Redis, queue: Queue, later: Later) -> None:
    ends: list[Callable[[Lease], bool]] = [
        queue.complete,
        queue.release,
        lambda lease: queue.retry(lease, delay=0),
        queue.fail,
    ]
    queue.enqueue_many([b"T0", b"T0", LONG, b"T1", b"T2"])
    for end in ends:
        assert end(take(queue, holder="w1"))
    assert queue.lease_many(9, seconds=5)
    later(6)
    assert queue.clean().recovered == 3
    assert queue.purge() == 3
    assert not client.exists(*(f"windlass:{{tubes}}:worqr:{name}" for name in ("runs", "held", "tokens")))


def test_what_peers_took_back_leaves_the_index_too(client: redis.Redis, queue: Queue, peer: Peer, later: Later) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    queue.lease_many(2, seconds=60, holder="w1")
    take(queue, seconds=10, holder="w2")
    peer.fail("w1")
    peer.fail("w2")
    queue.beat("w1", 60, register=True)
    assert client.zcard("windlass:{tubes}:worqr:tokens") == 1, "a heartbeat finds it out"
    later(11)
    queue.clean()
    assert not client.exists("windlass:{tubes}:worqr:tokens"), "and so does who recovers the lost"


def test_a_suspect_is_one_until_it_has_ended(queue: Queue) -> None:
    def crash(lease: Lease, alone: bool) -> None:
        perform(queue, lambda layout: layout.turn([Crashed(lease, "died", is_cause=alone)]))

    queue.enqueue_many([LONG, b"T1"])
    crash(take(queue), alone=False)
    lease = take(queue, holder="w1")
    assert (lease.data, lease.suspect) == (LONG, True)
    assert queue.release(lease)
    lease = take(queue)
    assert (lease.data, lease.suspect) == (LONG, True)
    crash(lease, alone=True)
    assert not take(queue).suspect
    lease = take(queue)
    assert (lease.data, lease.suspect) == (LONG, True)
    assert queue.retry(lease, delay=0)
    assert not take(queue).suspect


# -- marks of unique tasks -----------------------------------------------------------------------


@pytest.mark.parametrize("task", [b"T0", LONG, b"y" * 100_000])
def test_the_mark_of_a_task_that_a_peer_cancels_goes_though_its_worker_is_lost(
    client: redis.Redis, queue: Queue, peer: Peer, later: Later, task: bytes
) -> None:
    assert peer.enqueue_unique(NAME, task)
    take(queue, seconds=5, holder="w1")
    peer.cancel(NAME, task)
    assert perform(queue, lambda layout: cast(WorqrLayout, layout).obey_cancel("w1", task))
    later(6)
    queue.clean()
    assert contents(client) == worker_keys("peer")


def test_a_task_that_is_known_by_its_hash_keeps_its_mark_until_it_ends(
    client: redis.Redis, queue: Queue, peer: Peer
) -> None:
    task = b"\xff" * 600
    mark = f"worqr:uniqueTasks:{md5(task).hexdigest()}"
    assert peer.enqueue_unique(NAME, task)
    lease = take(queue)
    assert queue.cancel(lease.id, running=True)
    assert client.exists(mark)
    assert queue.release(lease)
    assert not client.exists(mark)


# -- many tasks ----------------------------------------------------------------------------------


def test_who_works_on_a_task_is_found_without_a_look_at_all(
    client: redis.Redis, app: Windlass, heard: ClockView
) -> None:
    """The commands that a script sends are counted, for time tells nothing on a busy machine."""
    queue = app.queue("many", layout="worqr")
    for task in (b"needle", LONG):
        queue.enqueue_many([task, *(b"%d" % n for n in range(900)), task])
        queue.lease_many(901, holder="w1")
    theirs = Peer(client, "theirs").start("many")
    assert theirs.dequeue("many")
    for task in (b"needle", LONG):
        id = name_of(task)
        assert calls_during(client, lambda id=id: queue.get(id)) < 100  # type: ignore[misc]
        assert calls_during(client, lambda id=id: queue.cancel(id, running=True)) < 100  # type: ignore[misc]
        job = queue.get(id)
        assert job is not None
        assert (job.holder, job.cancelled) == ("w1", True)
    theirs.fail("theirs")
    queue.purge()


def calls_during(client: redis.Redis, act: Callable[[], object]) -> int:
    plain: Any = client
    plain.config_resetstat()
    assert act()
    return sum(command["calls"] for command in plain.info("commandstats").values())
