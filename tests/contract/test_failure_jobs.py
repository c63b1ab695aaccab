"""Jobs that fail for good and are caught: the failure becomes, in the same step, a job for a failure handler."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.contract.leasing import drain, take
from tests.support.internals import keep_at_most, layout_of, perform, settle
from tests.support.waiting import LIMIT_S
from windlass import Counts, JobRecord, Lease, Limits, Queue, State
from windlass.values.job import LIMITED
from windlass.values.outcome import Broken, Completed, Crashed, Failed, NoFailureHandler, Outcome

pytestmark = pytest.mark.needs("FAILURE_HANDLERS", "DEAD")

Later = Callable[[float], None]
HANDLER = Limits(max_failures=1, max_stalls=2, min_backoff=0.5, max_backoff=9.0)


def register(queue: Queue, limits: Limits = HANDLER) -> None:
    """From now on failures on this queue are caught."""
    perform(queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=limits))


@pytest.fixture
def catching(raw_queue: Queue) -> Queue:
    """A queue on which a failure handler is known."""
    register(raw_queue)
    return raw_queue


def caught(queue: Queue) -> tuple[Lease, JobRecord]:
    """The lease on the next failure, and the job it tells of."""
    lease = take(queue)
    assert lease.is_failure_job
    return lease, layout_of(queue).failure(lease)


def die(queue: Queue, **options: int) -> None:
    queue.enqueue(b"data", id="a", **options)  # type: ignore[arg-type]
    assert queue.fail(take(queue), "user deleted")


# -- how a failure is caught -----------------------------------------------------------------------


def test_without_a_handler_a_failed_job_is_dead(raw_queue: Queue) -> None:
    perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True))
    die(raw_queue)
    counts = raw_queue.counts()
    assert (counts.ready, counts.dead) == (0, 1)


def test_a_failed_job_becomes_a_job_for_the_handler(catching: Queue) -> None:
    catching.enqueue(b"\x00data", id="ä", priority=3, max_failures=4, max_stalls=1, min_backoff=7)
    assert catching.retry(take(catching), delay=0, message="once")
    assert catching.fail(take(catching), "user deleted — für immer")
    counts = catching.counts()
    assert (counts.ready, counts.dead, counts.running) == (1, 0, 0)
    assert catching.get("ä") is None
    lease, record = caught(catching)
    assert lease.id.startswith("failure-")
    assert (lease.limits, lease.attempt, lease.priority, lease.suspect) == (HANDLER, 1, 3, False)
    assert record == JobRecord(
        catching.name,
        "ä",
        State.DEAD,
        b"\x00data",
        3,
        failures=2,
        limits=Limits(4, 1, 7.0, 300.0),
        reason="failed",
        message="user deleted — für immer",
        died_at=record.died_at,
        marks=LIMITED,
    )
    assert record.died_at == pytest.approx(time.time(), abs=LIMIT_S)
    assert catching.complete(lease)
    assert catching.counts() == Counts(0, 0, 0, 0, 0, holders=1), "a handled failure leaves nothing behind"


def test_the_last_forgiven_failure_is_caught(catching: Queue) -> None:
    catching.enqueue(b"", id="a", max_failures=0)
    assert catching.retry(take(catching), message="the last straw")
    _, record = caught(catching)
    assert (record.id, record.reason, record.message, record.failures) == ("a", "failed", "the last straw", 1)


def test_a_crash_is_caught(catching: Queue) -> None:
    catching.enqueue(b"", id="a", max_stalls=0)
    assert settle(catching, Crashed(take(catching), "killed by signal 11", True)) == (True,)
    _, record = caught(catching)
    assert (record.id, record.reason, record.message, record.stalls) == ("a", "crashed", "killed by signal 11", 1)


@pytest.mark.serves("Q5")
def test_a_stall_is_caught_by_whoever_sweeps(catching: Queue, later: Later) -> None:
    catching.enqueue(b"data", id="a", max_stalls=0, priority=1)
    take(catching, seconds=10)
    later(11)
    assert catching.clean().recovered == 1
    lease, record = caught(catching)
    assert (record.id, record.reason, record.data, record.stalls) == ("a", "stalled", b"data", 1)
    assert record.message is not None
    assert "max_stalls" in record.message
    assert lease.priority == 1


def test_a_broken_job_is_not_caught(catching: Queue) -> None:
    """There is nothing a handler could be called with: it stays among the broken."""
    catching.enqueue(b"\xff", id="a")
    assert settle(catching, Broken(take(catching), "not JSON")) == (True,)
    counts = catching.counts()
    assert (counts.ready, counts.broken) == (0, 1)


def test_failures_come_in_the_order_in_which_the_jobs_failed(catching: Queue) -> None:
    for id in "cab":
        catching.enqueue(b"", id=id)
    leases = catching.lease_many(3)
    assert settle(catching, *map(Failed, leases)) == (True, True, True)
    found = catching.lease_many(5)
    assert [layout_of(catching).failure(lease).id for lease in found] == ["c", "a", "b"]
    assert len({lease.id for lease in found}) == 3


def test_a_new_job_of_the_id_does_not_disturb_the_failure(catching: Queue) -> None:
    catching.enqueue(b"old", id="a")
    lease = take(catching)
    catching.enqueue(b"behind it", id="a")
    assert catching.fail(lease, "no")
    first, second = catching.lease_many(5)
    assert first.is_failure_job
    assert layout_of(catching).failure(first).data == b"old"
    assert (second.id, second.data, second.is_failure_job) == ("a", b"behind it", False)


def test_a_cancelled_job_that_fails_is_gone(catching: Queue) -> None:
    catching.enqueue(b"", id="a")
    lease = take(catching)
    assert catching.cancel("a", running=True)
    assert catching.fail(lease, "no")
    assert catching.counts() == Counts(0, 0, 0, 0, 0, holders=1)


def test_a_lost_lease_makes_no_failure(catching: Queue, later: Later) -> None:
    catching.enqueue(b"", id="a")
    sleeper = take(catching, seconds=10)
    later(11)
    successor = take(catching)
    assert not catching.fail(sleeper, "no")
    assert catching.complete(successor)
    assert catching.counts() == Counts(0, 0, 0, 0, 0, holders=catching.counts().holders)


def test_the_handlers_limits_are_those_registered_last(catching: Queue) -> None:
    register(catching, Limits(max_failures=0))
    die(catching)
    assert take(catching).limits == Limits(max_failures=0)


# -- the failure's own life ------------------------------------------------------------------------


def test_a_failure_is_tried_again_and_stays_a_failure(catching: Queue, later: Later) -> None:
    die(catching)
    lease, first = caught(catching)
    assert catching.retry(lease, delay=0, message="the handler raised")
    lease, second = caught(catching)
    assert (lease.failures, second) == (1, first)
    assert catching.release(lease)
    lease = take(catching, seconds=10)
    assert lease.is_failure_job
    later(11)
    lease, third = caught(catching)
    assert (lease.stalls, third) == (1, first)
    assert settle(catching, Crashed(lease, "", False)) == (True,)
    lease, fourth = caught(catching)
    assert lease.suspect
    assert fourth == first
    assert catching.complete(lease)


def ends_for_good(lease: Lease) -> dict[str, Outcome]:
    return {"failed": Failed(lease, "handler"), "crashed": Crashed(lease, "handler", True)}


@pytest.mark.parametrize("end", ["failed", "crashed"])
def test_a_failure_that_fails_for_good_is_dead_and_not_caught_again(raw_queue: Queue, end: str) -> None:
    register(raw_queue, Limits(max_failures=0, max_stalls=0))
    die(raw_queue)
    lease, _ = caught(raw_queue)
    assert settle(raw_queue, ends_for_good(lease)[end]) == (True,)
    counts = raw_queue.counts()
    assert (counts.ready, counts.dead) == (0, 1)
    (record,) = raw_queue.jobs("dead").jobs
    assert (record.id, record.reason, record.message) == (lease.id, end, "handler")
    assert record.data == lease.data


def test_a_revived_failure_is_a_failure(catching: Queue) -> None:
    die(catching)
    lease, first = caught(catching)
    assert catching.fail(lease, "the handler raised")
    assert catching.revive(lease.id) == [True]
    lease, second = caught(catching)
    assert (lease.attempt, second) == (1, first)


@pytest.mark.parametrize("stage", ["unhandled", "revived"])
def test_a_failure_that_no_handler_wants_leaves_the_job_among_the_dead(catching: Queue, stage: str) -> None:
    die(catching, max_failures=4, priority=2)
    lease, expected = caught(catching)
    assert settle(catching, NoFailureHandler(lease)) == (True,)
    assert catching.get(lease.id) is None
    assert catching.get("a") == expected
    counts = catching.counts()
    assert (counts.ready, counts.dead) == (0, 1)
    assert catching.audit(repair=True).repaired == 0
    if stage == "revived":
        assert catching.revive("a") == [True]
        again = take(catching)
        assert (again.id, again.data, again.attempt, again.is_failure_job) == ("a", b"data", 1, False)


def test_the_dead_stay_bounded_when_no_handler_wants_them(catching: Queue) -> None:
    keep_at_most(catching, dead=2)
    for id in "abc":
        catching.enqueue(b"", id=id)
    assert all(settle(catching, *map(Failed, catching.lease_many(3))))
    assert all(settle(catching, *map(NoFailureHandler, catching.lease_many(3))))
    assert [record.id for record in catching.jobs("dead").jobs] == ["c", "b"]
    assert catching.get("a") is None


def test_a_failure_that_was_cancelled_is_gone(catching: Queue) -> None:
    die(catching)
    (record,) = catching.jobs("ready").jobs
    assert catching.cancel(record.id)
    assert catching.counts() == Counts(0, 0, 0, 0, 0, holders=1)


def test_failures_and_jobs_are_worked_off_together(catching: Queue) -> None:
    catching.enqueue_many([b""] * 20)
    for number, lease in enumerate(catching.lease_many(20)):
        assert settle(catching, Failed(lease) if number % 2 else Completed(lease)) == (True,)
    catching.enqueue_many([b""] * 3)
    leases = catching.lease_many(20)
    assert [lease.is_failure_job for lease in leases] == [True] * 10 + [False] * 3
    assert all(catching.complete_many(leases))
    assert drain(catching) == []


def test_a_purge_forgets_the_handler(catching: Queue) -> None:
    catching.purge()
    die(catching)
    assert catching.counts().dead == 1
    register(catching)
    die(catching)
    assert take(catching).is_failure_job, "until it shows its next sign of life"
