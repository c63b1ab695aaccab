"""Leases: one job to one holder at a time, for a while, under a number that only rises."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.leasing import drain, take
from tests.support.waiting import FOREVER_S, LIMIT_S
from windlass import Lease, Limits, Queue, RawJob, State

Later = Callable[[float], None]


def test_an_empty_queue_has_nothing_to_lease(queue: Queue) -> None:
    assert queue.lease() is None
    assert queue.lease_many(10) == []


@pytest.mark.needs("IDS", "LIMITS", "PRIORITY")
def test_a_lease_says_what_the_job_is(queue: Queue) -> None:
    queue.enqueue(b"data", id="a", priority=3, max_failures=7, max_stalls=2, min_backoff="500ms", max_backoff="1m")
    lease = take(queue)
    assert lease == Lease(
        queue=queue.name,
        id="a",
        data=b"data",
        fence=lease.fence,
        priority=3,
        failures=0,
        stalls=0,
        limits=Limits(7, 2, 0.5, 60.0),
        holder=None,
        marks=lease.marks,
    )
    assert lease.limited, "these limits are its own"
    assert not lease.suspect
    assert not lease.is_failure_job
    assert lease.attempt == 1


def test_a_plain_job_has_the_plain_limits(queue: Queue) -> None:
    queue.enqueue(b"")
    assert take(queue).limits == Limits(max_failures=10, max_stalls=3, min_backoff=2.0, max_backoff=300.0)


@pytest.mark.serves("W5")
def test_a_leased_job_is_not_given_to_another(queue: Queue) -> None:
    queue.enqueue(b"")
    take(queue)
    assert queue.lease() is None
    assert queue.lease_many(10) == []
    assert queue.counts().running == 1


@pytest.mark.serves("W5", "W2")
def test_many_threads_share_the_jobs_without_overlap(raw_queue: Queue) -> None:
    ids = {receipt.id for receipt in raw_queue.enqueue_many(b"%d" % number for number in range(400))}

    def work(_: int) -> list[str]:
        got: list[str] = []
        while leases := raw_queue.lease_many(7):
            got += [lease.id for lease in leases]
        return got

    with ThreadPoolExecutor(8) as pool:
        got = Counter(id for part in pool.map(work, range(8)) for id in part)
    assert set(got) == ids
    assert set(got.values()) == {1}


@pytest.mark.serves("W5", "W2")
async def test_many_tasks_share_the_jobs_without_overlap(raw_queue: Queue) -> None:
    ids = {receipt.id for receipt in await raw_queue.aenqueue_many(b"%d" % number for number in range(400))}

    async def work() -> list[str]:
        got: list[str] = []
        while leases := await raw_queue.alease_many(7):
            got += [lease.id for lease in leases]
        return got

    got = Counter(id for part in await asyncio.gather(*(work() for _ in range(8))) for id in part)
    assert set(got) == ids
    assert set(got.values()) == {1}


@pytest.mark.serves("Q15")
@pytest.mark.needs("ORDER")
def test_many_jobs_are_leased_in_one_call(queue: Queue) -> None:
    ids = [receipt.id for receipt in queue.enqueue_many([b""] * 25)]
    assert [lease.id for lease in queue.lease_many(10)] == ids[:10]
    assert [lease.id for lease in queue.lease_many(10)] == ids[10:20]
    assert [lease.id for lease in queue.lease_many(10)] == ids[20:], "fewer when there are fewer"
    assert queue.counts().running == 25


def test_fences_only_rise(queue: Queue, later: Later) -> None:
    queue.enqueue_many([b""] * 5)
    batch = queue.lease_many(3)
    fences = [lease.fence for lease in batch]
    fences.append(take(queue).fence)
    assert queue.release(batch[0])
    fences.append(take(queue).fence)  # the same job again, under a new number
    later(31)
    fences += [lease.fence for lease in queue.lease_many(5)]
    assert len(fences) == 10
    assert fences == sorted(set(fences))


@pytest.mark.needs("IDS")
def test_fences_rise_even_when_the_queue_was_purged(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    before = take(queue)
    assert queue.purge() == 1
    queue.enqueue(b"", id="a")
    after = take(queue)
    assert after.fence > before.fence
    assert not queue.complete(before)
    assert queue.complete(after)


@pytest.mark.serves("R3")
def test_a_lease_without_wait_does_not_sleep(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.queue.LEASE_WAIT_POLL_S", FOREVER_S)
    assert queue.lease() is None


@pytest.mark.serves("R3")
def test_a_wait_ends_when_its_time_is_up(queue: Queue) -> None:
    began = time.monotonic()
    assert queue.lease(wait=0.3) is None
    assert time.monotonic() - began >= 0.3
    assert queue.lease_many(5, wait="50ms") == []


@pytest.mark.serves("R3")
def test_a_wait_ends_at_once_when_there_is_a_job(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.queue.LEASE_WAIT_POLL_S", FOREVER_S)
    queue.enqueue(b"")
    take(queue, wait=FOREVER_S)


@pytest.mark.serves("R3", "W7")
def test_a_wait_ends_when_a_job_comes(queue: Queue, raw_queue: Queue) -> None:
    got: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(queue.lease(wait=FOREVER_S)))
    waiter.start()
    receipt = raw_queue.enqueue(b"news")
    waiter.join(LIMIT_S)
    assert [lease and lease.id for lease in got] == [receipt.id]


def test_more_time_counts_from_now(queue: Queue, later: Later) -> None:
    queue.enqueue(b"")
    lease = take(queue, seconds=10)
    later(8)
    assert queue.extend(lease, 10)
    later(8)
    assert queue.lease() is None, "16 s after a lease of 10 s it is still held"
    later(3)
    assert take(queue).id == lease.id
    assert not queue.extend(lease, 10), "lost: more time cannot bring it back"


def test_more_time_for_one_job_is_not_more_for_its_batch(queue: Queue, later: Later) -> None:
    queue.enqueue_many([b""] * 3)
    first, second, third = queue.lease_many(3, seconds=10)
    assert queue.extend(second, 60)
    later(11)
    assert [lease.id for lease in queue.lease_many(5)] == [first.id, third.id]
    assert queue.complete(second)


@pytest.mark.needs("IDS", "PROGRESS")
def test_progress_can_be_told_and_read(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    for value in (0, 0.25, 1 / 3, 1):
        assert queue.progress(lease, value)
        job = queue.get("a")
        assert job is not None
        assert job.progress == value
    later(31)
    again = take(queue)
    assert not queue.progress(lease, 0.5), "lost: it cannot speak for the job any more"
    job = queue.get("a")
    assert job is not None
    assert (job.progress, job.fence) == (None, again.fence), "a new attempt begins at nothing"


@pytest.mark.serves("Q4")
def test_a_holder_keeps_all_its_jobs_by_one_beat(queue: Queue, later: Later) -> None:
    queue.enqueue_many([b""] * 3)
    leases = queue.lease_many(3, seconds=10, holder="worker-1")
    assert {lease.holder for lease in leases} == {"worker-1"}
    for _ in range(4):
        later(8)
        assert queue.beat("worker-1", 10)
    assert queue.clean().recovered == 0
    assert queue.complete_many(leases) == [True] * 3


def test_a_beat_tells_a_holder_that_it_is_not_known(queue: Queue, later: Later) -> None:
    queue.enqueue(b"")
    assert not queue.beat("worker-1", 10)
    assert queue.counts().holders == 0, "a beat alone does not make it known"
    assert not queue.beat("worker-1", 10, register=True), "not known before"
    assert queue.beat("worker-1", 10)
    assert queue.counts().holders == 1
    later(11)
    queue.clean()
    assert queue.counts().holders == 0
    assert not queue.beat("worker-1", 10), "it was silent for too long"


def test_a_beat_never_takes_time_away(queue: Queue, later: Later) -> None:
    queue.enqueue(b"")
    lease = take(queue, seconds=30, holder="worker-1")
    assert queue.beat("worker-1", 1)
    later(20)
    assert queue.lease() is None
    assert queue.complete(lease)


def test_more_time_for_a_holders_job_is_a_beat(queue: Queue, later: Later) -> None:
    queue.enqueue_many([b""] * 2)
    first, second = queue.lease_many(2, seconds=10, holder="worker-1")
    later(8)
    assert queue.extend(first, 10)
    later(8)
    assert queue.clean().recovered == 0
    assert queue.complete_many([first, second]) == [True, True]


@pytest.mark.needs("IDS")
def test_who_holds_a_job_can_be_seen(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    queue.enqueue(b"", id="b")
    named, raw = take(queue, holder="worker-1"), take(queue)
    a, b = queue.get("a"), queue.get("b")
    assert a is not None
    assert b is not None
    assert (a.state, a.holder, a.fence) == (State.RUNNING, "worker-1", named.fence)
    assert (b.state, b.holder, b.fence) == (State.RUNNING, None, raw.fence)


@pytest.mark.serves("R7")
@pytest.mark.needs("IDS")
def test_at_least_once_a_worker_that_dies_before_completing(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a")
    take(queue, seconds=10)  # … and it dies
    later(11)
    assert drain(queue) == ["a"]


@pytest.mark.serves("R7")
@pytest.mark.needs("IDS")
def test_at_most_once_by_completing_right_after_leasing(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a")
    assert queue.complete(take(queue, seconds=10))
    # … now it works, and dies
    later(11)
    assert queue.audit(repair=True).recovered == 0
    assert queue.lease() is None
    assert queue.get("a") is None


@pytest.mark.needs("PLACE")
def test_a_large_batch_of_odd_ids_is_leased_and_settled_whole(queue: Queue) -> None:
    ids = ["\0" * n for n in range(1, 100)] + [chr(n) for n in range(1, 200)] + ["x" * n for n in range(2, 200)]
    queue.enqueue_many([RawJob(id.encode(), id=id) for id in ids])
    leases = queue.lease_many(1000, 60)
    assert [lease.id for lease in leases] == ids
    assert all(lease.id.encode() == lease.data for lease in leases)
    half = len(leases) // 2
    assert all(queue.complete_many(leases[:half]))
    assert all(queue.release(lease) for lease in leases[half:])
    assert [lease.id for lease in queue.lease_many(1000, 60)] == ids[half:]
