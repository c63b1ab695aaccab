"""Byte for byte: the keys, types and values of a queue after each verb, as the document has them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.compat.queasy.conftest import Later, Look
from tests.contract.leasing import take
from tests.support.internals import perform, settle
from tests.support.waiting import LIMIT_S
from windlass import Lease, Limits, Queue, RawJob, Status
from windlass.values.outcome import Broken, Crashed, NoFailureHandler, Outcome, Released, Retried, UnknownTask

NOBODY = -9007199254740991.0


def job(id: str = "a", data: str = "1", **more: str) -> dict[str, str]:
    """The hash of a plain job."""
    return {
        "id": id,
        "data": data,
        "runAt": "0",
        "maxFailures": "10",
        "maxStalls": "3",
        "minBackoff": "2000",
        "maxBackoff": "300000",
        "failureCount": "0",
        "stallCount": "0",
        **more,
    }


def start(queue: Queue, **how: Any) -> Lease:
    queue.enqueue(b"1", id="a")
    return take(queue, **how)


def register(queue: Queue, holder: str = "worker-1", limits: Limits | None = None) -> None:
    """A worker with a failure handler."""
    chosen = limits or Limits(5, 6, 7.0, 8.0)
    perform(queue, lambda layout: layout.beat(holder, 10, register=True, failure_handler=chosen))


# -- waiting ---------------------------------------------------------------------------------------


def test_a_job_is_an_id_by_its_run_time_and_a_hash(emails: Queue, look: Look) -> None:
    assert emails.enqueue_json({"to": "ann"}, id="a").status is Status.ADDED
    assert look() == {":waiting": {"a": 0}, ":waiting_job:a": job(data='{"to":"ann"}')}


def test_a_random_id_is_like_any_other(emails: Queue, look: Look) -> None:
    id = emails.enqueue(b"[]").id
    assert look() == {":waiting": {id: 0}, f":waiting_job:{id}": job(id, "[]")}


def test_options_are_fields_and_times_are_milliseconds(emails: Queue, look: Look) -> None:
    emails.enqueue(b'"x"', id="a:b", run_at=4102444800.5, max_failures=1, max_stalls=2, min_backoff=0.5, max_backoff=4)
    assert look() == {
        ":waiting": {"a:b": 4102444800500},
        ":waiting_job:a:b": job(
            "a:b",
            '"x"',
            runAt="4102444800500",
            maxFailures="1",
            maxStalls="2",
            minBackoff="500",
            maxBackoff="4000",
            limited="true",
        ),
    }


def test_many_jobs_go_in_one_call(emails: Queue, look: Look) -> None:
    emails.enqueue_many([RawJob(b"1", id="a"), RawJob(b"2", id="b")])
    assert look() == {":waiting": {"a": 0, "b": 0}, ":waiting_job:a": job(), ":waiting_job:b": job("b", "2")}


def test_an_update_sets_the_fields_it_may_and_the_score_goes_with_the_run_time(emails: Queue, look: Look) -> None:
    emails.enqueue(b"1", id="a", run_at=4102444800)
    assert emails.enqueue(b"2", id="a", max_failures=4, update_data=False, update_run_at=False).status is Status.UPDATED
    assert look() == {
        ":waiting": {"a": 4102444800000},
        ":waiting_job:a": job(runAt="4102444800000", maxFailures="4", limited="true"),
    }
    assert emails.update("a", run_at=4102444900, when="later", data=b"3")
    assert look() == {
        ":waiting": {"a": 4102444900000},
        ":waiting_job:a": job(data="3", runAt="4102444900000", maxFailures="4", limited="true"),
    }


def test_a_cancelled_job_leaves_nothing(emails: Queue, look: Look) -> None:
    emails.enqueue(b"1", id="a")
    assert emails.cancel("a")
    assert look() == {}


# -- active ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["worker-1", None])
def test_a_lease_moves_the_hash_and_locks_it(emails: Queue, look: Look, holder: str | None) -> None:
    began = int(time.time() * 1000)  # the server's times are whole milliseconds too
    lease = start(emails, seconds=10, holder=holder)
    worker = holder or f".{lease.fence}"
    found = look()
    deadline = found[":active"].pop(f"a:{worker}")
    assert began + 10_000 <= deadline <= time.time() * 1000 + 10_000
    assert found == {":active": {}, ":active_job:a": job(lockedBy=worker)}


def test_a_heartbeat_moves_the_deadline(emails: Queue, look: Look) -> None:
    lease = start(emails, seconds=10, holder="worker-1")
    first = look()
    assert emails.beat("worker-1", 60)
    second = look()
    assert second[":active"]["a:worker-1"] >= first[":active"]["a:worker-1"] + 49_000
    assert second[":active_job:a"] == first[":active_job:a"]
    assert emails.complete(lease)


def test_a_completed_job_leaves_nothing(emails: Queue, look: Look) -> None:
    assert emails.complete(start(emails))
    assert look() == {}


def test_a_blocked_job_has_a_minus_and_says_how_to_merge_it(emails: Queue, look: Look) -> None:
    lease = start(emails, holder="worker-1")
    active = job(lockedBy="worker-1")
    assert emails.enqueue(b"2", id="a", run_at=4102444800).status is Status.BLOCKED
    found = look()
    assert found[":active_job:a"] == active
    assert found[":waiting"] == {"a": -4102444800000}
    assert found[":waiting_job:a"] == job(data="2", runAt="4102444800000"), "a flag that is set is not written"
    emails.enqueue(b"3", id="a", update_data=False, update_run_at="earlier", max_stalls=1)
    found = look()
    assert found[":waiting"] == {"a": -1}, "a run time of 0 has no sign of its own"
    assert found[":waiting_job:a"] == job(data="2", maxStalls="1", limited="true")
    assert emails.complete(lease)
    assert look() == {":waiting": {"a": 0}, ":waiting_job:a": job(data="2", maxStalls="1", limited="true")}


def test_a_blocked_job_says_what_it_must_not_update(emails: Queue, look: Look) -> None:
    lease = start(emails, holder="worker-1")
    emails.enqueue(b"2", id="a", update_data=False, update_max_stalls=False, update_run_at="later")
    written = job(data="2", updateData="false", updateMaxStalls="false", updateRunAt="ifLater", resetCounts="false")
    del written["failureCount"], written["stallCount"]
    assert look()[":waiting_job:a"] == written, "a count would be an update of a count"
    emails.enqueue(b"3", id="a", update_data=False, update_run_at=False, reset_counts=True)
    written = job(data="2", updateData="false", updateRunAt="ifLater", resetCounts="true")
    assert look()[":waiting_job:a"] == written
    emails.enqueue(b"4", id="a")
    assert look()[":waiting_job:a"] == job(data="4")
    assert emails.complete(lease)
    assert look()[":waiting_job:a"] == job(data="4")


def test_a_job_that_was_blocked_has_counts(emails: Queue, look: Look) -> None:
    lease = start(emails)
    emails.enqueue(b"2", id="a", reset_counts=False)
    assert emails.complete(lease)
    assert look()[":waiting_job:a"] == job(data="2")


# -- coming back -----------------------------------------------------------------------------------

BACK: dict[str, tuple[Callable[[Lease], Outcome], dict[str, str]]] = {
    "release": (Released, {}),
    "retry": (lambda lease: Retried(lease, ("at", 4102444800000), "no"), {"failureCount": "1", "note": "no"}),
    "crash": (lambda lease: Crashed(lease, "signal 9", True), {"stallCount": "1", "note": "signal 9"}),
}


@pytest.mark.parametrize("how", BACK)
def test_what_comes_back_is_the_hash_it_was_with_its_counts(emails: Queue, look: Look, how: str) -> None:
    lease = start(emails, holder="worker-1")
    outcome, more = BACK[how]
    assert settle(emails, outcome(lease)) == (True,)
    run_at = 4102444800000 if how == "retry" else 0
    assert look() == {":waiting": {"a": run_at}, ":waiting_job:a": job(runAt=str(run_at), **more)}


def test_a_stalled_job_comes_back_charged(emails: Queue, look: Look, later: Later) -> None:
    start(emails, seconds=10)
    later(11)
    assert emails.clean().recovered == 1
    assert look() == {":waiting": {"a": 0}, ":waiting_job:a": job(stallCount="1")}


def test_what_cannot_be_run_here_waits_five_minutes_uncharged(emails: Queue, look: Look) -> None:
    ends: list[Callable[[Lease], Outcome]] = [
        lambda lease: Broken(lease, "no task"),
        lambda lease: UnknownTask(lease, "task"),
    ]
    for end in ends:
        lease = start(emails)
        assert settle(emails, end(lease)) == (True,)
        found = look()
        assert found[":waiting"]["a"] == pytest.approx((time.time() + 300) * 1000, abs=1000 * LIMIT_S)
        assert found[":waiting_job:a"].pop("note") in (
            "no task",
            "a worker did not know the task task; the job waits for one that does",
        )
        assert found[":waiting_job:a"] == job(runAt=f"{found[':waiting']['a']:.0f}")
        assert emails.cancel("a")


def test_a_blocked_job_is_merged_into_the_one_that_comes_back(emails: Queue, look: Look) -> None:
    lease = start(emails)
    emails.enqueue(b"2", id="a", max_stalls=7, update_run_at=False, reset_counts=False)
    assert emails.retry(lease, run_at=4102444800)
    assert look() == {
        ":waiting": {"a": 4102444800000},
        ":waiting_job:a": job(data="2", runAt="4102444800000", maxStalls="7", failureCount="1", limited="true"),
    }


# -- failed for good -------------------------------------------------------------------------------


def test_without_a_handler_a_job_that_failed_is_gone(emails: Queue, look: Look) -> None:
    assert emails.fail(start(emails), "no")
    assert look() == {}


def test_a_handler_is_a_placeholder_that_goes_with_its_worker(emails: Queue, look: Look) -> None:
    register(emails)
    register(emails, "worker-2")
    assert look() == {"-fail:waiting": {"windlass:worker-1": NOBODY, "windlass:worker-2": NOBODY}}
    perform(emails, lambda layout: layout.unregister_holder("worker-1"))
    assert look() == {"-fail:waiting": {"windlass:worker-2": NOBODY}}
    perform(emails, lambda layout: layout.unregister_holder("worker-2"))
    assert look() == {}


def test_a_failure_is_a_job_of_the_same_id_in_the_fail_queue(emails: Queue, look: Look) -> None:
    register(emails)
    emails.enqueue(b"[1]", id="a", max_failures=4)
    assert emails.fail(take(emails), "user deleted")
    found = look()
    assert found["-fail:waiting"] == {"windlass:worker-1": NOBODY, "a": 0}
    failure = found["-fail:waiting_job:a"]
    assert set(found) == {"-fail:waiting", "-fail:waiting_job:a"}
    assert json.loads(failure.pop("error")) == {"name": "Error", "message": "user deleted", "reason": "failed"}
    told = json.loads(failure.pop("job"))
    assert told.pop("failedAt") == pytest.approx(time.time() * 1000, abs=1000 * LIMIT_S)
    assert told == {
        "maxFailures": 4,
        "maxStalls": 3,
        "minBackoff": 2000,
        "maxBackoff": 300000,
        "failureCount": 0,
        "stallCount": 0,
    }
    assert failure == job(data="[1]", maxFailures="5", maxStalls="6", minBackoff="7000", maxBackoff="8000")
    lease = take(emails, holder="worker-1")
    assert set(look()) == {"-fail:active", "-fail:active_job:a", "-fail:waiting"}
    assert list(look()["-fail:active"]) == ["a:worker-1"]
    assert settle(emails, NoFailureHandler(lease)) == (True,)
    assert look() == {"-fail:waiting": {"windlass:worker-1": NOBODY}}


def test_a_purge_leaves_nothing(emails: Queue, look: Look) -> None:
    register(emails)
    start(emails)
    emails.enqueue(b"1", id="a")
    emails.enqueue(b"1", id="b")
    assert emails.fail(take(emails))
    emails.enqueue(b"1", id="c", delay=60)
    assert emails.purge() == 4
    assert look() == {}
