"""Jobs on a real worker: every way an attempt can end, in every way of running."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.support.workers import Worker, Workshop, keys_left, pass_time
from windlass import JobRecord, TaskCall
from windlass.errors import CrashError
from windlass.tasks.envelope import write_envelope

WAYS = ("loop", "thread", "process")


@pytest.fixture(scope="module")
def worker(shared_shop: Workshop) -> Worker:
    """One worker for all tests that do not stop it."""
    return shared_shop.start("attempts", processes=4)


@pytest.fixture
def shop(shared_shop: Workshop, worker: Worker) -> Workshop:
    """The shared workshop. A worker that did not live through a test fails it."""
    return shared_shop


def dead(shop: Workshop, id: str, queue: str = "default") -> JobRecord:
    """Wait until a job is dead."""
    return shop.wait_state(queue, id, "dead")


def lives(shop: Workshop, worker: Worker, way: str = "loop") -> None:
    """Check that the worker still runs, with its first runner."""
    id = shop.send(f"{way}_fine", 1)
    shop.journal.wait(1, "done", id=id)
    assert worker.process.poll() is None
    assert "Runner " not in worker.log


# -- plain ends ----------------------------------------------------------------------------------


@pytest.mark.serves("H1", "Q1", "Q6")
@pytest.mark.parametrize("task", ["loop_fine", "thread_fine", "process_fine", "process_coroutine"])
def test_a_job_that_returns_is_removed(shop: Workshop, worker: Worker, task: str) -> None:
    ids = shop.send_many(shop.call(task, number) for number in range(20))
    done = {id: shop.journal.wait(1, "done", id=id) for id in ids}
    assert [done[id][0].more["x"] for id in ids] == list(range(20))
    wait_until(lambda: all(shop.queue().get(id) is None for id in ids), "the jobs to be gone")
    assert all(len(shop.journal.all("done", id=id)) == 1 for id in ids)
    pids = {entry.pid for entries in done.values() for entry in entries}
    assert worker.supervisor not in pids
    if task.startswith("process"):
        assert {entries[0].more["role"] for entries in done.values()} == {"child"}


@pytest.mark.serves("Q2", "H2")
@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_raises_is_retried_and_ends_dead(shop: Workshop, worker: Worker, way: str) -> None:
    id = shop.send(f"{way}_raise", max_failures=2, min_backoff=0.02, max_backoff=0.1)
    record = dead(shop, id)
    tries = shop.journal.all("try", id=id)
    assert [entry.attempt for entry in tries] == [1, 2, 3]
    assert [entry.more["failures"] for entry in tries] == [0, 1, 2]
    assert (record.failures, record.stalls, record.reason) == (3, 0, "failed")
    assert (record.message or "").startswith("ValueError: no good")
    assert f"{way}_raise" in (record.message or ""), "the message says where it came from"
    lives(shop, worker, way)


@pytest.mark.serves("Q2")
def test_a_job_without_limits_uses_those_of_its_task(shop: Workshop) -> None:
    id = shop.send("loop_raise")
    assert dead(shop, id).failures == 3
    assert len(shop.journal.all("try", id=id)) == 3


@pytest.mark.serves("Q2")
def test_the_backoff_doubles(shop: Workshop) -> None:
    id = shop.send("backing_off")
    tries = shop.journal.wait(4, "try", id=id)
    waits = [later.at - earlier.at for earlier, later in pairwise(tries)]
    for wait, least in zip(waits, (0.2, 0.4, 0.8), strict=True):
        assert least <= wait <= least * 1.25 + 0.3
    dead(shop, id)


@pytest.mark.serves("H2")
def test_on_exception_fail_fails_at_once(shop: Workshop) -> None:
    id = shop.send("fail_at_once")
    assert dead(shop, id).failures == 1
    assert len(shop.journal.all("try", id=id)) == 1


@pytest.mark.serves("Q3", "H1")
@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
@pytest.mark.parametrize("way", WAYS)
def test_a_job_sets_the_time_of_its_retry_or_fails_for_good(shop: Workshop, way: str, raised: bool) -> None:
    ids = {how: shop.send(f"{way}_verdict", how, raised, min_backoff=3600) for how in ("delay", "at", "now", "failure")}
    record = dead(shop, ids["failure"])
    assert (record.message, record.failures) == ("not for us", 1)
    for how in ("delay", "at", "now"):
        done = shop.journal.wait(1, "done", id=ids[how])[0]
        waited = done.at - shop.journal.all("try", id=ids[how])[0].at
        assert done.attempt == 2
        assert how == "now" or waited >= 0.4, f"{how}: {waited}"


@pytest.mark.serves("H2")
@pytest.mark.parametrize("way", WAYS)
def test_sys_exit_ends_the_attempt_but_not_the_worker(shop: Workshop, worker: Worker, way: str) -> None:
    id = shop.send(f"{way}_exit", max_failures=1, min_backoff=0.02)
    record = dead(shop, id)
    assert (record.failures, record.stalls) == (2, 0)
    assert (record.message or "").startswith("SystemExit: that was it")
    assert len({entry.pid for entry in shop.journal.all("try", id=id)}) <= 2
    lives(shop, worker, way)


# -- jobs that cannot be run ---------------------------------------------------------------------


@pytest.mark.serves("H4")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\x00 no task", "not a task"),
        (b"[]", "not a task"),
        (b'{"task": "loop_fine", "args": {"x": "text"}}', "x"),
        (b'{"task": "loop_fine", "args": {}}', "x"),
        (b'{"task": "loop_fine", "args": {"x": 1, "y": 2}}', "y"),
        (b'{"task": "loop_fine", "args": [1, 2, 3]}', "loop_fine"),
        (b'{"task": "process_fine", "args": {"x": null}}', "x"),
    ],
)
def test_an_undecodable_job_is_broken_with_a_reason(shop: Workshop, worker: Worker, data: bytes, reason: str) -> None:
    id = shop.queue().enqueue(data).id
    record = shop.wait_state("default", id, "broken")
    assert record.data == data, "it stays as it was"
    assert reason in (record.message or "")
    assert record.died_at is not None
    assert id in [each.id for each in shop.queue().all_jobs("broken")]
    lives(shop, worker)


@pytest.mark.serves("W6")
def test_a_raw_handler_gets_the_unchanged_bytes(shop: Workshop) -> None:
    payloads = [b"", bytes(range(256)), b'{"task": "loop_fine", "args": {"x": 1}}', os.urandom(5000)]
    ids = [receipt.id for receipt in shop.queue("raw").enqueue_many(payloads)]
    got = [shop.journal.wait(1, "done", id=id)[0].more["data"] for id in ids]
    assert [bytes.fromhex(data) for data in got] == payloads


# -- the job object --------------------------------------------------------------------------------


@pytest.mark.serves("P5")
@pytest.mark.parametrize("way", WAYS)
def test_progress_can_be_read_while_the_job_runs(shop: Workshop, tmp_path: Path, way: str) -> None:
    gate = tmp_path / "gate"
    id = shop.send(f"{way}_progress", str(gate))
    shop.journal.wait(1, "start", id=id)
    wait_until(lambda: (record := shop.queue().get(id)) and record.progress == 0.25, "the progress")
    gate.touch()
    shop.journal.wait(1, "done", id=id)


def test_the_fence_rises_with_every_attempt(shop: Workshop) -> None:
    ids = [shop.send(f"{way}_raise", max_failures=2, min_backoff=0.02) for way in WAYS]
    for id in ids:
        dead(shop, id)
        fences = [entry.fence for entry in shop.journal.all("try", id=id)]
        assert fences == sorted(set(fences))
        assert len(fences) == 3


@pytest.mark.serves("P8")
def test_higher_priority_runs_first(shop: Workshop) -> None:
    queue = shop.queue("urgent")
    queue.pause()
    ids = {}
    for priority in (9, 5, 0, 7, 2, 5):
        ids[shop.send("in_order", queue="urgent", priority=priority)] = priority
    worker = shop.start("ordered", concurrency=1)
    try:
        queue.resume()
        done = shop.journal.wait(6, "done", task="in_order")
        assert [ids[entry.id] for entry in done] == [0, 2, 5, 5, 7, 9]
        assert [entry.id for entry in done if ids[entry.id] == 5] == [id for id, p in ids.items() if p == 5]
    finally:
        assert worker.stop() == 0


# -- failure handlers ----------------------------------------------------------------------------


@pytest.mark.serves("Q5")
def test_a_failure_handler_runs_for_a_failed_job(shop: Workshop) -> None:
    id = shop.send("caught_failure", "luck", queue="caught", max_failures=1, min_backoff=0.02)
    told = shop.journal.wait(1, "told")[-1].more
    assert told["id"] == id
    (caught,) = [entry for entry in shop.journal.all("caught") if entry.more["id"] == id]
    assert caught.more["data"] == {"name": "luck", "times": 0}, "with what was not passed"
    assert (caught.more["failures"], caught.more["type"]) == (2, "JobFailed")
    assert "no luck" in caught.more["text"]
    assert len(shop.journal.all("try", id=id)) == 2
    shop.wait_empty("caught")
    assert shop.queue("caught").get(id) is None, "a failure that was told is done with"


@pytest.mark.serves("Q5")
def test_a_failure_handler_is_itself_retried(shop: Workshop) -> None:
    id = shop.send("caught_failure", "luck", 4, queue="caught", max_failures=0)
    wait_until(lambda: any(entry.more["id"] == id for entry in shop.journal.all("told")), "it to be told")
    assert len([entry for entry in shop.journal.all("caught") if entry.more["id"] == id]) == 4
    shop.wait_empty("caught")


@pytest.mark.serves("Q5", "Q4")
def test_a_failure_handler_runs_for_a_crashed_job(shop: Workshop) -> None:
    id = shop.send("caught_crash", queue="caught", max_stalls=1, min_backoff=0)
    wait_until(lambda: any(entry.more.get("id") == id for entry in shop.journal.all("caught")), "it to be told")
    (caught,) = [entry for entry in shop.journal.all("caught") if entry.more["id"] == id]
    assert (caught.more["stalls"], caught.more["type"]) == (2, "CrashError")
    assert "SIGKILL" in caught.more["text"]
    assert len(shop.journal.all("try", id=id)) == 2
    shop.wait_empty("caught")


@pytest.mark.parametrize("asked", ["before", "after"])
def test_result_raises_the_reason_of_a_crash_with_a_failure_handler(shop: Workshop, asked: str) -> None:
    """`during` reads the reason from the event, `after` from the stored result."""
    data = write_envelope("caught_crash", keep=60.0 if asked == "after" else 0.0)
    (receipt,) = shop.app.enqueue_many([TaskCall("caught_crash", "caught", data, {"max_stalls": 1, "min_backoff": 0})])
    if asked == "after":
        shop.wait_job_gone("caught", receipt.id, 15)
    with pytest.raises(CrashError, match="SIGKILL"):
        shop.app.job("caught", receipt.id).result(20)
    shop.wait_empty("caught")


@pytest.mark.serves("Q5")
def test_without_a_failure_handler_the_job_ends_dead(shop: Workshop) -> None:
    id = shop.send("uncaught_failure", queue="caught", max_failures=0)
    record = dead(shop, id, "caught")
    assert (record.message or "").startswith("ValueError: nobody hears this")
    shop.wait_empty("caught")


# -- workers that come and go ----------------------------------------------------------------------


def test_no_keys_are_left_after_the_work(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        worker = shop.start("attempts")
        ids = shop.send_many(shop.call(f"{way}_fine", number) for number in range(20) for way in WAYS)
        ids.append(shop.send("caught_failure", "luck", queue="caught", max_failures=0))
        shop.wait_empty("default", "caught")
        assert worker.stop() == 0
        shop.app.close()
        assert keys_left(server) == []


@pytest.mark.serves("Q5")
def test_a_failure_job_survives_the_death_of_its_worker(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        shop.start("catching", environment={"WINDLASS_TEST_DIE": "1"}, lease=2.0)
        id = shop.send("fail_and_die", queue="catching", max_failures=0)
        shop.journal.wait(1, "try", id=id)
        # The failure job exists as soon as the job is settled. The handler, which kills the worker, runs only then.
        shop.journal.wait(1, "dying")
        shop.workers[0].kill_everything()
        shop.start("catching", environment={"WINDLASS_TEST_DIE": "0"}, lease=2.0)
        shop.journal.wait(1, "told")
        assert len(shop.journal.all("try", id=id)) == 1
        shop.wait_empty("catching")


def test_a_rolling_restart_to_an_app_with_more_tasks(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        old = shop.start("rolling", environment={"WINDLASS_TEST_TASKS": "a"}, lease=1.5)
        calls = [shop.call(task, number) for number in range(150) for task in ("a", "b")]
        random.Random(7).shuffle(calls)
        ids = shop.send_many(calls)
        wait_until(lambda: shop.queue().counts().parked == 150, "the b jobs to be put aside")
        assert {entry.task for entry in shop.journal.all("done")} == {"a"}
        new = shop.start("rolling", environment={"WINDLASS_TEST_TASKS": "ab"}, lease=1.5)
        more = shop.send_many(shop.call("b", number) for number in range(50))
        assert old.stop() == 0
        shop.wait_empty()
        done = shop.journal.all("done")
        assert Counter(entry.id for entry in done) == Counter([*ids, *more])
        assert {entry.attempt for entry in done} == {1}
        assert {entry.more["mark"] for entry in done if entry.task == "b"} == {"ab"}
        assert shop.queue().counts().parked == 0
        assert new.stop() == 0


# -- hand-over -----------------------------------------------------------------------------------


def test_children_are_enqueued_only_when_their_parent_completes(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        shop.start("families")
        good = shop.send_many(shop.call(f"{way}_parent", 3, False, queue="parents") for way in WAYS for _ in range(10))
        bad = shop.send_many(
            shop.call(f"{way}_parent", 3, True, queue="parents", max_failures=1, min_backoff=0.02)
            for way in WAYS
            for _ in range(5)
        )
        shop.wait_empty("parents", "children", "parents")
        assert_children(shop, good, 3)
        assert not {entry.more["parent"] for entry in shop.journal.all("child")} & set(bad)
        assert shop.queue("parents").counts().dead == len(bad)


def test_children_are_enqueued_once_although_runners_are_killed(server: Server, tmp_path: Path) -> None:
    parents = int(os.environ.get("WINDLASS_PARENTS", "200"))
    most_kills = parents // 20
    chance = random.Random(11)
    kills = 0
    with Workshop(server, tmp_path) as shop:
        worker = shop.start("families", lease=3.0)
        ids: list[str] = []
        until = time.monotonic() + 60
        while time.monotonic() < until:
            counts = shop.queue("parents").counts()
            if not (counts.waiting or counts.running):
                if kills >= 3:
                    break
                ids += shop.send_many(  # repeatedly: a fast machine finishes them between two kills
                    shop.call(f"{chance.choice(WAYS)}_parent", 2, False, queue="parents", max_stalls=1000)
                    for _ in range(parents)
                )
            runners = {entry.pid for entry in shop.journal.all("parent")[-5:] if entry.more["way"] != "process"}
            for pid in runners if kills < most_kills else ():
                try:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass
            pass_time(chance.uniform(0.05, 0.4))
        shop.wait_empty("parents", "children", "parents")
        print(f"\n{kills} runners killed under {len(ids)} parents; {len(shop.journal.all('parent'))} attempts")
        assert kills >= 3
        assert worker.process.poll() is None
        assert_children(shop, ids, 2)
        assert shop.queue("parents").counts().dead == 0


def assert_children(shop: Workshop, parents: list[str], each: int) -> None:
    """Check that each parent has the children of one attempt, and that each child ran once, or again if killed."""
    born = {entry.id: entry.more for entry in shop.journal.all("child")}
    families: dict[str, list[dict[str, Any]]] = {}
    for child in born.values():
        families.setdefault(child["parent"], []).append(child)
    assert sorted(families) == sorted(parents)
    for parent, children in families.items():
        assert len({child["fence"] for child in children}) == 1, f"{parent} has children of two attempts"
        numbers = sorted((child["number"], child["queue"]) for child in children)
        assert numbers == sorted((number, queue) for number in range(each) for queue in ("parents", "children"))
