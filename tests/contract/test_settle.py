"""The ends of an attempt: complete, release, retry, fail. Each is true once, and only for who holds the lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from tests.contract.conftest import SameFace
from tests.contract.leasing import drain, take
from tests.support.server import Server
from windlass import Counts, Lease, Queue, RawJob, State, Windlass

Later = Callable[[float], None]
NOTHING = Counts(ready=0, scheduled=0, blocked=0, running=0, dead=0)


# -- complete ------------------------------------------------------------------------------------


@pytest.mark.serves("W9", "W4")
@pytest.mark.needs("IDS", "LIMITS", "PROGRESS")
def test_a_completed_job_is_gone(queue: Queue) -> None:
    queue.enqueue(b"data", id="a", max_failures=3)
    lease = take(queue)
    assert queue.progress(lease, 0.5)
    assert queue.complete(lease)
    assert queue.counts() == NOTHING
    assert queue.get("a") is None
    assert queue.lease() is None


@pytest.mark.serves("R4")
def test_complete_is_true_exactly_once(queue: Queue) -> None:
    queue.enqueue(b"")
    lease = take(queue)
    assert [queue.complete(lease) for _ in range(3)] == [True, False, False]


@pytest.mark.serves("R4", "W2")
def test_complete_is_true_once_from_eight_threads(raw_queue: Queue) -> None:
    raw_queue.enqueue_many([b""] * 20)
    with ThreadPoolExecutor(8) as pool:
        for lease in raw_queue.lease_many(20):
            barrier = Barrier(8)

            def complete(_: int, lease: Lease = lease, barrier: Barrier = barrier) -> bool:
                barrier.wait(10)
                return raw_queue.complete(lease)

            assert sorted(pool.map(complete, range(8))) == [False] * 7 + [True]
    assert raw_queue.counts() == NOTHING


@pytest.mark.serves("R4", "W2")
async def test_complete_is_true_once_from_many_tasks(raw_queue: Queue) -> None:
    await raw_queue.aenqueue_many([b""] * 5)
    for lease in await raw_queue.alease_many(5):
        flags = await asyncio.gather(*(raw_queue.acomplete(lease) for _ in range(32)))
        assert sorted(flags) == [False] * 31 + [True]
    assert await raw_queue.acounts() == NOTHING


@pytest.mark.serves("R4")
def test_complete_many_answers_for_each(queue: Queue, later: Later) -> None:
    queue.enqueue_many([b""] * 4)
    first, second, third, fourth = queue.lease_many(4)
    assert queue.complete(second)
    assert queue.release(fourth)
    assert queue.complete_many([first, second, third, third, fourth]) == [True, False, True, False, False]
    assert queue.counts().ready == 1


def test_complete_many_takes_more_than_one_call_can(queue: Queue) -> None:
    queue.enqueue_many([b""] * 2300)
    leases = [lease for _ in range(3) for lease in queue.lease_many(1000)]
    assert queue.complete_many(leases) == [True] * 2300
    assert queue.counts() == NOTHING


def test_a_lease_that_comes_twice_in_one_call_is_completed_once(queue: Queue) -> None:
    queue.enqueue_many([b"first", b"second", b"third"])
    first, second, third = queue.lease_many(3)
    assert queue.complete_many([first, second, first, third, second]) == [True, True, False, True, False]
    assert queue.counts().running == 0


# -- release -------------------------------------------------------------------------------------


@pytest.mark.serves("W9")
@pytest.mark.needs("PLACE")
def test_a_released_job_is_at_the_front_again(queue: Queue) -> None:
    ids = [queue.enqueue(b"").id for _ in range(6)]
    leases = queue.lease_many(4)
    for lease in (leases[2], leases[0], leases[3], leases[1]):  # in whatever order they are given back
        assert queue.release(lease)
    assert drain(queue) == ids


@pytest.mark.needs("IDS", "PRIORITY")
def test_a_released_job_goes_back_into_its_priority(queue: Queue) -> None:
    queue.enqueue(b"", id="5a")
    queue.enqueue(b"", id="5b")
    lease = take(queue)
    queue.enqueue(b"", id="0", priority=0)
    assert queue.release(lease)
    assert drain(queue) == ["0", "5a", "5b"]


@pytest.mark.needs("LIMITS")
def test_a_release_charges_nothing(queue: Queue) -> None:
    queue.enqueue(b"", max_failures=0, max_stalls=0)
    for _ in range(5):
        lease = take(queue)
        assert (lease.failures, lease.stalls, lease.attempt) == (0, 0, 1)
        assert queue.release(lease)
    assert queue.counts().ready == 1


# -- retry ---------------------------------------------------------------------------------------


@pytest.mark.serves("H3")
@pytest.mark.needs("ORDER")
def test_a_retried_job_goes_to_the_back(queue: Queue) -> None:
    ids = [queue.enqueue(b"").id for _ in range(3)]
    assert queue.retry(take(queue), delay=0)
    assert drain(queue) == [*ids[1:], ids[0]]


@pytest.mark.needs("LIMITS", "PRIORITY")
def test_a_retry_is_charged_and_keeps_its_message(queue: Queue) -> None:
    queue.enqueue(b"data", id="a", priority=2)
    assert queue.retry(take(queue), delay=0, message="no route to host")
    job = queue.get("a")
    assert job is not None
    assert (job.failures, job.stalls, job.message, job.priority) == (1, 0, "no route to host", 2)
    lease = take(queue)
    assert (lease.data, lease.failures, lease.attempt, lease.priority) == (b"data", 1, 2, 2)


@pytest.mark.parametrize("delay", [60, 60.0, "60s", "1m", timedelta(minutes=1)])
@pytest.mark.needs("RUN_TIME")
def test_a_retry_may_say_how_long_to_wait(queue: Queue, later: Later, delay: float | str | timedelta) -> None:
    queue.enqueue(b"")
    assert queue.retry(take(queue), delay=delay)
    later(59)
    assert queue.lease() is None
    later(2)
    assert take(queue).failures == 1


@pytest.mark.needs("IDS", "RUN_TIME")
def test_a_retry_may_say_when(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a")
    when = time.time() + 60
    assert queue.retry(take(queue), run_at=when)
    job = queue.get("a")
    assert job is not None
    assert job.state is State.SCHEDULED
    assert job.run_at == pytest.approx(when, abs=0.002)
    later(59)
    assert queue.lease() is None
    later(2)
    assert queue.complete(take(queue))
    queue.enqueue(b"", id="b")
    assert queue.retry(take(queue), run_at=time.time() - 60)
    assert take(queue).id == "b", "a time that has passed is at once"


@pytest.mark.needs("IDS", "LIMITS", "ORDER")
def test_a_retry_backs_off_twice_as_long_each_time(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", min_backoff=10, max_backoff=60)
    for least in (10, 20, 40, 48, 48):
        lease = take(queue)
        now = time.time() + lease.failures * 100  # each round lets 100 s pass
        assert queue.retry(lease)
        job = queue.get("a")
        assert job is not None
        assert job.run_at is not None
        # Up to a quarter is added, so that jobs that failed together do not come back together: 48 may become 60.
        # While a jump of the clock is doubted (time is moved here by one), two seconds more.
        assert least <= job.run_at - now + 0.01 <= min(least * 1.25, 60) + 3
        later(100)


@pytest.mark.parametrize("forgiven", [0, 1, 3])
@pytest.mark.needs("LIMITS", "DEAD")
def test_failures_are_forgiven_so_many_times_and_no_more(queue: Queue, forgiven: int) -> None:
    queue.enqueue(b"data", id="a", max_failures=forgiven)
    for failures in range(forgiven):
        lease = take(queue)
        assert lease.failures == failures
        assert queue.retry(lease, delay=0)
    assert queue.retry(take(queue), delay=0, message="the last straw"), "still ours, though it was the last"
    assert queue.lease() is None
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.reason, job.message, job.failures, job.data) == (
        State.DEAD,
        "failed",
        "the last straw",
        forgiven + 1,
        b"data",
    )


@pytest.mark.needs("LIMITS", "DEAD")
def test_ten_failures_are_forgiven_by_default(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    for _ in range(10):
        assert queue.retry(take(queue), delay=0)
    assert queue.counts().ready == 1
    assert queue.retry(take(queue), delay=0)
    assert (queue.counts().ready, queue.counts().dead) == (0, 1)


@pytest.mark.needs("LIMITS", "DEAD")
def test_an_explicit_time_does_not_save_a_job_from_its_last_failure(queue: Queue) -> None:
    queue.enqueue(b"", max_failures=0)
    assert queue.retry(take(queue), delay=3600)
    assert (queue.counts().scheduled, queue.counts().dead) == (0, 1)


# -- fail ----------------------------------------------------------------------------------------


@pytest.mark.needs("DEAD", "IDS")
def test_a_failed_job_is_kept_among_the_dead(queue: Queue) -> None:
    queue.enqueue(b"data", id="a", priority=1, max_failures=9)
    began = time.time()
    assert queue.fail(take(queue), "user deleted")
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.reason, job.message) == (State.DEAD, "failed", "user deleted")
    assert (job.data, job.priority, job.limits.max_failures, job.failures) == (b"data", 1, 9, 1)
    assert job.died_at is not None
    assert began - 1 < job.died_at < time.time() + 1
    assert queue.lease() is None


@pytest.mark.needs("DEAD", "IDS")
def test_a_long_message_is_cut_and_a_strange_one_kept_readable(queue: Queue) -> None:
    queue.enqueue(b"", id="long")
    queue.enqueue(b"", id="strange")
    long, strange = queue.lease_many(2)
    assert queue.fail(long, "ö" * 5000)
    assert queue.fail(strange, "line 1\nline 2\0 \udcff")
    cut, kept = queue.get("long"), queue.get("strange")
    assert cut is not None
    assert kept is not None
    assert cut.message == "ö" * 2048
    assert kept.message == "line 1\nline 2\0 ?"


@pytest.mark.serves("H5")
@pytest.mark.needs("DEAD", "IDS")
def test_the_dead_are_bounded_and_the_latest_are_kept(queue: Queue, same_face: SameFace, server: Server) -> None:
    with Windlass(server.url, max_dead=3) as frugal:
        small = same_face(frugal.queue(queue.name, layout=queue.layout))
        small.enqueue_many(RawJob(b"", id=letter) for letter in "tsrqponmlkji")  # names that sort against their order
        for lease in small.lease_many(12):
            assert small.fail(lease, "dead")
        assert small.counts().dead == 3
        assert [job.id for job in small.jobs("dead").jobs] == ["i", "j", "k"], "the latest first"
        assert small.get("l") is None


@pytest.mark.serves("H5")
@pytest.mark.needs("DEAD", "IDS")
def test_the_dead_may_be_kept_not_at_all(queue: Queue, same_face: SameFace, server: Server) -> None:
    with Windlass(server.url, max_dead=0) as frugal:
        small = same_face(frugal.queue(queue.name, layout=queue.layout))
        small.enqueue(b"", id="a")
        assert small.fail(take(small), "gone")
        assert small.counts().dead == 0
        assert small.get("a") is None


@pytest.mark.serves("H5")
@pytest.mark.needs("DEAD")
def test_a_thousand_dead_are_kept_by_default(queue: Queue) -> None:
    queue.enqueue_many([b""] * 1003)
    while leases := queue.lease_many(1000):
        for lease in leases:
            assert queue.fail(lease)
    assert queue.counts().dead == 1000


# -- the stale lease -----------------------------------------------------------------------------


@pytest.mark.serves("R4", "W5")
@pytest.mark.parametrize("verb", ["complete", "release", "retry", "fail"])
@pytest.mark.needs("IDS", "PROGRESS")
def test_a_lost_lease_settles_nothing(queue: Queue, later: Later, verb: str) -> None:
    queue.enqueue(b"data", id="a")
    sleeper = take(queue, seconds=10)
    later(11)
    successor = take(queue, seconds=10)
    assert successor.fence > sleeper.fence
    before = queue.get("a"), queue.counts()
    assert getattr(queue, verb)(sleeper) is False
    assert not queue.extend(sleeper, 60)
    assert not queue.progress(sleeper, 0.9)
    assert (queue.get("a"), queue.counts()) == before
    assert queue.complete(successor)


@pytest.mark.parametrize("verb", ["complete", "release", "retry", "fail"])
@pytest.mark.needs("IDS")
def test_a_lease_is_settled_once(queue: Queue, verb: str) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    assert queue.release(lease)
    assert getattr(queue, verb)(lease) is False
    assert queue.counts() == Counts(ready=1, scheduled=0, blocked=0, running=0, dead=0)


def test_a_late_but_unnoticed_worker_still_settles(queue: Queue, later: Later) -> None:
    queue.enqueue(b"")
    lease = take(queue, seconds=10)
    later(60)
    assert queue.complete(lease), "nobody took the job back meanwhile: it is done, and done once"
    assert queue.clean().recovered == 0
    assert queue.counts() == NOTHING
