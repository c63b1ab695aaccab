"""Run times: a job is never run before its own, and comes on time after."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.contract.leasing import drain, take
from tests.support.waiting import FOREVER_S
from windlass import Queue, RawJob, State

pytestmark = pytest.mark.needs("RUN_TIME")

Later = Callable[[float], None]


@pytest.mark.serves("Q8")
def test_a_job_never_runs_before_its_time(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", run_at=time.time() + 60)
    for _ in range(3):
        assert queue.lease() is None
        later(19)
    assert queue.lease() is None
    later(4)
    assert take(queue).id == "a"


@pytest.mark.serves("Q8")
@pytest.mark.parametrize("delay", [90, 90.0, "90s", "1m30s", "1.5m", timedelta(seconds=90)])
def test_a_delay_counts_from_the_servers_now(queue: Queue, later: Later, delay: float | str | timedelta) -> None:
    queue.enqueue(b"", delay=delay)
    later(89)
    assert queue.lease() is None
    later(2)
    assert queue.lease() is not None


@pytest.mark.serves("Q8")
@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-9)), timezone(timedelta(hours=5, minutes=30))])
def test_a_run_time_may_be_a_datetime_of_any_zone(queue: Queue, zone: timezone) -> None:
    moment = datetime.now(zone) + timedelta(hours=1)
    queue.enqueue(b"", id="a", run_at=moment)
    job = queue.get("a")
    assert job is not None
    assert job.run_at is not None
    assert job.run_at == pytest.approx(moment.timestamp(), abs=0.002)
    assert job.run_at >= moment.timestamp() - 1e-6, "rounded up: never before"


@pytest.mark.parametrize("ago", [0.001, 60.0, 1e9])
@pytest.mark.needs("ORDER")
def test_a_run_time_in_the_past_is_now(queue: Queue, ago: float) -> None:
    queue.enqueue(b"", id="before")
    queue.enqueue(b"", id="past", run_at=time.time() - ago)
    queue.enqueue(b"", id="after")
    assert queue.counts().scheduled == 0
    assert drain(queue) == ["before", "past", "after"]


def test_no_delay_is_no_delay(queue: Queue) -> None:
    queue.enqueue_many([RawJob(b"", id="a", delay=0), RawJob(b"", id="b", delay=-5), RawJob(b"", id="c", delay=None)])
    assert drain(queue) == ["a", "b", "c"]


@pytest.mark.serves("W8")
@pytest.mark.needs("ORDER")
def test_a_hundred_jobs_of_one_run_time_come_in_the_order_of_their_enqueueing(queue: Queue, later: Later) -> None:
    when = time.time() + 60
    # Names that sort against the order in which they come.
    ids = [f"{(7919 * number) % 100:02}" for number in range(100)]
    for id in ids[:50]:
        queue.enqueue(b"", id=id, run_at=when)
    queue.enqueue_many([RawJob(b"", id=id, run_at=when) for id in ids[50:]])
    later(61)
    assert drain(queue) == ids


def test_jobs_come_in_the_order_of_their_run_times(queue: Queue, later: Later) -> None:
    for delay in (50, 20, 40, 10, 30):
        queue.enqueue(b"", id=f"{delay}", delay=delay)
    later(25)
    assert drain(queue) == ["10", "20"]
    later(30)
    assert drain(queue) == ["30", "40", "50"]


@pytest.mark.needs("PRIORITY")
def test_among_the_due_the_priority_decides(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="early-9", delay=10, priority=9)
    queue.enqueue(b"", id="late-0", delay=20, priority=0)
    queue.enqueue(b"", id="now-5")
    later(21)
    assert [(lease.id, lease.priority) for lease in queue.lease_many(5)] == [
        ("late-0", 0),
        ("now-5", 5),
        ("early-9", 9),
    ]


@pytest.mark.needs("ORDER")
def test_what_was_due_goes_before_what_came_later(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="scheduled", delay=10)
    queue.enqueue(b"", id="before")
    later(11)
    queue.enqueue(b"", id="after")
    assert drain(queue) == ["before", "scheduled", "after"]


@pytest.mark.needs("PRIORITY")
def test_a_scheduled_job_keeps_all_its_options(queue: Queue, later: Later) -> None:
    queue.enqueue(b"data", id="a", delay=10, priority=7, max_failures=1, max_stalls=2, min_backoff=3, max_backoff=4)
    waiting = queue.get("a")
    assert waiting is not None
    assert (waiting.state, waiting.priority, waiting.data) == (State.SCHEDULED, 7, b"data")
    later(11)
    due = queue.get("a")
    assert due is not None
    assert (due.state, due.priority) == (State.READY, 7), "due is ready, before anybody has touched it"
    lease = take(queue)
    limits = lease.limits
    assert (lease.data, lease.priority) == (b"data", 7)
    assert (limits.max_failures, limits.max_stalls, limits.min_backoff, limits.max_backoff) == (1, 2, 3, 4)


@pytest.mark.needs("ORDER")
def test_more_jobs_fall_due_at_once_than_one_call_can_take(queue: Queue, later: Later) -> None:
    queue.enqueue_many(RawJob(b"%d" % number, delay=10) for number in range(2300))
    later(11)
    came: list[int] = []
    while leases := queue.lease_many(1000):
        came += [int(lease.data) for lease in leases]
    assert came == list(range(2300))


@pytest.mark.serves("Q8")
def test_a_waiter_wakes_on_time_for_a_scheduled_job(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.queue.LEASE_WAIT_POLL_S", FOREVER_S)
    when = time.time() + 0.4
    queue.enqueue(b"", run_at=when)
    take(queue, wait=FOREVER_S)
    # The server's clock and ours are the same one here.
    assert time.time() - when + 0.001 >= 0


def test_a_job_may_be_set_for_the_last_day_of_the_year_9999(queue: Queue) -> None:
    moment = datetime(9999, 12, 31, tzinfo=UTC)
    queue.enqueue(b"", id="a", run_at=moment)
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.run_at) == (State.SCHEDULED, moment.timestamp())
    assert queue.lease() is None
