"""A worker stops in time and loses no job. Also: replaced runners, pauses, cancellations and queue weights."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from itertools import pairwise

import pytest

from tests.support.waiting import FOREVER_S, LIMIT_S, wait_until
from tests.support.workers import Workshop, keys_left, pass_time, wait_dead

QUEUES = {"loop": "loops", "thread": "threads", "process": "processes"}
WAYS = tuple(QUEUES)


def send(shop: Workshop, way: str, seconds: float) -> str:
    return shop.send(f"{way}_wait", seconds, queue=QUEUES[way])


def attempts(shop: Workshop) -> dict[str, list[int]]:
    """Job → the attempt numbers of its starts."""
    found: dict[str, list[int]] = {}
    for entry in shop.journal.all("start"):
        found.setdefault(entry.id, []).append(entry.attempt)
    return found


# -- stopping ------------------------------------------------------------------------------------


@pytest.mark.serves("W12", "Q1")
def test_a_loaded_worker_stops_in_time_and_no_attempt_is_charged(shop: Workshop) -> None:
    tries = int(os.environ.get("WINDLASS_STOP_TRIES", "3"))
    grace = 1.5
    chance = random.Random(5)
    ids: list[str] = []
    for _ in range(tries):
        worker = shop.start("queues", grace=grace, concurrency=10, threads=3, processes=2)
        seen = len(shop.journal.all("start"))
        ids += shop.send_many(
            shop.call(f"{way}_wait", chance.choice([0.01, 0.1, 0.4, FOREVER_S]), queue=QUEUES[way])
            for _ in range(12)
            for way in WAYS
        )
        shop.journal.wait(seen + 15, "start")
        assert worker.stop() == 0
        assert worker.processes() == []
        assert all(shop.queue(queue).counts().running == 0 for queue in QUEUES.values()), "all was given back"
        assert all(shop.queue(queue).counts().holders == 0 for queue in QUEUES.values())
        long = cancel_long(shop)
        ids = [id for id in ids if id not in long]
    worker = shop.start("queues", grace=grace, concurrency=20, threads=8, processes=4)
    shop.wait_empty(*QUEUES.values())
    tried = attempts(shop)
    assert set(ids) <= set(shop.journal.ids("end")), "lost"
    assert {attempt for numbers in tried.values() for attempt in numbers} == {1}, "charged"
    ended = Counter(shop.journal.ids("end"))
    assert all(ended[id] == 1 for id in ids), "what came to its end within the grace is not run again"


def cancel_long(shop: Workshop) -> set[str]:
    """Remove the jobs that the test does not wait for, and return their ids."""
    found = set()
    for name in QUEUES.values():
        queue = shop.queue(name)
        long = [job.id for job in queue.all_jobs("ready") if b"[%.1f]" % FOREVER_S in job.data]
        assert all(queue.cancel(id) for id in long)
        found.update(long)
    return found


def test_an_idle_worker_stops_at_once_and_leaves_nothing(shop: Workshop) -> None:
    worker = shop.start("queues", grace=FOREVER_S)
    wait_until(lambda: len([key for key in keys_left(shop.server) if key.endswith(":idle")]) == 5, "it to be idle")
    assert worker.stop() == 0
    shop.app.close()
    assert keys_left(shop.server) == []


def test_a_second_signal_returns_all_jobs_at_once(shop: Workshop) -> None:
    worker = shop.start("queues", grace=FOREVER_S)
    ids = [send(shop, way, FOREVER_S) for way in WAYS]
    shop.journal.wait(3, "start")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "Stopping" in worker.log, "the first signal to be heard")
    assert worker.process.poll() is None
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(LIMIT_S) == 0
    for way, id in zip(WAYS, ids, strict=True):
        record = shop.queue(QUEUES[way]).get(id)
        assert record is not None
        assert (record.state, record.failures, record.stalls) == ("ready", 0, 0)


def test_two_signals_at_once_return_all_jobs_at_once(shop: Workshop) -> None:
    worker = shop.start("queues", grace=FOREVER_S)
    for way in WAYS:
        send(shop, way, FOREVER_S)
    shop.journal.wait(3, "start")
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    assert worker.process.wait(LIMIT_S) == 0
    assert all(shop.queue(queue).counts().ready == 1 for queue in QUEUES.values())


def test_a_signal_while_the_worker_starts_stops_it(shop: Workshop) -> None:
    for pause in (0.15, 0.3, 0.45):
        worker = shop.start("queues", wait=False)
        pass_time(pause)
        worker.signal(signal.SIGTERM)
        code = worker.process.wait(LIMIT_S)
        assert code in (0, -signal.SIGTERM), worker.log
        worker.wait_gone()


def test_a_worker_with_a_blocking_job_stops_in_time(shop: Workshop) -> None:
    worker = shop.start("queues", grace=1.0)
    id = shop.send("thread_wait", FOREVER_S, queue="threads")
    shop.journal.wait(1, "start", id=id)
    assert worker.stop() == 0
    record = shop.queue("threads").get(id)
    assert record is not None
    assert (record.state, record.failures, record.stalls) == ("ready", 0, 0)


# -- recycling -----------------------------------------------------------------------------------


def test_a_runner_is_replaced_after_max_jobs(shop: Workshop) -> None:
    worker = shop.start("queues", max_jobs=300, concurrency=10)
    ids = shop.send_many(shop.call("loop_wait", 0.01, queue="loops") for _ in range(2500))
    shop.wait_empty("loops")
    assert Counter(shop.journal.ids("end")) == Counter(ids)
    assert {entry.attempt for entry in shop.journal.all("start")} == {1}
    ends = shop.journal.all("end")
    runners = list(dict.fromkeys(entry.pid for entry in ends))
    assert len(runners) >= 3
    assert not shop.journal.overlaps()
    wait_dead(*runners[:-1])
    assert worker.stop() == 0


def test_a_child_is_replaced_after_max_jobs(shop: Workshop) -> None:
    shop.start("queues", max_jobs=10, processes=1)
    ids = shop.send_many(shop.call("process_wait", 0.0, queue="processes") for _ in range(45))
    shop.wait_empty("processes")
    ends = shop.journal.all("end")
    assert Counter(entry.id for entry in ends) == Counter(ids)
    assert max(Counter(entry.pid for entry in ends).values()) <= 10
    assert {entry.attempt for entry in ends} == {1}


def test_a_child_above_max_rss_is_replaced_after_its_job(shop: Workshop) -> None:
    worker = shop.start("queues", processes=1, max_rss=120_000_000)
    first = shop.send("grow", 150, queue="processes")
    pid = shop.journal.wait(1, "end", id=first)[0].pid
    wait_dead(pid)
    second = send(shop, "process", 0.0)
    assert shop.journal.wait(1, "end", id=second)[0].pid != pid
    assert attempts(shop) == {first: [1], second: [1]}
    assert "Runner " not in worker.log


# -- while it runs -------------------------------------------------------------------------------


def test_a_paused_queue_is_left_alone_and_goes_on_when_resumed(shop: Workshop) -> None:
    shop.start("queues")
    queue = shop.queue("loops")
    queue.pause()
    ids = [send(shop, "loop", 0.0) for _ in range(10)]
    other = send(shop, "thread", 0.0)
    shop.journal.wait(1, "end", id=other)
    pass_time(1.5)  # more than MIN_POLL_S
    assert not set(ids) & set(shop.journal.ids("start"))
    assert queue.counts().ready == 10
    queue.resume()
    shop.journal.wait(11, "end")


@pytest.mark.serves("W10")
@pytest.mark.parametrize("way", WAYS)
def test_a_running_job_sees_its_cancellation_and_is_removed(shop: Workshop, way: str) -> None:
    # No heartbeat is sent during the test, so a job hears of its cancellation from the published message.
    worker = shop.start("queues", kill_grace=0.5, lease=FOREVER_S)
    bystander = send(shop, "loop", 1.0)
    for _ in range(5):
        id = shop.send(f"{way}_listen", FOREVER_S, queue=QUEUES[way])
        start = shop.journal.wait(1, "start", id=id)[0]
        assert shop.queue(QUEUES[way]).cancel(id, running=True)
        if way == "process":
            wait_dead(start.pid)
        else:
            shop.journal.wait(1, "cancelled", id=id)
        shop.wait_job_gone(QUEUES[way], id)
    shop.wait_empty(*QUEUES.values())
    assert shop.journal.ids("end") == [bystander]
    assert all(numbers == [1] for numbers in attempts(shop).values())
    assert "Runner " not in worker.log


def test_two_full_queues_are_served_by_their_weights(shop: Workshop) -> None:
    for name in ("heavy", "light"):
        shop.send_many(shop.call(name, queue=name) for _ in range(1200))
    shop.start("queues", queues={"heavy": 3, "light": 1}, concurrency=8)
    shop.wait_empty("heavy", "light")
    first = [entry.task for entry in shop.journal.all("done")][:1200]
    ratio = first.count("heavy") / first.count("light")
    print(f"\nweights 3 : 1, served {ratio:.2f} : 1")
    assert 2.4 <= ratio <= 3.6
    light = [place for place, task in enumerate(first) if task == "light"]
    waits = [later - earlier for earlier, later in pairwise(light)]
    assert max(waits) <= 200, "the lighter one waits for a batch or two of the other, never for long"


def test_a_long_empty_queue_does_not_starve_the_others(shop: Workshop) -> None:
    shop.start("queues", queues={"heavy": 1, "light": 1}, concurrency=4)
    shop.send_many(shop.call("heavy", queue="heavy") for _ in range(1500))
    shop.wait_empty("heavy")
    before = len(shop.journal.all("done"))
    for name in ("heavy", "light"):
        shop.queue(name).pause()
        shop.send_many(shop.call(name, queue=name) for _ in range(600))
    for name in ("heavy", "light"):
        shop.queue(name).resume()
    shop.wait_empty("heavy", "light")
    both = [entry.task for entry in shop.journal.all("done")][before:]
    share = both[:600].count("heavy") / 600
    print(f"\nshare of the queue that had been busy: {share:.0%} of the next 600")
    assert 0.35 <= share <= 0.65


@pytest.mark.serves("W7")
def test_an_idle_worker_is_woken(shop: Workshop) -> None:
    shop.start("queues", environment={"WINDLASS_TEST_POLL_S": str(FOREVER_S)})
    for number in range(40):
        way = WAYS[number % 2]
        wait_until(lambda: all(shop.queue(queue).counts().running == 0 for queue in QUEUES.values()), "idle")
        shop.journal.wait(1, "start", id=send(shop, way, 0.0))
