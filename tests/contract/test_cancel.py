"""Cancelling: a waiting job is taken away; one that runs is told, and never comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.leasing import drain, take
from windlass import Counts, Queue, Status

Later = Callable[[float], None]
NOTHING = Counts(ready=0, scheduled=0, blocked=0, running=0, dead=0)


@pytest.mark.serves("W10", "Q9")
@pytest.mark.parametrize("delay", [None, pytest.param(60, marks=pytest.mark.needs("RUN_TIME"))])
@pytest.mark.parametrize("running", [False, pytest.param(True, marks=pytest.mark.needs("CANCEL_RUNNING"))])
@pytest.mark.needs("IDS", "LIMITS")
def test_a_waiting_job_is_taken_away(queue: Queue, delay: float | None, running: bool) -> None:
    queue.enqueue(b"", id="a", delay=delay, max_failures=3)
    queue.enqueue(b"", id="b")
    assert queue.cancel("a", running=running)
    assert not queue.cancel("a", running=running), "there is none any more"
    assert queue.get("a") is None
    assert drain(queue) == ["b"]
    assert queue.counts() == NOTHING


@pytest.mark.serves("Q9")
@pytest.mark.needs("CANCEL", "CANCEL_RUNNING", "IDS")
def test_there_may_be_nothing_to_cancel(queue: Queue) -> None:
    assert not queue.cancel("a")
    assert not queue.cancel("a", running=True)
    queue.enqueue(b"", id="a")
    assert queue.fail(take(queue))
    assert not queue.cancel("a"), "a dead job does not wait"
    assert queue.counts().dead == 1


@pytest.mark.serves("Q9")
@pytest.mark.needs("IDS")
def test_a_running_job_is_left_alone_unless_asked_for(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    assert not queue.cancel("a")
    assert queue.extend(lease, 30)
    assert queue.complete(lease)


@pytest.mark.serves("W10")
@pytest.mark.needs("IDS")
def test_a_retried_job_can_be_cancelled_with_all_it_left(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    assert queue.retry(take(queue), message="no luck")
    assert queue.cancel("a")
    assert queue.counts() == NOTHING
    queue.enqueue(b"", id="a")
    job = queue.get("a")
    assert job is not None
    assert (job.failures, job.message) == (0, None), "a new job of that id begins afresh"


@pytest.mark.serves("W10")
@pytest.mark.needs("CANCEL_RUNNING", "IDS")
def test_who_runs_a_cancelled_job_is_told(queue: Queue) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    assert queue.cancel("a", running=True)
    assert not queue.cancel("a", running=True), "it was told already"
    job = queue.get("a")
    assert job is not None
    assert job.cancelled
    assert not queue.extend(lease, 30)
    assert not queue.progress(lease, 0.5)
    assert queue.lease() is None, "it still runs: nobody else may begin it"
    assert queue.counts().running == 1


@pytest.mark.serves("W10")
@pytest.mark.parametrize("verb", ["complete", "release", "retry", "fail"])
@pytest.mark.needs("CANCEL_RUNNING", "IDS")
def test_a_cancelled_job_is_gone_however_its_attempt_ends(queue: Queue, later: Later, verb: str) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    assert queue.cancel("a", running=True)
    assert getattr(queue, verb)(lease) is True
    assert queue.counts() == NOTHING
    later(3600)
    assert queue.lease() is None
    assert queue.get("a") is None


@pytest.mark.serves("W10", "W14")
@pytest.mark.parametrize("holder", [None, "worker-1"])
@pytest.mark.needs("CANCEL_RUNNING", "IDS")
def test_a_cancelled_job_is_gone_when_its_holder_is_lost(queue: Queue, later: Later, holder: str | None) -> None:
    queue.enqueue(b"", id="a")
    take(queue, seconds=10, holder=holder)
    assert queue.cancel("a", running=True)
    later(11)
    queue.clean()
    assert queue.counts() == NOTHING
    assert queue.get("a") is None


@pytest.mark.serves("W10", "Q11")
@pytest.mark.needs("CANCEL_RUNNING", "IDS")
def test_cancelling_takes_the_running_and_the_blocked_one(queue: Queue) -> None:
    queue.enqueue(b"first", id="a")
    lease = take(queue)
    queue.enqueue(b"second", id="a")
    assert queue.cancel("a", running=True)
    assert queue.counts().blocked == 0
    assert queue.retry(lease, delay=0)
    assert queue.counts() == NOTHING


@pytest.mark.serves("W10", "Q11")
@pytest.mark.needs("CANCEL_RUNNING", "IDS")
def test_what_is_enqueued_after_the_cancelling_runs(queue: Queue) -> None:
    queue.enqueue(b"first", id="a")
    lease = take(queue)
    assert queue.cancel("a", running=True)
    assert queue.enqueue(b"second", id="a").status is Status.BLOCKED
    assert queue.retry(lease, delay=60)
    again = take(queue)
    assert (again.data, again.failures) == (b"second", 0)
    assert queue.extend(again, 30), "the cancelling was for the first one"
