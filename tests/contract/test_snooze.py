"""A job that puts itself off: counted apart, never charged, and bounded by `max_snoozes`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.leasing import drain, take
from tests.support.internals import settle
from windlass import JobRecord, Lease, Queue, State
from windlass.errors import InvalidOption
from windlass.values.defaults import MAX_SNOOZES
from windlass.values.outcome import Crashed, Failed, Snoozed

pytestmark = pytest.mark.needs("MAX_SNOOZES")
Later = Callable[[float], None]
HOUR_MS = 3_600_000


def record_of(queue: Queue, id: str = "a") -> JobRecord:
    job = queue.get(id)
    assert job is not None
    return job


def snooze(queue: Queue, lease: Lease, when: tuple[str, int] = ("in", 0), message: str = "") -> None:
    assert settle(queue, Snoozed(lease, when, message)) == (True,)


def test_a_snoozed_job_waits_for_its_time_and_is_not_charged(queue: Queue, later: Later) -> None:
    queue.enqueue(b"data", id="a", max_failures=0, max_stalls=0, priority=2)
    before = time.time()
    snooze(queue, take(queue), ("in", HOUR_MS), "rate limit")
    job = record_of(queue)
    assert (job.state, job.snoozes, job.failures, job.stalls) == (State.SCHEDULED, 1, 0, 0)
    assert (job.message, job.priority, job.data) == ("rate limit", 2, b"data")
    assert job.run_at is not None
    assert before + 3600 <= job.run_at + 0.001
    assert queue.lease() is None
    later(3601)
    lease = take(queue)
    assert (lease.id, lease.snoozes, lease.failures, lease.stalls, lease.attempt) == ("a", 1, 0, 0, 1)


def test_it_snoozes_until_a_time(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    at_ms = int(time.time() + 7200) * 1000
    snooze(queue, take(queue), ("at", at_ms))
    assert record_of(queue).run_at == at_ms / 1000


def test_snoozes_are_counted_and_the_other_counters_stay(queue: Queue) -> None:
    queue.enqueue(b"", id="a", tags=["eu"])
    assert queue.retry(take(queue), delay=0)
    assert settle(queue, Crashed(take(queue), "killed", True)) == (True,)
    for _ in range(3):
        snooze(queue, take(queue))
    lease = take(queue)
    assert (lease.snoozes, lease.failures, lease.stalls, lease.tags) == (3, 1, 1, ("eu",))
    assert queue.complete(lease)
    assert queue.audit(repair=True).repaired == 0


def test_a_suspect_that_snoozes_is_none_any_more(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    assert settle(queue, Crashed(take(queue), "killed", is_cause=False)) == (True,)
    lease = take(queue)
    assert lease.suspect
    snooze(queue, lease)
    assert not take(queue).suspect


def test_a_snoozed_job_does_not_expire(queue: Queue, later: Later) -> None:
    """Its attempt may have done a part of the work."""
    queue.enqueue(b"", id="a", expires="1h")
    snooze(queue, take(queue, seconds=60), ("in", 2 * HOUR_MS))
    later(7201)
    assert drain(queue) == ["a"]


def test_a_cancelled_job_that_snoozes_is_gone(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    assert queue.cancel("a", running=True)
    snooze(queue, lease, ("in", HOUR_MS))
    assert queue.get("a") is None


def test_a_lost_lease_cannot_snooze(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue, seconds=5)
    later(6)
    queue.clean()
    assert settle(queue, Snoozed(lease, ("in", HOUR_MS))) == (False,)
    assert (record_of(queue).snoozes, record_of(queue).stalls) == (0, 1)


@pytest.mark.parametrize(
    ("options", "snoozes"),
    [
        ({}, 0),
        ({"reset_counts": False}, 1),
        ({"update_data": False}, 1),
        ({"update_data": False, "reset_counts": True}, 0),
        ({"tags": ["x"], "reset_counts": False}, 1),
    ],
)
@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
def test_the_count_is_reset_with_the_other_counters(
    queue: Queue, options: dict[str, Any], snoozes: int, running: bool
) -> None:
    queue.enqueue(b"1", id="a")
    snooze(queue, take(queue))
    lease = take(queue) if running else None
    queue.enqueue(b"2", id="a", **options)
    if lease is not None:
        assert queue.release(lease)
    assert record_of(queue).snoozes == snoozes


def test_an_update_keeps_the_count_and_a_revived_job_begins_anew(queue: Queue) -> None:
    queue.enqueue(b"", id="a", tags=["eu"])
    snooze(queue, take(queue))
    assert queue.update("a", priority=1, tags=["us"])
    assert (record_of(queue).snoozes, record_of(queue).tags) == (1, ("us",))
    assert settle(queue, Failed(take(queue), "no")) == (True,)
    assert record_of(queue).snoozes == 1, "its dead record tells it"
    assert queue.revive("a") == [True]
    assert (record_of(queue).snoozes, record_of(queue).tags) == (0, ("us",))


def test_a_job_has_its_own_bound(queue: Queue) -> None:
    for number in (0, 7):
        queue.enqueue(b"", id=str(number), max_snoozes=number)
        assert record_of(queue, str(number)).limits.max_snoozes == number
    queue.enqueue(b"", id="plain")
    assert record_of(queue, "plain").limits.max_snoozes == MAX_SNOOZES
    leases = queue.lease_many(3)
    assert [(lease.limits.max_snoozes, lease.limited) for lease in leases] == [
        (0, True), (7, True), (MAX_SNOOZES, False),
    ]  # fmt: skip
    queue.enqueue(b"", id="7", max_snoozes=0)
    (behind,) = queue.jobs(State.BLOCKED).jobs
    assert behind.limits.max_snoozes == 0
    assert queue.release(leases[1])
    assert queue.update("7", max_snoozes=3)
    assert record_of(queue, "7").limits.max_snoozes == 3


@pytest.mark.parametrize("number", [-1, 1.5, "2", True, None, 2**40])
def test_a_bound_that_is_none_is_refused(queue: Queue, number: Any) -> None:
    with pytest.raises(InvalidOption, match="max_snoozes"):
        queue.enqueue(b"", max_snoozes=number)
