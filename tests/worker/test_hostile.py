"""Misbehaving jobs harm only themselves: no heartbeat is missed, no other job is charged, no process is left."""

from __future__ import annotations

import os
import subprocess
from collections import Counter

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import Entry, Workshop, wait_dead
from windlass import JobRecord

WAYS = ("loop", "thread", "process")
CALM = {"loop": "calm", "thread": "calm-threads", "process": "calm-processes"}


def attempts(shop: Workshop) -> dict[str, list[int]]:
    """Job → the attempt numbers of its starts."""
    found: dict[str, list[int]] = {}
    for entry in shop.journal.all("start"):
        found.setdefault(entry.id, []).append(entry.attempt)
    return found


def calm(shop: Workshop, way: str, seconds: float) -> str:
    id = shop.send(f"{way}_calm", seconds, queue=CALM[way])
    shop.journal.wait(1, "start", id=id)
    return id


def failed_once(shop: Workshop, queue: str, id: str) -> JobRecord:
    """Wait until a job has failed once and is scheduled again."""

    def seen() -> JobRecord | None:
        record = shop.queue(queue).get(id)
        return record if record and record.failures + record.stalls else None

    return wait_until(seen, f"{id} to be charged")


# -- heartbeats ----------------------------------------------------------------------------------


@pytest.mark.serves("Q4", "Q6")
def test_jobs_that_hold_the_interpreter_for_many_leases_run_once(shop: Workshop) -> None:
    lease = 1.0
    worker = shop.start("hostile", lease=lease, processes=1, threads=1, concurrency=1)
    second = shop.start("hostile", lease=lease, processes=1, threads=1, concurrency=1)
    ids = [shop.send(f"{way}_hold", 4 * lease, queue="gil") for way in WAYS]
    shop.wait_empty("gil", timeout=100)
    starts, ends = shop.journal.all("start"), shop.journal.all("end")
    held = {entry.task: entry.at - next(s.at for s in starts if s.id == entry.id) for entry in ends}
    print(
        f"\nheld for { ({task: round(seconds, 1) for task, seconds in held.items()}) } s, with a lease of {lease:g} s"
    )
    assert min(held.values()) > 3 * lease
    assert Counter(entry.id for entry in starts) == Counter(ids), "a job was started twice"
    assert Counter(entry.id for entry in ends) == Counter(ids)
    assert {entry.attempt for entry in starts} == {1}
    assert "Runner " not in worker.log + second.log


# -- time limits ---------------------------------------------------------------------------------


@pytest.mark.serves("Q7")
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("ignore_cancellation", "did not stop after its timeout"),
        # The worker does not know which job blocks the loop: all run again isolated, and then it is killed alone.
        ("block_the_loop", "timed out after 0.3 s; its process was killed"),
    ],
)
def test_a_coroutine_that_does_not_stop_is_killed_with_its_runner(shop: Workshop, task: str, words: str) -> None:
    worker = shop.start("hostile", kill_grace=0.5, threads=2, processes=4)
    neighbours = [calm(shop, way, 1.5) for way in WAYS]
    id = shop.send(task, queue="stubborn")
    record = failed_once(shop, "stubborn", id)
    assert (record.failures, record.stalls, record.state) == (1, 0, "scheduled")
    assert words in (record.message or "")
    shop.wait_empty(*CALM.values())
    tried = attempts(shop)
    assert all(set(tried[neighbour]) == {1} for neighbour in neighbours), f"uncharged: {tried}"
    assert Counter(shop.journal.ids("end")) == Counter(neighbours)
    assert not shop.journal.overlaps()
    assert worker.process.poll() is None


def test_a_coroutine_that_does_not_stop_is_judged_by_the_limits_of_its_task(shop: Workshop) -> None:
    shop.start("hostile", kill_grace=0.5)
    id = shop.send("ignore_it_once", queue="stubborn")
    record = shop.wait_state("stubborn", id, "dead")
    assert (record.failures, record.stalls) == (1, 0)
    assert "did not stop after its timeout" in (record.message or "")


@pytest.mark.serves("Q7")
def test_a_coroutine_that_stops_in_time_affects_no_other_job(shop: Workshop) -> None:
    worker = shop.start("hostile", kill_grace=0.5)
    neighbours = [calm(shop, way, 1.0) for way in WAYS]
    id = shop.send("time_out", queue="stubborn")
    record = failed_once(shop, "stubborn", id)
    assert (record.failures, record.stalls) == (1, 0)
    assert "timed out after 0.3 s" in (record.message or "")
    shop.wait_empty(*CALM.values())
    assert all(attempts(shop)[neighbour] == [1] for neighbour in neighbours)
    assert "Runner " not in worker.log


