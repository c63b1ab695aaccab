"""Retries, run times, locks, cancels and updates: the rows of Queasy's document on its own keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import redis

from tests.compat.queasy.conftest import Later
from tests.compat.queasy.peer import Peer
from tests.contract.leasing import drain, take
from tests.support.internals import perform, settle
from tests.support.moments import since
from tests.support.waiting import LIMIT_S
from windlass import JobRecord, Limits, Queue, RawJob, State, Status
from windlass.storage.port import LeaseRequest
from windlass.values.outcome import Crashed, Snoozed

LIMITS = ["max_failures", "max_stalls", "min_backoff", "max_backoff"]


def record(queue: Queue, id: str = "a") -> JobRecord:
    found = queue.get(id)
    assert found is not None, "there is no such job"
    return found


# -- attempts --------------------------------------------------------------------------------------


@pytest.mark.speaks("queasy", "Q1")
def test_a_job_is_done_when_somebody_says_so_and_until_then_comes_again(emails: Queue, later: Later) -> None:
    emails.enqueue(b"1", id="a")
    fences = []
    for _ in range(3):
        lease = take(emails, seconds=10)
        fences.append(lease.fence)
        assert (lease.id, lease.data) == ("a", b"1")
        later(11)
    last = take(emails, seconds=10)
    assert fences == sorted(set(fences))
    assert last.fence > fences[-1]
    assert emails.complete(last)
    assert not emails.complete(last), "once"
    later(11)
    assert emails.lease() is None


@pytest.mark.speaks("queasy", "Q2")
def test_by_default_ten_failures_are_forgiven_with_twice_the_wait_each_time(emails: Queue, later: Later) -> None:
    emails.enqueue(b"1", id="a")
    for failures in range(10):
        lease = take(emails)
        assert (lease.failures, lease.limits) == (failures, Limits(10, 3, 2.0, 300.0))
        began = time.time()
        assert emails.retry(lease, message="no route")
        job = record(emails)
        least = min(2.0 * 2**failures, 300.0 / 1.25)
        assert job.run_at is not None
        assert least - 0.01 <= job.run_at - began <= min(least * 1.25, 300) + 1
        assert (job.state, job.failures, job.message) == (State.SCHEDULED, failures + 1, "no route")
        assert emails.lease() is None
        later(301)
    assert emails.retry(take(emails)), "still ours, though it was the last"
    assert emails.get("a") is None


@pytest.mark.speaks("queasy", "Q2")
def test_each_limit_is_set_for_one_job(emails: Queue) -> None:
    emails.enqueue(b"1", id="a", max_failures=0, max_stalls=9, min_backoff=0.25, max_backoff="1h")
    lease = take(emails)
    assert lease.limits == Limits(0, 9, 0.25, 3600.0)
    assert lease.limited
    assert emails.retry(lease)
    assert emails.counts().waiting == 0


@pytest.mark.speaks("queasy", "Q2")
def test_plain_limits_that_were_given_count_as_given(emails: Queue) -> None:
    emails.enqueue(b"1", id="a")
    emails.enqueue(b"1", id="b", max_failures=10)
    assert [lease.limited for lease in emails.lease_many(2)] == [False, True]


@pytest.mark.speaks("queasy", "Q3")
def test_an_attempt_sets_the_time_of_its_next_one_or_ends_the_job(emails: Queue) -> None:
    emails.enqueue(b"1", id="a")
    when = time.time() + 1000
    assert emails.retry(take(emails), run_at=when)
    assert record(emails).run_at == pytest.approx(when, abs=0.002)
    emails.enqueue(b"1", id="b")
    assert emails.retry(take(emails), delay=0)
    assert emails.fail(take(emails), "there is no such address")
    assert emails.get("b") is None


# -- locks -----------------------------------------------------------------------------------------


@pytest.mark.speaks("queasy", "Q4")
@pytest.mark.parametrize("forgiven", [0, 1, 3])
@pytest.mark.parametrize("end", ["stall", "crash"])
def test_so_many_stalls_are_forgiven_and_then_it_has_failed(
    emails: Queue, later: Later, forgiven: int, end: str
) -> None:
    emails.enqueue(b"1", id="a", max_stalls=forgiven, max_failures=0)
    for stalls in range(forgiven + 1):
        lease = take(emails, seconds=10)
        assert (lease.stalls, lease.failures) == (stalls, 0)
        if end == "crash":
            assert settle(emails, Crashed(lease, "killed by signal 9", True)) == (True,)
        else:
            later(11)
            assert emails.clean().recovered == 1
    assert emails.get("a") is None
    assert emails.counts().waiting + emails.counts().running == 0


def test_a_crashed_job_waits_and_a_suspect_does_not(emails: Queue, later: Later) -> None:
    for id in ("cause", "suspect"):
        emails.enqueue(b"1", id=id)
    cause, suspect = emails.lease_many(2)
    outcomes = Crashed(cause, "died", True, delay_ms=60_000), Crashed(suspect, "died", False)
    assert settle(emails, *outcomes) == (True, True)
    lease = take(emails)
    assert (lease.id, lease.stalls, lease.suspect) == ("suspect", 0, True)
    assert emails.complete(lease)
    assert emails.lease() is None
    later(61)
    lease = take(emails)
    assert (lease.id, lease.stalls) == ("cause", 1)


def test_a_snoozed_job_waits_and_is_not_charged(emails: Queue, later: Later) -> None:
    emails.enqueue(b"1", id="a", max_failures=0, max_stalls=0)
    assert settle(emails, Snoozed(take(emails), ("in", 60_000), "rate limit")) == (True,)
    record = emails.get("a")
    assert record is not None
    assert (record.state, record.message, record.snoozes) == ("scheduled", "rate limit", 0)
    later(61)
    lease = take(emails)
    assert (lease.failures, lease.stalls, lease.limits.max_failures) == (0, 0, 0)
    assert emails.complete(lease)


@pytest.mark.speaks("queasy", "Q4")
def test_by_default_three_stalls_are_forgiven(emails: Queue, later: Later) -> None:
    emails.enqueue(b"1", id="a")
    for stalls in range(4):
        lease = take(emails, seconds=10)
        assert (lease.stalls, lease.limits.max_stalls) == (stalls, 3)
        later(11)
        assert emails.clean().recovered == 1
    assert emails.get("a") is None


@pytest.mark.speaks("queasy", "Q4")
def test_a_heartbeat_keeps_all_that_a_worker_has(emails: Queue, later: Later) -> None:
    emails.enqueue_many([b"1"] * 3)
    kept = emails.lease_many(2, 10, holder="worker-1")
    lost = take(emails, seconds=10, holder="worker-2")
    later(6)
    assert emails.beat("worker-1", 10)
    later(6)
    assert emails.clean().recovered == 1
    assert emails.complete_many([*kept, lost]) == [True, True, False]


@pytest.mark.speaks("queasy", "Q4")
def test_what_a_worker_has_lives_as_long_as_the_worker(emails: Queue, later: Later, client: redis.Redis) -> None:
    emails.enqueue_many([b"1"] * 2)
    assert not emails.beat("worker-1", 60, register=True)
    first = take(emails, seconds=1, holder="worker-1")
    assert all(score > (time.time() + 50) * 1000 for _, score in client.zscan_iter("{emails}:active"))
    later(30)
    second = take(emails, seconds=100, holder="worker-1")
    later(40)
    assert emails.clean().recovered == 0
    assert emails.complete_many([first, second]) == [True, True]


@pytest.mark.speaks("queasy", "Q14")
def test_who_lost_a_lock_hears_of_it_at_the_next_heartbeat(emails: Queue, client: redis.Redis, peer: Peer) -> None:
    emails.enqueue(b"1", id="a")
    lease = take(emails, holder="worker-1")
    listener = cast(Any, client).pubsub(ignore_subscribe_messages=True)
    listener.subscribe("windlass:cancel:worker-1")
    assert emails.beat("worker-1")
    peer.later = 60_000
    assert peer.clear_stall() == 1, "it takes the job for stalled"
    assert not emails.extend(lease, 10)
    assert emails.beat("worker-1"), "it lives; it has only lost a job"
    told = [listener.get_message(timeout=5) for _ in range(2)]
    # This attempt, and no later one.
    assert [message and message["data"] for message in told] == [None, b"!%d emails a" % lease.fence]
    assert not emails.complete(lease)
    listener.close()


# -- taking ----------------------------------------------------------------------------------------


@pytest.mark.speaks("queasy", "Q15")
def test_many_jobs_are_taken_in_one_step_and_each_once(emails: Queue) -> None:
    ids = {receipt.id for receipt in emails.enqueue_many([b"1"] * 1500)}
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: emails.lease_many(500), range(4)))
    taken = [lease.id for batch in batches for lease in batch]
    assert len(taken) == 1500
    assert set(taken) == ids
    assert [len(batch) for batch in batches].count(500) == 3
    assert emails.counts().running == 1500


@pytest.mark.speaks("queasy", "Q8")
def test_no_job_runs_before_its_time_and_the_earliest_comes_first(emails: Queue, later: Later) -> None:
    for id, delay in (("c", 30), ("a", 20), ("b", 10)):
        emails.enqueue(b"1", id=id, delay=delay)
    assert emails.lease() is None
    assert [job.id for job in emails.jobs("scheduled").jobs] == ["b", "a", "c"]
    later(25)
    assert (emails.counts().ready, emails.counts().scheduled) == (2, 1)
    assert drain(emails) == ["b", "a"]
    later(10)
    assert drain(emails) == ["c"]


@pytest.mark.speaks("queasy", "Q8")
def test_who_waits_is_given_a_job_when_its_time_comes(emails: Queue) -> None:
    when = time.time() + 0.4
    emails.enqueue(b"1", id="a", run_at=when)
    turn = perform(emails, lambda layout: layout.turn((), LeaseRequest(want=1, seconds=10)))
    assert turn.leases == ()
    assert turn.next_work_in is not None
    assert turn.next_work_in <= 0.402  # in whole milliseconds the run time is rounded up, and the server's clock down
    lease = take(emails, wait=LIMIT_S)
    assert time.time() >= when
    assert lease.id == "a"


def test_new_work_is_announced_when_it_is_due_or_nearly(emails: Queue, client: redis.Redis) -> None:
    listener = cast(Any, client).pubsub(ignore_subscribe_messages=True)
    listener.subscribe("windlass:wake:{emails}:queasy")
    listener.get_message(timeout=5)
    emails.enqueue(b"1", id="far", delay=60)
    emails.enqueue_many([RawJob(b"1", id="a"), RawJob(b"1", id="b")])
    emails.enqueue(b"1", id="near", delay=0.9)
    lease = take(emails)
    emails.enqueue(b"2", id=lease.id)
    assert emails.complete(lease)
    client.publish("windlass:wake:{emails}:queasy", "that was all")
    told = [listener.get_message(timeout=5)["data"] for _ in range(4)]
    assert told == [b"2", b"1", b"1", b"that was all"]
    listener.close()


# -- cancels and updates ---------------------------------------------------------------------------


@pytest.mark.speaks("queasy", "Q9")
def test_a_waiting_job_can_be_cancelled_and_a_running_one_not(emails: Queue) -> None:
    emails.enqueue(b"1", id="a", delay=60)
    assert emails.cancel("a")
    assert not emails.cancel("a")
    emails.enqueue(b"1", id="a")
    lease = take(emails)
    assert not emails.cancel("a")
    assert emails.complete(lease)


def apply(queue: Queue, how: str, id: str, **options: Any) -> None:
    """The same change in both ways of making one."""
    if how == "enqueue":
        assert queue.enqueue(b"2", id=id, **options).status is Status.UPDATED
        return
    when = {True: "always", "later": "later", "earlier": "earlier"}[options.pop("update_run_at")]
    assert queue.update(id, when=when, **options)  # type: ignore[arg-type]


@pytest.mark.speaks("queasy", "Q10")
@pytest.mark.parametrize("how", ["enqueue", "update"])
@pytest.mark.parametrize(
    ("flag", "before", "asked", "after"),
    [
        (True, 100, 50, 50),
        (True, 100, 200, 200),
        (True, None, 50, 50),
        ("later", 100, 50, 100),
        ("later", 100, 200, 200),
        ("later", None, 50, 50),
        ("earlier", 100, 50, 50),
        ("earlier", 100, 200, 100),
        ("earlier", None, 50, None),
    ],
)
def test_update_run_at(
    emails: Queue, how: str, flag: Any, before: float | None, asked: float, after: float | None
) -> None:
    began = time.time()
    emails.enqueue(b"1", id="a", delay=before)
    apply(emails, how, "a", delay=asked, update_run_at=flag)
    job = record(emails)
    if after is None:
        assert (job.state, job.run_at) == (State.READY, None)
    else:
        assert job.state is State.SCHEDULED
        assert job.run_at == since(began, after)


@pytest.mark.speaks("queasy", "Q10")
@pytest.mark.parametrize("kept", [*LIMITS, "data", "run_at"])
def test_each_part_of_an_update_can_be_switched_off(emails: Queue, kept: str) -> None:
    old: dict[str, Any] = dict(zip(LIMITS, (5, 6, 7, 8), strict=True))
    new: dict[str, Any] = dict(zip(LIMITS, (15, 16, 17, 18), strict=True))
    began = time.time()
    emails.enqueue(b"1", id="a", delay=100, **old)
    emails.enqueue(b"2", id="a", delay=200, **new, **{f"update_{kept}": False})  # type: ignore[arg-type]
    job = record(emails)
    assert job.limits == Limits(**{name: (old if name == kept else new)[name] for name in LIMITS})
    assert job.data == (b"1" if kept == "data" else b"2")
    assert job.run_at == since(began, (100 if kept == "run_at" else 200))


@pytest.mark.speaks("queasy", "Q10")
@pytest.mark.parametrize(
    ("flags", "reset"),
    [
        ({}, True),
        ({"update_data": False}, False),
        ({"reset_counts": False}, False),
        ({"update_data": False, "reset_counts": True}, True),
    ],
)
def test_counts_are_reset_with_the_data_unless_said(emails: Queue, flags: dict[str, bool], reset: bool) -> None:
    emails.enqueue(b"1", id="a")
    assert emails.retry(take(emails), delay=0)
    assert settle(emails, Crashed(take(emails), "", True)) == (True,)
    emails.enqueue(b"2", id="a", **flags)  # type: ignore[arg-type]
    lease = take(emails)
    assert (lease.failures, lease.stalls) == ((0, 0) if reset else (1, 1))


@pytest.mark.speaks("queasy", "Q10")
def test_an_update_needs_a_job_that_waits(emails: Queue) -> None:
    change: Callable[[], bool] = lambda: emails.update("a", max_failures=1)  # noqa: E731
    assert not change()
    emails.enqueue(b"1", id="a")
    assert change()
    lease = take(emails)
    assert not change(), "it runs, and nothing waits behind it"
    emails.enqueue(b"2", id="a")
    assert change()
    assert emails.complete(lease)
    assert (record(emails).data, record(emails).limits.max_failures) == (b"2", 1)
    assert emails.enqueue(b"3", id="a", if_exists="keep").status is Status.KEPT
    assert record(emails).data == b"2"


def test_a_job_can_be_looked_at_wherever_it_is(emails: Queue) -> None:
    emails.enqueue(b"1", id="a")
    lease = take(emails, holder="worker-1")
    emails.enqueue(b"2", id="a", delay=60)
    emails.enqueue(b"3", id="b", delay=60)
    emails.enqueue(b"4", id="c")
    leased, blocked, scheduled, ready = (
        emails.jobs(state).jobs for state in ("running", "blocked", "scheduled", "ready")
    )
    assert [(job.id, job.data, job.holder, job.fence) for job in leased] == [("a", b"1", "worker-1", lease.fence)]
    assert [(job.id, job.data, job.state) for job in blocked] == [("a", b"2", State.BLOCKED)]
    assert [(job.id, job.data) for job in scheduled] == [("b", b"3")]
    assert [(job.id, job.data, job.run_at) for job in ready] == [("c", b"4", None)]
    assert record(emails) == leased[0]
    assert record(emails, "b") == scheduled[0]
    counts = emails.counts()
    assert (counts.ready, counts.scheduled, counts.blocked, counts.running) == (1, 1, 1, 1)
    for state, count in (("ready", 1), ("scheduled", 1), ("blocked", 1)):
        assert emails.purge(state) == count
    assert emails.complete(lease)
    assert emails.counts().waiting == 0
