"""The ends of an attempt that only workers see: crashes, payloads that cannot be decoded, tasks that nobody knows.

And the way back: what is dead or broken can be revived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from tests.contract.leasing import drain, take
from tests.support.internals import keep_at_most, perform, settle
from tests.support.waiting import LIMIT_S
from windlass import Counts, JobRecord, Lease, Limits, Queue, State
from windlass.values.job import LIMITED
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    NoFailureHandler,
    Outcome,
    Released,
    Retried,
    UnknownTask,
)

pytestmark = pytest.mark.needs("LIMITS", "DEAD")

Later = Callable[[float], None]
AGAIN = 300  # seconds until a job of an unknown task is given out without being asked for


def crash(lease: Lease, *, alone: bool = True, delay_ms: int = 0) -> Crashed:
    return Crashed(lease, "killed by signal 9", alone, delay_ms=delay_ms)


def job(queue: Queue, id: str = "a") -> JobRecord:
    record = queue.get(id)
    assert record is not None, "there is no such job"
    return record


def unpark(queue: Queue, *tasks: str) -> int:
    return perform(queue, lambda layout: layout.unpark(tasks))


# -- crashes ---------------------------------------------------------------------------------------


def test_a_crash_is_charged_and_the_job_is_at_the_front_again(raw_queue: Queue) -> None:
    ids = [raw_queue.enqueue(b"").id for _ in range(3)]
    assert settle(raw_queue, crash(take(raw_queue))) == (True,)
    record = job(raw_queue, ids[0])
    assert (record.state, record.stalls, record.failures) == (State.READY, 1, 0)
    assert record.message == "killed by signal 9"
    lease = take(raw_queue)
    assert (lease.id, lease.stalls, lease.attempt, lease.suspect) == (ids[0], 1, 2, False)
    assert raw_queue.release(lease)
    assert drain(raw_queue) == ids


@pytest.mark.parametrize(("budget", "crashes"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_so_many_crashes_are_the_end(raw_queue: Queue, budget: int, crashes: int) -> None:
    """As of failures and lost leases, so many crashes are forgiven; the next one is the end."""
    raw_queue.enqueue(b"data", id="a", max_stalls=budget, max_failures=0, priority=2)
    for stalls in range(crashes):
        assert raw_queue.counts().dead == 0
        lease = take(raw_queue)
        assert lease.stalls == stalls
        assert settle(raw_queue, crash(lease)) == (True,)
    assert raw_queue.lease() is None
    record = job(raw_queue)
    assert (record.state, record.reason, record.message) == (State.DEAD, "crashed", "killed by signal 9")
    assert (record.data, record.priority, record.stalls, record.failures) == (b"data", 2, crashes, 0)
    assert record.died_at == pytest.approx(time.time(), abs=LIMIT_S)


def test_three_crashes_are_forgiven_by_default(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"")
    for _ in range(3):
        assert settle(raw_queue, crash(take(raw_queue))) == (True,)
    assert raw_queue.counts().ready == 1
    assert settle(raw_queue, crash(take(raw_queue))) == (True,)
    assert raw_queue.counts() == Counts(ready=0, scheduled=0, blocked=0, running=0, dead=1)


def test_lost_leases_and_crashes_draw_on_one_budget(raw_queue: Queue, later: Later) -> None:
    raw_queue.enqueue(b"", id="a")
    for _ in range(3):
        take(raw_queue, seconds=10)
        later(11)
    lease = take(raw_queue)
    assert lease.stalls == 3
    assert settle(raw_queue, crash(lease)) == (True,)
    assert (job(raw_queue).state, job(raw_queue).reason, job(raw_queue).stalls) == (State.DEAD, "crashed", 4)


def test_a_crash_leaves_the_failures_alone(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"", id="a", max_failures=1)
    assert raw_queue.retry(take(raw_queue), delay=0)
    assert settle(raw_queue, crash(take(raw_queue))) == (True,)
    lease = take(raw_queue)
    assert (lease.failures, lease.stalls) == (1, 1)


def test_a_crashed_job_waits_as_long_as_its_outcome_says(raw_queue: Queue, later: Later) -> None:
    ids = [raw_queue.enqueue(b"", expires="1d").id for _ in range(2)]
    before = time.time()
    assert settle(raw_queue, crash(take(raw_queue), delay_ms=60_000)) == (True,)
    record = job(raw_queue, ids[0])
    assert (record.state, record.stalls, record.message) == (State.SCHEDULED, 1, "killed by signal 9")
    assert record.run_at is not None
    assert before + 60 <= record.run_at + 0.001
    assert record.expires_at is None
    assert drain(raw_queue) == [ids[1]]
    later(61)
    assert drain(raw_queue) == [ids[0]]


def test_an_enqueue_behind_a_crashed_job_sets_its_run_time(raw_queue: Queue) -> None:
    for id in ("now", "later"):
        raw_queue.enqueue(b"1", id=id)
    leases = raw_queue.lease_many(2)
    raw_queue.enqueue(b"2", id="now")
    raw_queue.enqueue(b"2", id="later", update_run_at="later")
    assert settle(raw_queue, *(crash(lease, delay_ms=60_000) for lease in leases)) == (True, True)
    assert (job(raw_queue, "now").state, job(raw_queue, "later").state) == (State.READY, State.SCHEDULED)
    assert job(raw_queue, "later").data == b"2"


def test_the_last_crash_ends_the_job_at_once(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"", id="a", max_stalls=0)
    assert settle(raw_queue, crash(take(raw_queue), delay_ms=60_000)) == (True,)
    assert job(raw_queue).state is State.DEAD


def test_a_cancelled_job_that_crashes_is_gone(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"", id="a")
    lease = take(raw_queue)
    assert raw_queue.cancel("a", running=True)
    assert settle(raw_queue, crash(lease, delay_ms=60_000)) == (True,)
    assert raw_queue.get("a") is None


# -- suspects --------------------------------------------------------------------------------------


def test_suspects_are_not_charged_and_come_back_in_their_order(raw_queue: Queue) -> None:
    ids = [raw_queue.enqueue(b"", max_stalls=0).id for _ in range(4)]
    leases = raw_queue.lease_many(3)
    assert not any(lease.suspect for lease in leases)
    outcomes = [crash(lease, alone=False) for lease in (leases[2], leases[0], leases[1])]
    assert settle(raw_queue, *outcomes) == (True, True, True)
    again = raw_queue.lease_many(4)
    assert [lease.id for lease in again] == ids
    assert [lease.suspect for lease in again] == [True, True, True, False]
    assert {(lease.stalls, lease.failures, lease.attempt) for lease in again} == {(0, 0, 1)}
    assert job(raw_queue, ids[0]).message == "killed by signal 9"


def make_suspect(queue: Queue, **options: int) -> Lease:
    """The lease on a job that is suspected already."""
    queue.enqueue(b"", id="a", **options)  # type: ignore[arg-type]
    assert settle(queue, crash(take(queue), alone=False)) == (True,)
    lease = take(queue)
    assert lease.suspect
    return lease


STILL_SUSPECT: dict[str, Callable[[Lease], Outcome]] = {
    "released": Released,
    "crashed alone": crash,
    "crashed again": lambda lease: crash(lease, alone=False),
}


@pytest.mark.parametrize("end", STILL_SUSPECT)
def test_a_suspect_stays_one_until_it_ends_by_itself(raw_queue: Queue, end: str) -> None:
    assert settle(raw_queue, STILL_SUSPECT[end](make_suspect(raw_queue))) == (True,)
    assert take(raw_queue).suspect


def test_a_suspect_whose_lease_is_lost_stays_one(raw_queue: Queue, later: Later) -> None:
    make_suspect(raw_queue)
    later(31)
    assert take(raw_queue).suspect


def test_a_suspect_that_failed_by_itself_is_cleared(raw_queue: Queue) -> None:
    assert raw_queue.retry(make_suspect(raw_queue), delay=0)
    lease = take(raw_queue)
    assert (lease.suspect, lease.failures) == (False, 1)


def test_a_suspect_whose_counts_are_reset_is_cleared(raw_queue: Queue) -> None:
    lease = make_suspect(raw_queue)
    raw_queue.enqueue(b"new", id="a")
    assert raw_queue.release(lease)
    lease = take(raw_queue)
    assert (lease.data, lease.suspect) == (b"new", False)
    assert raw_queue.complete(lease)
    assert raw_queue.release(make_suspect(raw_queue))
    assert raw_queue.update("a", reset_counts=True)
    assert not take(raw_queue).suspect


def test_a_suspect_that_is_changed_otherwise_stays_one(raw_queue: Queue) -> None:
    assert raw_queue.release(make_suspect(raw_queue))
    assert raw_queue.update("a", priority=1, delay=0)
    assert take(raw_queue).suspect


def test_a_new_job_of_a_suspects_id_is_no_suspect(raw_queue: Queue) -> None:
    assert raw_queue.complete(make_suspect(raw_queue))
    raw_queue.enqueue(b"", id="a")
    assert not take(raw_queue).suspect


# -- broken ----------------------------------------------------------------------------------------


def test_a_broken_job_is_kept_with_the_reason(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"\xff{", id="a", priority=3, max_failures=7)
    assert settle(raw_queue, Broken(take(raw_queue), "not JSON")) == (True,)
    assert raw_queue.lease() is None
    record = job(raw_queue)
    assert (record.state, record.reason, record.message) == (State.BROKEN, "broken", "not JSON")
    assert (record.data, record.priority, record.limits.max_failures) == (b"\xff{", 3, 7)
    assert (record.failures, record.stalls) == (0, 0), "nothing is charged"
    assert raw_queue.counts() == Counts(ready=0, scheduled=0, blocked=0, running=0, dead=0, broken=1)
    assert raw_queue.jobs("broken").jobs == (record,)
    assert raw_queue.jobs("dead").jobs == ()
    assert raw_queue.purge("dead") == 0
    assert raw_queue.purge("broken") == 1
    assert raw_queue.get("a") is None


def test_the_oldest_dead_are_dropped_and_no_broken_job_ever_is(raw_queue: Queue) -> None:
    """Broken jobs were never run. Beyond the bound they stay on the queue, in their old place."""
    keep_at_most(raw_queue, dead=2, broken=2)
    for number in range(4):
        for kind in ("broken", "dead"):
            raw_queue.enqueue(b"", id=f"{kind}-{number}")
    ends = [Broken(lease, "") if lease.id.startswith("broken") else Failed(lease) for lease in raw_queue.lease_many(8)]
    turn = perform(raw_queue, lambda layout: layout.turn(ends))
    assert turn.settled == (True,) * 8
    assert (turn.broken_over_limit, turn.dropped) == (2, 2)
    counts = raw_queue.counts()
    assert (counts.broken, counts.dead, counts.dropped, counts.ready) == (2, 2, 2, 2)
    assert [record.id for record in raw_queue.jobs("broken").jobs] == ["broken-1", "broken-0"], "the latest first"
    assert [record.id for record in raw_queue.jobs("dead").jobs] == ["dead-3", "dead-2"]
    assert raw_queue.audit(repair=True).repaired == 0
    assert raw_queue.purge("broken") == 2
    assert drain(raw_queue) == ["broken-2", "broken-3"]


def test_an_id_that_is_broken_again_needs_no_more_room(raw_queue: Queue) -> None:
    keep_at_most(raw_queue, broken=1)
    for data in (b"first", b"second"):
        raw_queue.enqueue(data, id="a")
        assert settle(raw_queue, Broken(take(raw_queue), "")) == (True,)
    assert job(raw_queue).data == b"second"
    assert (raw_queue.counts().broken, raw_queue.counts().ready) == (1, 0)


def test_an_id_is_dead_or_broken_as_it_ended_last(raw_queue: Queue) -> None:
    for end in ("dead", "broken", "dead"):
        raw_queue.enqueue(end.encode(), id="a")
        lease = take(raw_queue)
        assert settle(raw_queue, Broken(lease, "") if end == "broken" else Failed(lease)) == (True,)
        counts = raw_queue.counts()
        assert (job(raw_queue).state, job(raw_queue).data) == (end, end.encode())
        assert (counts.dead, counts.broken) == ((1, 0) if end == "dead" else (0, 1))
    assert raw_queue.audit(repair=True).repaired == 0


def test_what_waits_behind_a_broken_job_goes_on(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"broken", id="a")
    lease = take(raw_queue)
    raw_queue.enqueue(b"sound", id="a")
    assert settle(raw_queue, Broken(lease, "no")) == (True,)
    successor = take(raw_queue)
    assert successor.data == b"sound"
    assert raw_queue.complete(successor)
    assert job(raw_queue).data == b"broken"


# -- tasks that nobody here knows ------------------------------------------------------------------


def test_a_job_of_an_unknown_task_is_put_aside_uncharged(raw_queue: Queue, later: Later) -> None:
    raw_queue.enqueue(b"data", id="a", priority=1, max_failures=0, max_stalls=0)
    assert settle(raw_queue, UnknownTask(take(raw_queue), "mails.welcome")) == (True,)
    assert raw_queue.lease() is None
    record = job(raw_queue)
    assert (record.state, record.failures, record.stalls, record.priority) == (State.SCHEDULED, 0, 0, 1)
    assert record.run_at == pytest.approx(time.time() + AGAIN, abs=LIMIT_S)
    assert record.message is not None
    assert "mails.welcome" in record.message
    counts = raw_queue.counts()
    assert (counts.scheduled, counts.parked, counts.waiting) == (1, 1, 1)
    later(AGAIN - 5)
    assert raw_queue.lease() is None
    later(10)
    lease = take(raw_queue)
    assert (lease.data, lease.attempt) == (b"data", 1)


def park(queue: Queue, **tasks: str) -> None:
    """Jobs put aside, each for its task."""
    for id in tasks:
        queue.enqueue(b"", id=id)
    for lease in queue.lease_many(len(tasks)):
        assert settle(queue, UnknownTask(lease, tasks[lease.id])) == (True,)


def test_a_worker_that_knows_the_task_gets_the_jobs_at_once(raw_queue: Queue) -> None:
    park(raw_queue, a="one", b="two", c="one", d="on")
    assert raw_queue.counts().parked == 4
    assert unpark(raw_queue, "one", "three") == 2
    assert raw_queue.counts().parked == 2
    assert drain(raw_queue) == ["a", "c"]
    assert unpark(raw_queue, "one") == 0
    assert unpark(raw_queue, "two", "on") == 2
    assert job(raw_queue, "b").message is None, "the note is not true any more"
    assert drain(raw_queue) == ["b", "d"]
    assert raw_queue.counts() == Counts(ready=0, scheduled=0, blocked=0, running=0, dead=0)


def test_a_sign_of_life_tells_how_many_are_put_aside(raw_queue: Queue) -> None:
    park(raw_queue, a="one", b="two")
    beat = perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True))
    assert (beat.known, beat.parked) == (False, 2)
    assert unpark(raw_queue, "one", "two") == 2
    assert perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=False)).parked == 0


def test_a_job_that_nobody_knows_again_and_again_is_counted_once(raw_queue: Queue, later: Later) -> None:
    park(raw_queue, a="one")
    for _ in range(3):
        later(AGAIN + 1)
        assert settle(raw_queue, UnknownTask(take(raw_queue), "one")) == (True,)
        assert raw_queue.counts().parked == 1
    assert unpark(raw_queue, "one") == 1
    assert drain(raw_queue) == ["a"]


def test_what_was_put_aside_and_cancelled_does_not_come_back(raw_queue: Queue) -> None:
    park(raw_queue, a="one")
    assert raw_queue.cancel("a")
    assert unpark(raw_queue, "one") == 0
    assert raw_queue.counts().waiting == raw_queue.counts().parked == 0


def test_what_was_put_aside_and_got_a_run_time_keeps_it(raw_queue: Queue, later: Later) -> None:
    park(raw_queue, a="one", b="one", c="one")
    assert raw_queue.update("a", delay=60)
    assert raw_queue.update("b", data=b"new")
    raw_queue.enqueue(b"", id="c", delay=3600)
    assert unpark(raw_queue, "one") == 1
    assert drain(raw_queue) == ["b"]
    later(61)
    assert drain(raw_queue) == ["a"]
    later(3600)
    assert drain(raw_queue) == ["c"]


def test_a_later_job_of_the_same_id_is_not_given_out_early(raw_queue: Queue, later: Later) -> None:
    park(raw_queue, a="one")
    later(AGAIN + 1)
    assert drain(raw_queue) == ["a"]
    raw_queue.enqueue(b"", id="a", delay=3600)
    assert unpark(raw_queue, "one") == 0
    assert raw_queue.lease() is None


def test_what_waits_behind_a_job_that_is_put_aside_is_merged_in(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"old", id="a")
    lease = take(raw_queue)
    raw_queue.enqueue(b"new", id="a", delay=3600)
    assert settle(raw_queue, UnknownTask(lease, "one")) == (True,)
    assert unpark(raw_queue, "one") == 0, "it has a run time that was asked for"
    assert job(raw_queue).run_at == pytest.approx(time.time() + 3600, abs=LIMIT_S)
    assert job(raw_queue).data == b"new"


# -- revive ----------------------------------------------------------------------------------------

DEATHS: dict[str, Callable[[Lease], Outcome]] = {
    "failed": lambda lease: Failed(lease, "no"),
    "crashed": crash,
    "broken": lambda lease: Broken(lease, "no"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_revived_job_begins_anew(queue: Queue, raw_queue: Queue, death: str) -> None:
    queue.enqueue(b"data", id="a", priority=2, max_failures=4, max_stalls=0, min_backoff=7)
    assert queue.retry(take(queue), delay=0, message="once")
    assert settle(raw_queue, DEATHS[death](take(queue))) == (True,)
    queue.enqueue(b"", id="b", priority=2)
    assert queue.revive(["a", "b", "nosuch"]) == [True, False, False]
    record = job(queue)
    assert record == JobRecord(queue.name, "a", State.READY, b"data", 2, limits=Limits(4, 0, 7.0, 300.0), marks=LIMITED)
    assert [(lease.id, lease.attempt, lease.suspect) for lease in queue.lease_many(5)] == [
        ("b", 1, False),
        ("a", 1, False),
    ]
    assert queue.counts() == Counts(0, 0, 0, 2, 0, holders=1)
    assert queue.revive("a") == [False], "there is no dead one any more"


def test_a_revived_suspect_is_none(raw_queue: Queue) -> None:
    assert raw_queue.fail(make_suspect(raw_queue))
    assert raw_queue.revive("a") == [True]
    assert not take(raw_queue).suspect


@pytest.mark.parametrize("state", ["ready", "scheduled", "running"])
def test_a_dead_job_whose_id_is_in_use_stays_dead(raw_queue: Queue, state: str) -> None:
    raw_queue.enqueue(b"old", id="a")
    assert raw_queue.fail(take(raw_queue))
    raw_queue.enqueue(b"new", id="a", delay=60 if state == "scheduled" else 0)
    if state == "running":
        take(raw_queue)
    assert raw_queue.revive("a") == [False]
    assert (job(raw_queue).state, job(raw_queue).data) == (state, b"new")
    assert raw_queue.counts().dead == 1


def test_an_id_is_revived_once_in_a_call(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"", id="a")
    assert raw_queue.fail(take(raw_queue))
    assert raw_queue.revive(["a", "a"]) == [True, False]
    assert drain(raw_queue) == ["a"]


def test_more_are_revived_than_one_call_can(raw_queue: Queue) -> None:
    keep_at_most(raw_queue, dead=3000)
    ids = [receipt.id for receipt in raw_queue.enqueue_many([b""] * 1300)]
    while leases := raw_queue.lease_many(1000):
        assert all(settle(raw_queue, *map(Failed, leases)))
    assert raw_queue.revive(ids) == [True] * 1300
    assert drain(raw_queue) == ids


# -- what holds for all of them --------------------------------------------------------------------

ENDS: dict[str, Callable[[Lease], Outcome]] = {
    "crashed": crash,
    "suspect": lambda lease: crash(lease, alone=False),
    "broken": lambda lease: Broken(lease, "no"),
    "unknown": lambda lease: UnknownTask(lease, "task"),
    "unhandled": NoFailureHandler,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_lost_lease_settles_nothing(raw_queue: Queue, later: Later, end: str) -> None:
    raw_queue.enqueue(b"data", id="a")
    sleeper = take(raw_queue, seconds=10)
    later(11)
    successor = take(raw_queue)
    before = raw_queue.get("a"), raw_queue.counts()
    assert settle(raw_queue, ENDS[end](sleeper)) == (False,)
    assert (raw_queue.get("a"), raw_queue.counts()) == before
    assert raw_queue.complete(successor)


@pytest.mark.parametrize("end", ENDS)
def test_a_cancelled_job_is_gone_however_it_ends(raw_queue: Queue, end: str) -> None:
    raw_queue.enqueue(b"", id="a")
    lease = take(raw_queue)
    assert raw_queue.cancel("a", running=True)
    assert settle(raw_queue, ENDS[end](lease)) == (True,)
    assert raw_queue.counts() == Counts(ready=0, scheduled=0, blocked=0, running=0, dead=0)
    assert raw_queue.get("a") is None


@pytest.mark.parametrize("end", ENDS)
def test_a_deep_clean_finds_nothing_to_mend(raw_queue: Queue, end: str) -> None:
    raw_queue.enqueue(b"data", id="a")
    lease = take(raw_queue)
    assert raw_queue.progress(lease, 0.5)
    assert settle(raw_queue, ENDS[end](lease)) == (True,)
    before = raw_queue.get("a"), raw_queue.counts()
    assert raw_queue.audit(repair=True).repaired == 0
    assert (raw_queue.get("a"), raw_queue.counts()) == before


def test_a_failure_that_is_none_is_buried_as_itself(raw_queue: Queue) -> None:
    """`NoFailureHandler` on a plain job: its data is not taken for the record of another."""
    raw_queue.enqueue(b"\x00\x03dead beef", id="a")
    assert settle(raw_queue, NoFailureHandler(take(raw_queue))) == (True,)
    assert (job(raw_queue).state, job(raw_queue).data) == (State.DEAD, b"\x00\x03dead beef")


def test_one_turn_settles_them_all_in_the_order_given(raw_queue: Queue) -> None:
    raw_queue.enqueue_many([b"x"] * 8)
    one, two, three, four, five, six, seven, eight = raw_queue.lease_many(8)
    assert raw_queue.release(seven)
    outcomes: Sequence[Outcome] = [
        crash(one),
        Completed(two),
        Broken(three, "no"),
        UnknownTask(four, "task"),
        Completed(seven),
        Retried(five, ("in", 0)),
        Failed(six, "no"),
        crash(seven),
        Completed(eight),
    ]
    assert settle(raw_queue, *outcomes) == (True, True, True, True, False, True, True, False, True)
    counts = raw_queue.counts()
    assert (counts.ready, counts.scheduled, counts.dead, counts.broken, counts.parked) == (3, 1, 1, 1, 1)
    assert drain(raw_queue) == [one.id, seven.id, five.id]
