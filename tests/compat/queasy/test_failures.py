"""Failure handlers: a job that failed for good becomes a job for one of them, or is gone where there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
import redis

from tests.compat.queasy.conftest import Later, Look
from tests.compat.queasy.peer import Peer
from tests.contract.leasing import take
from tests.support.internals import layout_of, perform, settle
from tests.support.moments import since
from tests.support.waiting import LIMIT_S
from windlass import Counts, JobRecord, Lease, Limits, Queue, State
from windlass.errors import CrashError, JobFailed, StallError
from windlass.values.outcome import Broken, Completed, Crashed, Failed, NoFailureHandler, Outcome, UnknownTask

pytestmark = pytest.mark.speaks("queasy", "Q5")
HANDLER = Limits(max_failures=50, max_stalls=2, min_backoff=0.5, max_backoff=9.0)


def register(queue: Queue, holder: str = "worker-1", limits: Limits = HANDLER) -> None:
    """A worker with a failure handler shows its first sign of life."""
    perform(queue, lambda layout: layout.beat(holder, 30, register=True, failure_handler=limits))


@pytest.fixture
def catching(emails: Queue) -> Queue:
    """The queue, with a handler on it."""
    register(emails)
    return emails


def caught(queue: Queue, holder: str | None = "worker-1") -> tuple[Lease, JobRecord]:
    """The lease on the next failure, and the job it tells of."""
    lease = take(queue, holder=holder)
    assert lease.is_failure_job
    return lease, layout_of(queue).failure(lease)


def die(queue: Queue, id: str = "a", data: bytes = b"1") -> None:
    queue.enqueue(data, id=id)
    assert queue.fail(take(queue, holder="other"), "user deleted")


ENDS: dict[str, tuple[Callable[[Lease], Outcome], str, int, int, type[JobFailed]]] = {
    "failed": (lambda lease: Failed(lease, "für immer"), "failed", 1, 0, JobFailed),
    "crashed": (lambda lease: Crashed(lease, "für immer", True), "crashed", 0, 1, CrashError),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_handler_gets_data_job_and_error(catching: Queue, end: str) -> None:
    outcome, reason, failures, stalls, error = ENDS[end]
    catching.enqueue(b'{"to": "ann"}', id="ä:1", max_failures=4, max_stalls=0, min_backoff=7)
    assert settle(catching, outcome(take(catching))) == (True,)
    assert catching.get("ä:1") is None
    lease, record = caught(catching)
    assert (lease.id, lease.attempt, lease.limits) == ("failure-ä:1", 1, HANDLER)
    assert record == JobRecord(
        "emails",
        "ä:1",
        State.DEAD,
        b'{"to": "ann"}',
        failures=failures,
        stalls=stalls,
        limits=Limits(4, 0, 7.0, 300.0),
        reason=reason,
        message="für immer",
        died_at=record.died_at,
    )
    assert record.died_at == pytest.approx(time.time(), abs=LIMIT_S)
    assert type(record.error()) is error
    assert catching.complete(lease)
    assert catching.counts() == Counts(0, 0, 0, 0, 0, holders=1)


def test_a_job_that_stalled_out_comes_with_a_stall_error(catching: Queue, later: Later) -> None:
    catching.enqueue(b"1", id="a", max_stalls=1)
    for _ in range(2):
        take(catching, seconds=10)
        later(11)
        assert catching.clean().recovered == 1
    _, record = caught(catching)
    assert (record.reason, record.stalls, record.failures) == ("stalled", 2, 0)
    assert type(record.error()) is StallError
    assert "max_stalls is 1" in str(record.error())


def test_the_last_forgiven_failure_is_caught(catching: Queue) -> None:
    catching.enqueue(b"1", id="a", max_failures=1)
    assert catching.retry(take(catching), delay=0, message="once")
    assert catching.retry(take(catching), delay=0, message="twice")
    _, record = caught(catching)
    assert (record.reason, record.failures, record.message) == ("failed", 2, "twice")


def test_a_failure_has_its_own_life_by_the_limits_of_its_handler(catching: Queue, later: Later) -> None:
    die(catching)
    lease, first = caught(catching)
    began = time.time()
    assert catching.retry(lease, message="the handler raised")
    (waiting,) = catching.jobs("scheduled").jobs
    assert (waiting.id, waiting.data, waiting.failures) == ("failure-a", b"1", 1)
    assert waiting.run_at == since(began, 0.5, doubt=0.3)
    later(1)
    lease, second = caught(catching)
    assert (lease.failures, second) == (1, first)
    assert catching.release(lease)
    lease, _ = caught(catching)
    assert settle(catching, Crashed(lease, "", True)) == (True,)
    lease, _ = caught(catching)
    assert (lease.failures, lease.stalls) == (1, 1)
    later(29)
    assert catching.beat("worker-1", 30)
    assert settle(catching, UnknownTask(lease, "task")) == (True,)
    assert catching.counts().scheduled == 1
    later(301)
    register(catching)
    lease, _ = caught(catching)
    assert catching.complete(lease)


def test_a_failure_that_stalls_comes_back_as_one(catching: Queue, later: Later) -> None:
    die(catching)
    for stalls in range(3):
        lease, record = caught(catching, holder=None)
        assert (lease.stalls, record.id) == (stalls, "a")
        later(31)
        register(catching)
        assert catching.clean().recovered == 1
    assert catching.counts().waiting + catching.counts().running == 0, "after max_stalls it is gone"


@pytest.mark.parametrize("end", [Failed, NoFailureHandler], ids=["failed", "unhandled"])
def test_a_failure_that_fails_or_that_nobody_wants_is_gone(
    catching: Queue, look: Look, end: Callable[[Lease], Outcome]
) -> None:
    before = look()
    die(catching)
    lease, _ = caught(catching)
    assert settle(catching, end(lease)) == (True,)
    assert look() == before


def test_two_failures_of_one_id_are_singletons_too(catching: Queue) -> None:
    die(catching, data=b"1")
    lease, _ = caught(catching)
    catching.enqueue(b"2", id="a")
    assert catching.fail(take(catching, holder="other"), "again")
    assert catching.counts().blocked == 1
    assert catching.lease(holder="worker-1") is None
    assert catching.complete(lease)
    _, record = caught(catching)
    assert (record.data, record.message) == (b"2", "again")


def test_a_job_and_its_failure_are_told_apart(catching: Queue) -> None:
    die(catching)
    catching.enqueue(b"2", id="a", delay=60)
    (failure,) = catching.jobs("ready").jobs
    assert (failure.id, failure.data) == ("failure-a", b"1")
    assert catching.get("failure-a") == failure
    found = catching.get("a")
    assert found is not None
    assert (found.state, found.data) == (State.SCHEDULED, b"2")
    assert catching.cancel("failure-a")
    assert not catching.cancel("failure-a")
    assert not catching.cancel("failure-windlass:worker-1"), "a placeholder is no job"
    assert catching.cancel("a")


def test_pages_show_failures_and_then_jobs(catching: Queue) -> None:
    for id in "abcde":
        die(catching, id)
    for id in "abcd":
        catching.enqueue(b"2", id=id)
    expected = [*(f"failure-{id}" for id in "abcde"), *"abcd"]
    for limit in (1, 2, 5, 7, 100):
        page = catching.jobs("ready", limit=limit)
        found = [job.id for job in page.jobs]
        while page.cursor:
            page = catching.jobs("ready", limit=limit, cursor=page.cursor)
            assert len(page.jobs) <= limit
            found += [job.id for job in page.jobs]
        assert found == expected, "in the order in which they are taken"
    assert [lease.id for lease in catching.lease_many(100)] == expected


# -- who gets it -----------------------------------------------------------------------------------


def test_a_worker_without_a_handler_gets_no_failure(catching: Queue) -> None:
    perform(catching, lambda layout: layout.beat("worker-2", 30, register=True))
    die(catching)
    assert catching.lease(holder="worker-2") is None
    assert take(catching, holder="worker-1").is_failure_job


def test_where_no_handler_is_known_nothing_is_left_behind(emails: Queue, look: Look, later: Later) -> None:
    perform(emails, lambda layout: layout.beat("worker-1", 30, register=True))
    for id, end in (("a", Failed), ("b", lambda lease: Crashed(lease, "", True)), ("c", NoFailureHandler)):
        emails.enqueue(b"1", id=id, max_stalls=0)
        assert settle(emails, end(take(emails))) == (True,)
    emails.enqueue(b"1", id="d", max_stalls=0)
    take(emails, seconds=10)
    later(11)
    assert emails.clean().recovered == 1
    assert look() == {}


def test_what_a_dead_worker_held_is_caught_though_it_was_the_only_handler(catching: Queue, later: Later) -> None:
    catching.enqueue(b"1", id="a", max_stalls=0)
    take(catching, holder="worker-1", seconds=30)
    later(31)
    assert catching.clean().recovered == 1
    assert catching.counts().ready == 1, "its placeholder went after its jobs"
    register(catching, "worker-2")
    _, record = caught(catching, "worker-2")
    assert (record.id, record.reason) == ("a", "stalled")


def test_a_placeholder_without_a_worker_goes(catching: Queue, client: redis.Redis, look: Look) -> None:
    client.delete("windlass:{emails}:queasy:holders")
    assert catching.clean().recovered == 0
    assert look() == {}


def test_a_broken_job_is_not_caught(catching: Queue) -> None:
    catching.enqueue(b"1", id="a")
    assert settle(catching, Broken(take(catching), "no")) == (True,)
    assert catching.lease(holder="worker-1") is None
    assert catching.counts().scheduled == 1


def test_failures_and_jobs_are_worked_off_together(catching: Queue) -> None:
    catching.enqueue_many([b"1"] * 20)
    for number, lease in enumerate(catching.lease_many(20)):
        assert settle(catching, Failed(lease) if number % 2 else Completed(lease)) == (True,)
    catching.enqueue_many([b"1"] * 3)
    leases = catching.lease_many(20, holder="worker-1")
    assert [lease.is_failure_job for lease in leases] == [True] * 10 + [False] * 3
    assert all(catching.complete_many(leases))


# -- beside peers ----------------------------------------------------------------------------------


def test_a_peers_failure_is_caught_by_our_handler(catching: Queue, peer: Peer) -> None:
    peer.notify({"to": "bob"}, "a", maxFailures=0)
    peer.dequeue()
    peer.retry("a", error='{"message":"smtp: 550"}')
    lease, record = caught(catching)
    assert (record.id, record.reason, record.message) == ("a", "failed", "smtp: 550")
    assert json.loads(record.data) == {"to": "bob"}
    assert catching.complete(lease)


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ('{"name":"StallError"}', "stalled", ""),
        ('"just text"', "failed", '"just text"'),
        ("no json", "failed", "no json"),
        ("", "failed", ""),
    ],
)
def test_whatever_a_peer_says_of_its_failure_can_be_read(
    catching: Queue, peer: Peer, text: str, reason: str, message: str
) -> None:
    peer.notify(1, "a", maxFailures=0)
    peer.dequeue()
    peer.retry("a", error=text)
    lease, record = caught(catching)
    assert (record.reason, record.message) == (reason, message)
    assert catching.complete(lease)


def test_our_failure_is_caught_by_a_peers_handler(emails: Queue, peer: Peer, client: redis.Redis, look: Look) -> None:
    client.zadd("{emails}-fail:waiting", {"their own placeholder": -5})
    die(emails, data=b'{"to":"ann"}')
    assert emails.lease() is None, "none of ours has a handler"
    (failure,) = peer.dequeue(failures=True)
    assert (failure["id"], failure["data"]) == ("a", '{"to":"ann"}')
    assert json.loads(failure["error"])["message"] == "user deleted"
    assert (failure["maxFailures"], failure["maxBackoff"]) == ("100", "3600000"), "tried for days"
    client.delete("{emails}-fail:active", "{emails}-fail:active_job:a", "{emails}-fail:waiting")


def test_limits_of_the_handler_that_another_version_wrote_do_not_stop_a_failure(
    catching: Queue, client: redis.Redis
) -> None:
    client.hset(
        f"windlass:{{{catching.name}}}:queasy:state", "failure_handler", b"\2" * 43
    )  # a META record was shorter
    die(catching)
    lease, failed = caught(catching)
    assert (failed.id, lease.limits.max_failures) == ("a", 100)
