"""A queue's life, written once and lived on every kind of server."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
import redis

from tests.support.faces import FACES
from tests.support.internals import layout_of, perform, perform_call, settle
from tests.support.waiting import FOREVER_S, LIMIT_S, wait_until
from windlass import Lease, Queue, RawJob, State, Status
from windlass.storage.native import keys
from windlass.values.job import NewJob
from windlass.values.outcome import Broken, Completed, HandOver, UnknownTask

Later = Callable[[float], None]
BOTH_FACES = pytest.mark.parametrize("face", FACES, ids=["blocking", "awaitable"])


def through(face: type, queue: Queue) -> Queue:
    """The queue seen through one of its two faces."""
    return cast(Queue, face(queue))


def leased(queue: Queue, seconds: float = 30) -> Lease:
    """The next job, which must be there."""
    lease = queue.lease(seconds)
    assert lease is not None
    return lease


def every_verb(queue: Queue) -> None:
    """Each verb once, with what it must answer; nothing is left behind."""
    assert queue.enqueue(b"one", id="one", priority=1).status is Status.ADDED
    assert queue.enqueue(b"one again", id="one", if_exists="keep").status is Status.KEPT
    assert len(queue.enqueue_many([b"two", RawJob(b"three", priority=9)])) == 2
    assert queue.update("one", data=b"ONE")
    assert queue.counts().ready == 3
    found = queue.get("one")
    assert found is not None
    assert found.data == b"ONE"
    assert len(queue.jobs(State.READY).jobs) == len(list(queue.all_jobs(State.READY))) == 3
    assert queue.pause()
    assert queue.lease() is None
    assert queue.resume()
    first, second, third = queue.lease_many(3)
    assert [lease.data for lease in (first, second, third)] == [b"ONE", b"two", b"three"]
    assert queue.extend(first, 60)
    assert queue.progress(first, 0.5)
    assert queue.retry(first, delay=0, message="once more")
    assert queue.release(second)
    assert queue.fail(third, "for good")
    assert queue.counts().dead == 1
    assert not queue.beat("someone", 30, register=True)
    assert queue.beat("someone", 30)
    (again,) = queue.lease_many(1, holder="someone")
    assert (again.id, again.failures) == ("one", 1)
    assert queue.complete(again)
    assert not queue.complete(again)
    assert queue.cancel(second.id)
    assert queue.audit(repair=True).repaired == 0
    assert queue.lease(wait=0.05) is None
    assert queue.purge(State.DEAD) == 1
    assert queue.purge() == 0


def fill_every_key(queue: Queue, push: Callable[[str, bytes], object], idle: Callable[[str], object]) -> None:
    """Brings every key of a queue into being; `push` fills its inbox, `idle` names a waiter."""
    queue.enqueue(b"grave", id="grave")
    queue.fail(leased(queue))
    queue.enqueue(b"noted", id="noted")
    settle(queue, UnknownTask(leased(queue), "a task that nobody knows"))
    queue.enqueue(b"broken", id="broken")
    settle(queue, Broken(leased(queue), "not JSON"))
    queue.enqueue(b"parent", id="parent")
    settle(queue, Completed(leased(queue), hand_overs=(HandOver("elsewhere", NewJob("child", b"child")),)))
    perform(queue, lambda layout: layout.watch("runs", 600))
    schedules = layout_of(queue).schedules
    assert schedules is not None
    perform_call(queue, schedules.put("nightly", None, b"{}", 2**42, keep_tick=False))
    queue.enqueue(b"runs", id="runs")
    lease = queue.lease(600)
    assert lease is not None
    queue.progress(lease, 0.5)
    queue.enqueue(b"behind it", id="runs")
    queue.enqueue(b"ready", id="ready", max_failures=1)
    idle(keys.queue_key(queue.name, "idle"))
    push(keys.queue_key(queue.name, "inbox"), b"by hand")


def drain(queue: Queue, patience: float = 20.0) -> list[bytes]:
    """Completes jobs until none is left, and gives their data back in order."""
    done: list[bytes] = []
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        batch = queue.lease_many(100)
        if not batch:
            return done
        done += [lease.data for lease, kept in zip(batch, queue.complete_many(batch), strict=True) if kept]
    raise TimeoutError(f"{queue!r} is not empty after {patience:g} s")


class QueueLife:
    """What a queue must be able to do wherever it lives: made into tests by a subclass whose name begins with Test."""

    def test_every_verb(self, queue: Queue) -> None:
        every_verb(queue)

    def test_priorities_then_order_of_arrival(self, queue: Queue) -> None:
        for number, priority in enumerate((5, 9, 0, 5, 0)):
            queue.enqueue(b"%d" % number, priority=priority)
        assert drain(queue) == [b"2", b"4", b"0", b"3", b"1"]

    def test_a_scheduled_job_waits_for_its_time(self, queue: Queue, later: Later) -> None:
        queue.enqueue(b"soon", delay=60)
        assert queue.lease() is None
        assert queue.counts().scheduled == 1
        later(61)
        assert queue.counts().ready == 1
        assert drain(queue) == [b"soon"]

    def test_a_failed_job_is_tried_again_and_then_kept_among_the_dead(self, queue: Queue, later: Later) -> None:
        queue.enqueue(b"x", id="x", max_failures=1, min_backoff=5)
        assert queue.retry(leased(queue), message="first")
        assert queue.lease() is None
        later(8)
        again = leased(queue)
        assert (again.failures, again.attempt) == (1, 2)
        assert queue.retry(again, message="second")
        dead = queue.get("x")
        assert dead is not None
        assert (dead.state, dead.reason, dead.message, dead.failures) == (State.DEAD, "failed", "second", 2)

    def test_what_a_lost_holder_held_returns_in_its_order(self, queue: Queue, later: Later) -> None:
        queue.enqueue_many([b"0", b"1", b"2", b"3"])
        lost = queue.lease_many(3, seconds=10)
        later(11)
        assert queue.clean().recovered == 3
        assert not queue.complete(lost[0])
        assert drain(queue) == [b"0", b"1", b"2", b"3"]

    def test_a_second_job_of_an_id_waits_behind_the_first(self, queue: Queue) -> None:
        queue.enqueue(b"first", id="x")
        first = leased(queue)
        assert queue.enqueue(b"second", id="x").status is Status.BLOCKED
        assert queue.lease() is None
        assert queue.complete(first)
        assert drain(queue) == [b"second"]

    def test_what_is_pushed_by_hand_becomes_a_job(self, queue: Queue, client: redis.Redis) -> None:
        client.lpush(keys.queue_key(queue.name, "inbox"), b"by hand")
        assert queue.counts().inbox == 1
        assert drain(queue) == [b"by hand"]

    def test_a_waiter_is_woken(
        self, queue: Queue, raw_queue: Queue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("windlass.queue.LEASE_WAIT_POLL_S", FOREVER_S)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(queue.lease, 30, FOREVER_S)
            wait_until(lambda: client.zcard(keys.queue_key(queue.name, "idle")), "the waiter to be idle")
            raw_queue.enqueue(b"wake up")
            lease = waiter.result(LIMIT_S)
        assert lease is not None
        assert queue.complete(lease)

    def test_a_deep_clean_mends_what_was_torn(self, queue: Queue, client: redis.Redis) -> None:
        queue.enqueue(b"in no index", id="lost")
        queue.enqueue(b"gone", id="gone")
        client.zrem(keys.queue_key(queue.name, "ready"), "lost")
        client.hdel(keys.queue_key(queue.name, "data"), "gone")
        assert queue.audit(repair=True).repaired == 2
        assert drain(queue) == [b"in no index"]

    def test_purge_leaves_only_its_answer(self, queue: Queue, client: redis.Redis) -> None:
        fill_every_key(queue, client.lpush, lambda key: client.zadd(key, {"nobody": 1}))
        names = keys.queue_keys(queue.name)
        assert [name for name in names if not client.exists(name)] == []
        assert queue.purge() == 8
        client.delete(keys.queue_key(queue.name, "idle"))  # waiters are no jobs: they outlive a purge
        left = [keys.queue_key(queue.name, name) for name in ("state", "schedules", "ticks")]
        assert [name for name in names if client.exists(name)] == left, "and schedules are no jobs either"
