"""`expires`: a job that has not started by then is dropped, and whoever waits for it is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.contract.leasing import drain, take
from tests.support.internals import perform, settle
from windlass import JobRecord, Queue, RawJob, State, Status
from windlass.errors import InvalidOption, InvalidTime
from windlass.storage.formats import MAX_ITEMS
from windlass.storage.port import LeaseRequest, Turn
from windlass.values.outcome import Crashed, UnknownTask

pytestmark = pytest.mark.needs("EXPIRES")
Later = Callable[[float], None]


def record_of(queue: Queue, id: str) -> JobRecord:
    job = queue.get(id)
    assert job is not None
    return job


def ask_for_jobs(queue: Queue) -> Turn:
    """One turn that asks for ten jobs, as a worker makes it."""
    return perform(queue, lambda layout: layout.turn((), LeaseRequest(want=10, seconds=30)))


def test_a_job_that_has_not_started_by_then_is_dropped_and_the_others_run(queue: Queue, later: Later) -> None:
    queue.enqueue(b"short", id="short", expires="10s")
    queue.enqueue(b"long", id="long", expires="1h")
    queue.enqueue(b"plain", id="plain")
    later(11)
    turn = ask_for_jobs(queue)
    assert ([lease.id for lease in turn.leases], turn.expired) == (["long", "plain"], ("short",))
    assert queue.get("short") is None
    assert queue.audit(repair=True).repaired == 0
    assert queue.complete_many(turn.leases) == [True, True]
    assert ask_for_jobs(queue).expired == ()


def test_a_raw_lease_waits_on_for_a_job_that_runs(queue: Queue, later: Later) -> None:
    queue.enqueue(b"old", id="old", expires="10s")
    later(11)
    assert queue.lease() is None
    assert queue.counts().ready == 0


def test_an_expiry_is_a_time_or_counts_from_the_run_time(queue: Queue) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    queue.enqueue(b"", id="at", expires=at)
    assert record_of(queue, "at").expires_at == at.timestamp()
    queue.enqueue(b"", id="run_at", run_at=at, expires="10m")
    assert record_of(queue, "run_at").expires_at == at.timestamp() + 600
    queue.enqueue(b"", id="delayed", delay="1h", expires=600)
    delayed = record_of(queue, "delayed")
    assert delayed.expires_at is not None
    assert delayed.run_at is not None
    assert delayed.expires_at == pytest.approx(delayed.run_at + 600, abs=0.002)
    queue.enqueue(b"", id="never")
    assert record_of(queue, "never").expires_at is None


def test_a_job_that_has_started_once_does_not_expire_any_more(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", expires="10s", max_failures=3)
    lease = take(queue)
    later(11)
    assert queue.retry(lease, delay=0)
    lease = take(queue)
    assert (lease.id, lease.failures) == ("a", 1)
    assert record_of(queue, "a").expires_at is None
    assert queue.fail(lease, "no")
    assert queue.revive("a") == [True]
    assert drain(queue) == ["a"]


def test_a_lost_lease_counts_as_a_start(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", expires="10s")
    take(queue, seconds=5)
    later(11)
    assert drain(queue) == ["a"]


def test_a_suspect_of_a_crash_has_started(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", expires="10s")
    assert settle(queue, Crashed(take(queue, seconds=60), "died", is_cause=False)) == (True,)
    later(11)
    assert drain(queue) == ["a"]


def test_a_released_job_has_not_started(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", expires="10s")
    assert queue.release(take(queue, seconds=60))
    later(11)
    assert ask_for_jobs(queue).expired == ("a",)


def test_scheduled_and_blocked_jobs_expire_when_their_turn_comes(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="scheduled", delay=5, expires="5s")
    queue.enqueue(b"1", id="blocked")
    first = take(queue, seconds=60)
    assert queue.enqueue(b"2", id="blocked", expires="10s").status is Status.BLOCKED
    assert record_of(queue, "blocked").state is not State.BLOCKED
    (blocked,) = queue.jobs(State.BLOCKED).jobs
    assert blocked.expires_at is not None
    later(11)
    assert queue.complete(first)
    assert sorted(ask_for_jobs(queue).expired) == ["blocked", "scheduled"]


def test_an_enqueue_replaces_the_expiry_and_an_update_changes_or_removes_it(queue: Queue, later: Later) -> None:
    queue.enqueue(b"1", id="a", expires="10s")
    assert queue.update("a", priority=1)
    assert record_of(queue, "a").expires_at is not None
    assert queue.update("a", expires=None)
    assert record_of(queue, "a").expires_at is None
    assert queue.update("a", expires="10s")
    queue.enqueue(b"2", id="a", expires="1h")
    later(11)
    assert drain(queue) == ["a"]
    queue.enqueue(b"1", id="b", expires="10s")
    queue.enqueue(b"2", id="b")
    later(11)
    assert drain(queue) == ["b"]


def test_a_job_that_has_started_gets_no_expiry_again(queue: Queue, later: Later) -> None:
    """Neither by a change that was blocked behind the attempt, nor by one that comes while the retry waits."""
    queue.enqueue(b"", id="a", expires="10s")
    lease = take(queue, seconds=60)
    assert queue.enqueue(b"", id="a", update_data=False, update_run_at=False, expires="10s").status is Status.BLOCKED
    assert queue.retry(lease, delay=5)
    assert record_of(queue, "a").expires_at is None
    assert queue.enqueue(b"", id="a", update_data=False, update_run_at=False, expires="10s").status is Status.UPDATED
    assert queue.update("a", expires="10s")
    assert (record_of(queue, "a").expires_at, record_of(queue, "a").failures) == (None, 1)
    later(30)
    assert drain(queue) == ["a"]


def test_a_blocked_job_that_expired_does_not_take_the_retry_of_the_running_one_with_it(
    queue: Queue, later: Later
) -> None:
    queue.enqueue(b"first", id="a")
    lease = take(queue, seconds=60)
    assert queue.enqueue(b"second", id="a", expires="10s").status is Status.BLOCKED
    later(11)
    assert queue.retry(lease, delay=0)
    again = take(queue)
    assert (again.data, again.failures) == (b"first", 1)
    assert queue.complete(again)
    assert queue.counts().waiting == 0


@pytest.mark.parametrize("options", [{}, {"if_exists": "keep"}, {"update_data": False}], ids=str)
@pytest.mark.parametrize("delay", [0, 5], ids=["ready", "scheduled"])
def test_an_expired_job_does_not_swallow_a_new_one(
    queue: Queue, later: Later, options: dict[str, Any], delay: int
) -> None:
    queue.enqueue(b"1", id="x", delay=delay, tags=["old"], expires="10s")
    later(delay + 11)
    assert queue.enqueue(b"2", id="x", expires="60s", **options).status is Status.ADDED
    assert (queue.audit().problems, queue.counts().waiting) == (0, 1)
    lease = take(queue)
    assert (lease.data, lease.tags) == (b"2", ())
    assert queue.complete(lease)
    queue.enqueue(b"3", id="x", expires="10s")
    later(20)
    assert queue.enqueue(b"4", id="x", **options).status is Status.ADDED
    assert (drain(queue), queue.counts().waiting) == (["x"], 0)


def test_a_new_job_leaves_no_entry_of_the_expired_one(queue: Queue, later: Later) -> None:
    queue.enqueue(b"1", id="was ready", expires="10s")
    queue.enqueue(b"1", id="was scheduled", delay=60, expires=datetime.now(UTC) + timedelta(seconds=10))
    later(11)
    assert queue.enqueue(b"2", id="was ready", delay=60).status is Status.ADDED
    assert queue.enqueue(b"2", id="was scheduled").status is Status.ADDED
    assert (queue.audit().problems, queue.counts().ready, queue.counts().scheduled) == (0, 1, 1)
    assert drain(queue) == ["was scheduled"]


def test_an_expired_job_behind_a_running_one_does_not_swallow_a_new_one(queue: Queue, later: Later) -> None:
    queue.enqueue(b"1", id="x")
    running = take(queue, seconds=60)
    assert queue.enqueue(b"2", id="x", tags=["old"], expires="10s").status is Status.BLOCKED
    later(11)
    assert not queue.update("x", data=b"no")
    assert queue.enqueue(b"3", id="x", update_data=False).status is Status.BLOCKED
    assert queue.complete(running)
    lease = take(queue)
    assert (lease.data, lease.tags) == (b"3", ())


def test_an_expired_job_cannot_be_changed(queue: Queue, later: Later) -> None:
    queue.enqueue(b"1", id="x", expires="10s")
    later(11)
    assert not queue.update("x", data=b"new", expires="1h")
    assert ask_for_jobs(queue).expired == ("x",)


def test_an_expiry_moves_with_the_run_time(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", delay=60)
    assert queue.update("a", expires="10s")
    queue.enqueue(b"", id="b", delay=60)
    queue.enqueue(b"", id="b", update_run_at="later", expires="10s")
    queue.enqueue(b"", id="c", expires="10s")
    assert queue.update("c", delay=60)
    queue.enqueue(b"", id="d", delay=90, expires="10s")
    assert queue.update("d", delay=60)
    for id in "abcd":
        job = record_of(queue, id)
        assert job.run_at is not None
        assert job.expires_at is not None
        assert job.expires_at - job.run_at == pytest.approx(10, abs=0.002)
    later(61)
    assert drain(queue) == ["a", "b", "c", "d"]


def test_an_expiry_moves_with_the_run_time_of_a_blocked_job(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="changed")
    changed = take(queue, seconds=600)
    queue.enqueue(b"", id="retried")
    retried = take(queue, seconds=600)
    queue.enqueue(b"", id="changed", delay=60)
    assert queue.update("changed", expires="10s")
    queue.enqueue(b"", id="retried", update_run_at=False, expires="10s")
    assert queue.retry(changed, delay=0)
    assert queue.retry(retried, delay=60)
    for id in ("changed", "retried"):
        job = record_of(queue, id)
        assert job.run_at is not None
        assert job.expires_at is not None
        assert job.expires_at - job.run_at == pytest.approx(10, abs=0.002)
    later(61)
    assert drain(queue) == ["changed", "retried"]


def test_a_time_to_expire_at_does_not_move(queue: Queue) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    queue.enqueue(b"", id="a", delay="1h", expires="10m")
    assert queue.update("a", expires=at)
    assert queue.update("a", delay="2h")
    assert record_of(queue, "a").expires_at == at.timestamp()


def test_a_duration_counts_from_now_if_the_run_time_has_passed(queue: Queue) -> None:
    queue.enqueue(b"", id="a", run_at=datetime.now(UTC) - timedelta(hours=1), expires="10m")
    assert drain(queue) == ["a"]


def test_a_job_that_expires_in_the_turn_that_parked_it_leaves_nothing(queue: Queue, later: Later) -> None:
    queue.enqueue(b"1", id="a", expires="10s")
    lease = take(queue, seconds=60)
    assert queue.enqueue(b"2", id="a", update_data=False).status is Status.BLOCKED
    later(11)
    outcome = UnknownTask(lease, "send")
    turn = perform(queue, lambda layout: layout.turn([outcome], LeaseRequest(want=1, seconds=30)))
    assert (turn.settled, turn.expired) == ((True,), ("a",))
    assert queue.audit().problems == 0


def test_expired_jobs_in_large_numbers_are_dropped_in_bounded_steps_and_the_next_job_comes_at_once(
    queue: Queue, later: Later
) -> None:
    count = 2 * MAX_ITEMS
    queue.enqueue_many([RawJob(b"", id=f"{number:05}", expires="10s") for number in range(count)])
    queue.enqueue(b"", id="last")
    later(11)
    turn = ask_for_jobs(queue)
    assert turn.leases == ()
    assert MAX_ITEMS <= len(turn.expired) < count
    assert take(queue, wait=0).id == "last"
    assert queue.counts().waiting == 0


def test_a_paused_queue_drops_nothing(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", expires="10s")
    queue.pause()
    later(11)
    assert ask_for_jobs(queue).expired == ()
    assert queue.counts().ready == 1
    queue.resume()
    assert ask_for_jobs(queue).expired == ("a",)


@pytest.mark.parametrize("expires", [0, -1, "soon", "0s", True, float("nan"), [], "10s ago"])
def test_a_bad_expiry_is_refused_and_nothing_is_added(queue: Queue, expires: Any) -> None:
    with pytest.raises(InvalidOption, match="expires"):
        queue.enqueue(b"", expires=expires)
    assert queue.counts().waiting == 0


def test_an_expiry_without_a_zone_or_before_the_run_time_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidTime, match=r"expires=.* has no time zone"):
        queue.enqueue(b"", expires=datetime(2030, 1, 1))
    with pytest.raises(InvalidTime, match="expires before it may run"):
        queue.enqueue(b"", run_at=datetime(2030, 1, 2, tzinfo=UTC), expires=datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidTime, match="expires before it may run"):
        queue.update("a", run_at=datetime(2030, 1, 2, tzinfo=UTC), expires=datetime(2030, 1, 1, tzinfo=UTC))
    assert queue.counts().waiting == 0
