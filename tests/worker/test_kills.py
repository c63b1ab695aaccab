"""Whatever is killed or stopped, jobs come back: fast where somebody saw it, after the lease where nobody could.
Only the job whose own process died is charged.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.waiting import FOREVER_S
from tests.support.workers import Entry, Workshop, pass_time
from windlass.values.backoff import MIN_CRASH_BACKOFF_S

QUEUES = {"loop": "loops", "thread": "threads", "process": "processes"}
WAYS = tuple(QUEUES)
ROUNDS = int(os.environ.get("WINDLASS_KILL_ROUNDS", 3))  # kills of a runner
LOST_LEASE = float(os.environ.get("WINDLASS_LOST_LEASE", 2))  # seconds; 15 for the worker's own default
LONG = {"WINDLASS_TEST_SECONDS": "60"}  # jobs of this worker never come to their end by themselves


def send(shop: Workshop, way: str, seconds: float, **options: object) -> str:
    return shop.send(f"{way}_wait", seconds, queue=QUEUES[way], **options)


def first_start(shop: Workshop, id: str) -> Entry:
    return shop.journal.wait(1, "start", id=id)[0]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def attempts(shop: Workshop) -> dict[str, list[int]]:
    """Job → the attempt numbers of its starts."""
    found: dict[str, list[int]] = {}
    for entry in shop.journal.all("start"):
        found.setdefault(entry.id, []).append(entry.attempt)
    return found


@pytest.mark.serves("Q1", "Q4", "Q7")
def test_a_killed_child_s_job_runs_again_within_a_second_and_its_neighbours_go_on(shop: Workshop) -> None:
    shop.start("running", processes=3, lease=FOREVER_S)
    neighbours = [send(shop, "loop", 1.0), send(shop, "thread", 1.0)]
    killed = []
    for _ in range(40):
        id = send(shop, "process", 0.1, min_backoff=0)
        kill(first_start(shop, id).pid)
        again = shop.journal.wait(2, "start", id=id)[1]
        assert (again.attempt, again.fence > shop.journal.all("start", id=id)[0].fence) == (2, True)
        killed.append(id)
    shop.wait_empty(*QUEUES.values())
    tried = attempts(shop)
    assert all(tried[id] == [1, 2] for id in killed), "charged exactly once each"
    assert all(tried[id] == [1] for id in neighbours)
    assert Counter(shop.journal.ids("end")) == Counter([*killed, *neighbours])


@pytest.mark.parametrize("way", ["process", "loop"])
def test_a_job_that_killed_its_process_waits_before_its_next_attempt(shop: Workshop, way: str) -> None:
    """The cause of the crash, such as a lack of memory, is to have time to pass."""
    shop.start("running", processes=1)
    id = shop.send(f"{way}_die_once", queue=QUEUES[way])
    first, again = shop.journal.wait(2, "start", id=id)
    assert again.at - first.at >= MIN_CRASH_BACKOFF_S
    shop.wait_empty(QUEUES[way])
    assert attempts(shop)[id] == [1, 2]


@pytest.mark.parametrize("way", ["process", "loop"])
def test_a_crash_is_judged_by_the_limits_of_the_task(shop: Workshop, way: str) -> None:
    """The job has no limits of its own. In the runner, the supervisor judges, which does not import the app."""
    shop.start("running", processes=1)
    id = shop.send(f"{way}_die_for_good", queue=QUEUES[way])
    record = shop.wait_state(QUEUES[way], id, "dead")
    assert (record.stalls, record.reason) == (1, "crashed")
    assert attempts(shop)[id] == [1]


@pytest.mark.serves("Q4")
def test_a_child_killed_between_jobs_charges_no_job(shop: Workshop) -> None:
    shop.start("running", processes=1)
    for _ in range(5):
        first = send(shop, "process", 0.0)
        shop.wait_empty("processes")
        kill(first_start(shop, first).pid)
        second = send(shop, "process", 0.0)
        shop.wait_empty("processes")
        assert [entry.attempt for entry in shop.journal.all("start", id=second)] == [1]


@pytest.mark.serves("W3", "Q1", "Q4")
def test_a_killed_runner_s_jobs_run_again_within_a_second(shop: Workshop) -> None:
    # Suspects run again in processes of their own, at once if there are enough isolated slots.
    worker = shop.start("running", processes=8, threads=2, concurrency=4, lease=FOREVER_S)
    for _ in range(ROUNDS):
        ids = [send(shop, way, 1.0) for way in ("loop", "loop", "loop", "loop", "thread", "process")]
        starts = [first_start(shop, id) for id in ids]
        unstarted = [send(shop, "loop", 0.01) for _ in range(20)]  # all slots are taken
        kill(starts[0].pid)
        shop.wait_empty(*QUEUES.values())
        tried = attempts(shop)
        assert all(tried[id] == [1, 1] for id in ids), f"several suspects: nobody is charged yet {tried}"
        assert all(tried[id] == [1] for id in unstarted)
    assert worker.process.poll() is None
    assert not shop.journal.overlaps()


def test_the_children_of_a_killed_runner_end_with_it(shop: Workshop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"  # the jobs end when it is there: only those that run then
    shop.start("endings", processes=2, lease=FOREVER_S)
    ids = [shop.send(f"{way}_wait", str(gate), queue=QUEUES[way]) for way in ("loop", "process")]
    runner, _ = (first_start(shop, id) for id in ids)
    kill(runner.pid)
    shop.journal.wait(2, "start", id=ids[1])
    gate.touch()
    shop.wait_empty(*QUEUES.values())
    assert Counter(shop.journal.ids("end")) == Counter(ids)


@pytest.mark.serves("Q4")
def test_a_job_that_was_alone_in_a_killed_runner_is_charged(shop: Workshop) -> None:
    shop.start("running", processes=2)
    id = shop.send("loop_die_once", queue="loops")
    other = send(shop, "process", 0.5)
    shop.wait_empty(*QUEUES.values())
    assert attempts(shop)[id] == [1, 2]
    assert set(attempts(shop)[other]) == {1}, "a child that is ended with its runner is no fault of its job"


@pytest.mark.serves("W14", "Q1")
def test_a_killed_supervisor_takes_everything_with_it_and_a_peer_goes_on(shop: Workshop) -> None:
    # No lease ends during the test: the runner gives the jobs back before it ends.
    first = shop.start("running", lease=FOREVER_S, environment=LONG)
    ids = [send(shop, way, 0.3) for way in WAYS for _ in range(2)]
    for id in ids:
        first_start(shop, id)
    second = shop.start("running", lease=FOREVER_S)
    kill(first.supervisor)
    first.wait_gone()
    shop.wait_empty(*QUEUES.values())
    assert all(attempts(shop)[id] == [1, 1] for id in ids), "nobody is charged"
    assert Counter(shop.journal.ids("end")) == Counter(ids)
    assert not shop.journal.overlaps()
    assert second.stop() == 0


@pytest.mark.serves("W14", "W3", "W1", "R9")
def test_jobs_of_a_vanished_worker_come_back_after_the_lease(shop: Workshop) -> None:
    first = shop.start("running", lease=LOST_LEASE, environment=LONG)
    ids = [send(shop, way, 0.3) for way in WAYS for _ in range(2)]
    for id in ids:
        first_start(shop, id)
    second = shop.start("running", lease=LOST_LEASE)
    first.signal_all(signal.SIGSTOP)  # so that none of them sees another one die
    first.signal_all(signal.SIGKILL)
    shop.wait_empty(*QUEUES.values())
    assert all(attempts(shop)[id] == [1, 2] for id in ids), "lost with its worker: one stall each"
    assert Counter(shop.journal.ids("end")) == Counter(ids)
    assert second.stop() == 0


@pytest.mark.serves("Q14", "W11", "Q4")
def test_a_stopped_worker_settles_nothing_stale_and_works_on(shop: Workshop) -> None:
    lease = 1.5
    first = shop.start("running", lease=lease)
    ids = [
        shop.send(f"{way}_longer_each_time", 0.8 * lease, 2.5 * lease, queue=QUEUES[way])
        for way in WAYS
        for _ in range(2)
    ]
    for id in ids:
        first_start(shop, id)
    first.signal_all(signal.SIGSTOP)
    stopped_at = time.monotonic()
    second = shop.start("running", lease=lease)
    try:
        again = [shop.journal.wait(2, "start", id=id)[1] for id in ids]
        pass_time(2 * lease, since=stopped_at)
        assert len(shop.journal.all("end")) == 0, "the second attempts still run when the first ones wake up"
    finally:
        first.signal_all(signal.SIGCONT)
    shop.wait_empty(*QUEUES.values())
    ends = shop.journal.all("end")
    # The outcomes of the stale attempts were refused: the second attempts kept their leases to the end.
    assert {entry.fence for entry in again} <= {entry.fence for entry in ends}
    assert "lease lost;" not in second.log
    assert all(attempts(shop)[id] == [1, 2] for id in ids)
    # The woken worker works again.
    assert second.stop() == 0
    more = [send(shop, way, 0.01) for way in WAYS]
    shop.wait_empty(*QUEUES.values())
    assert all(attempts(shop)[id] == [1] for id in more)
    assert first.process.poll() is None


@pytest.mark.serves("Q1")
def test_a_killed_forkserver_is_replaced_and_no_job_is_lost(shop: Workshop) -> None:
    worker = shop.start("running", lease=3.0)
    ids = [send(shop, way, 0.5) for way in WAYS for _ in range(2)]
    for id in ids:
        first_start(shop, id)
    kill(worker.forkserver)
    shop.wait_empty(*QUEUES.values())
    assert Counter(shop.journal.ids("end")) == Counter(ids)
    assert not shop.journal.overlaps()
    assert worker.stop() == 0