@pytest.mark.serves("Q7")
def test_a_process_that_ignores_sigterm_is_killed_in_time_with_all_it_started(shop: Workshop) -> None:
    tries = int(os.environ.get("WINDLASS_KILL_TRIES", "12"))
    worker = shop.start("hostile", kill_grace=0.3, processes=2)
    neighbour = calm(shop, "loop", 0.5)
    for _ in range(tries):
        id = shop.send("ignore_sigterm", queue="stubborn-processes", max_failures=0)
        start = shop.journal.wait(1, "start", id=id)[0]
        wait_dead(start.pid, start.more["grandchild"])
        record = shop.wait_state("stubborn-processes", id, "dead")
        assert (record.failures, record.stalls) == (1, 0)
        assert "timed out after 0.2 s" in (record.message or "")
    shop.wait_empty("calm")
    assert attempts(shop)[neighbour] == [1]
    assert worker.stop() == 0
    assert worker.processes() == []


# -- output --------------------------------------------------------------------------------------


def test_a_flood_of_output_harms_nothing(shop: Workshop) -> None:
    worker = shop.start("hostile", lease=1.5)
    neighbour = calm(shop, "loop", 1.0)
    ids = shop.send_many(shop.call(f"{way}_flood", 4000, queue="floods") for way in WAYS for _ in range(2))
    shop.wait_empty("floods", "calm")
    assert all(attempts(shop)[id] == [1] for id in (*ids, neighbour))
    assert "Runner " not in worker.log


def test_a_flood_of_output_with_a_stalled_reader_harms_nothing(shop: Workshop) -> None:
    worker = shop.start("hostile", lease=1.5, output=subprocess.PIPE)
    ids = shop.send_many(shop.call(f"{way}_flood", 1000, queue="floods") for way in WAYS for _ in range(2))
    shop.wait_empty("floods")
    later = calm(shop, "loop", 2.0)  # longer than a lease: the supervisor still beats
    shop.wait_empty("calm")
    assert all(attempts(shop)[id] == [1] for id in (*ids, later))
    assert worker.stop() == 0


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("comes_back", [False, True], ids=["that ends", "that comes back"])
@pytest.mark.parametrize("way", WAYS)
def test_a_fork_in_a_job_does_not_act_as_the_worker(shop: Workshop, way: str, comes_back: bool) -> None:
    worker = shop.start("hostile", lease=3.0, processes=2)
    before = set(worker.processes())
    ids = [shop.send(f"{way}_fork", comes_back, queue="forks") for _ in range(3)]
    shop.journal.wait(3, "copy")
    shop.wait_empty("forks")
    after = [calm(shop, other, 0.05) for other in WAYS for _ in range(4)]
    shop.wait_empty(*CALM.values())
    assert all(attempts(shop)[id] == [1] for id in (*ids, *after)), attempts(shop)
    copies = {entry.pid for entry in shop.journal.all("copy")}
    assert not copies & {entry.pid for entry in shop.journal.all("start")}, "a copy ran jobs"
    assert not copies & before
    wait_dead(*copies)
    assert "lost" not in worker.log
    assert worker.stop() == 0


# -- poison --------------------------------------------------------------------------------------


@pytest.mark.serves("Q4")
def test_poison_dies_after_four_crashes_and_no_other_job_is_charged(shop: Workshop) -> None:
    check_poison(shop, {"process": 1.0})


@pytest.mark.serves("Q4")
def test_poison_in_the_runner_dies_after_four_crashes_and_no_other_job_is_charged(shop: Workshop) -> None:
    check_poison(shop, {"process": 0.5, "loop": 0.5})


def check_poison(shop: Workshop, shares: dict[str, float]) -> None:
    total = int(os.environ.get("WINDLASS_POISON_JOBS", "600"))
    queues = {"process": "processes", "loop": "loops"}
    poison: list[str] = []
    innocent: list[str] = []
    calls = []
    for way, share in shares.items():
        calls += [(way, number % 100 == 50) for number in range(int(total * share))]
    ids = shop.send_many(shop.call(f"{way}_work", bad, queue=queues[way]) for way, bad in calls)
    for id, (_, bad) in zip(ids, calls, strict=True):
        (poison if bad else innocent).append(id)
    worker = shop.start("hostile", concurrency=20, processes=4, lease=5.0)
    shop.wait_empty(*(queues[way] for way in shares), timeout=60 + total / 10)
    starts: dict[str, list[Entry]] = {}
    for entry in shop.journal.all("start"):
        starts.setdefault(entry.id, []).append(entry)
    ends = Counter(shop.journal.ids("end"))
    assert set(ends) == set(innocent), "every innocent is completed"
    if "loop" not in shares:  # a job that ended in a runner that died before settling runs again
        assert set(ends.values()) == {1}
    charged = {id for id in innocent if {entry.attempt for entry in starts[id]} != {1}}
    assert not charged, "innocents were charged"
    dead = {record.id: record for way in shares for record in shop.queue(queues[way]).all_jobs("dead")}
    assert sorted(dead) == sorted(poison)
    for id, record in dead.items():
        assert (record.failures, record.stalls, record.reason) == (0, 4, "crashed")
        assert "SIGSEGV" in (record.message or "")
        tried = [entry.attempt for entry in starts[id]]
        assert tried == sorted(tried)
        assert set(tried) == {1, 2, 3, 4}, "charged four times, once for each crash"
        if "loop" not in shares:  # otherwise it was first one of several suspects, or died with its runner
            assert tried == [1, 2, 3, 4]
    assert worker.process.poll() is None
