"""Rare ends: a server that no longer answers, runners that are replaced, hand-overs that are too large, cancellations
that nobody heard, a blocked loop. And what the log tells of arguments.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.proxy import DROP_REQUEST, FORWARD, HANG, Fault, FaultProxy, always, delay
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.workers import ROOT, Entry, Workshop, wait_dead
from windlass.storage.native import scripts
from windlass.tasks.context import MAX_HAND_OVER_BYTES, MAX_HAND_OVERS
from windlass.tasks.envelope import write_envelope
from windlass.values.validation import MAX_PAYLOAD
from windlass.worker.supervisor import runner_group, supervisor

QUEUES = {"loop": "loops", "thread": "threads", "process": "processes"}
WAYS = tuple(QUEUES)


@pytest.fixture(scope="module", autouse=True)
def blocked(shared_shop: Workshop) -> str:
    """A job that blocks the loop of a worker of its own, long enough for two warnings.

    That takes its time: it begins before all tests, and the last one looks what came of it.
    """
    shared_shop.start("endings", lease=2.0)
    return shared_shop.send(
        "block", runner_group.LAG_WARNING_S + 2 * supervisor.MEMORY_CHECK_EVERY_S + 0.4, queue="loops"
    )


def send(shop: Workshop, way: str, gate: Path, queue: str | None = None) -> str:
    """Send a job that runs until the gate opens."""
    return shop.send(f"{way}_wait", str(gate), queue=queue or QUEUES[way])


# -- a server that hangs ---------------------------------------------------------------------------


@pytest.mark.serves("Q1")
def test_a_worker_stops_in_time_when_its_server_hangs(server: Server, tmp_path: Path) -> None:
    """Two workers: one gives up on a call early, the other long after the test is over."""
    grace, lease = 0.6, 3.0
    soon, later = tmp_path / "soon", tmp_path / "later"
    with (
        FaultProxy(server.address) as first,
        FaultProxy(server.address) as second,
        Workshop(server, tmp_path, url=first.url) as shop,
    ):
        impatient, patient = (
            shop.start(
                "endings",
                wait=False,
                queues={name: 1},
                grace=grace,
                lease=lease,
                environment={"WINDLASS_URL": proxy.url, "WINDLASS_TEST_PATIENCE": patience},
            )
            for name, patience, proxy in (("impatient", "0.5", first), ("patient", str(4 * LIMIT_S), second))
        )
        shop.wait_ready(impatient)
        shop.wait_ready(patient)
        queues = ("impatient", "patient")
        going_on = [send(shop, way, later, queue) for queue in queues for way in WAYS]
        ending = [send(shop, way, soon, queue) for queue in queues for way in WAYS]
        shop.journal.wait(12, "start")
        first.faults = second.faults = always(HANG)
        impatient.signal(signal.SIGTERM)
        patient.signal(signal.SIGTERM)
        soon.touch()

        assert impatient.process.wait(LIMIT_S) == 0, impatient.log
        assert impatient.processes() == []
        assert (
            "Cannot reclaim the runner's jobs of queue impatient; they come back when their leases end: "
            in impatient.log
        )
        assert "was killed: it did not end within the grace period" in impatient.log
        shop.wait(lambda: "was killed: it did not end within the grace period" in patient.log, "the other worker's end")
        assert all(shop.queue(queue).counts().running == 6 for queue in queues), "nothing that they said was heard"
        assert not set(going_on) & set(shop.journal.ids("end"))

        first.faults = None
        later.touch()
        third = shop.start("endings", queues=dict.fromkeys(queues, 1), lease=lease)
        assert patient.process.wait(LIMIT_S) == 0, patient.log
        assert patient.processes() == []
        assert not any("Internal error" in worker.log for worker in (impatient, patient))

        shop.wait_empty(*queues)
        again = Counter((entry.id, entry.attempt) for entry in shop.journal.all("end") if entry.attempt > 1)
        assert again == Counter((id, 2) for id in going_on + ending), "each runs again, once, and none is lost"
        assert not shop.journal.overlaps()
        assert third.stop() == 0


# -- recycling beside long jobs ----------------------------------------------------------------------


def quick_elsewhere(shop: Workshop, runners: list[int]) -> Entry:
    """Wait for a quick job that ends on none of these runners, so on their successor."""

    def elsewhere() -> Entry | None:
        (end,) = shop.journal.wait(1, "end", id=shop.send("quick", queue="loops"))
        return end if end.pid not in runners else None

    return shop.wait(elsewhere, "a fresh runner")


def test_long_jobs_finish_on_a_replaced_runner(shop: Workshop, tmp_path: Path) -> None:
    """The runner is replaced twice: for max_jobs and for max_rss. The short graces must not apply."""
    gate, never = tmp_path / "gate", tmp_path / "never"
    grace = 0.3
    worker = shop.start("endings", max_jobs=50, max_rss=200_000_000, grace=grace, kill_grace=0.2, lease=2.0)
    given_back = send(shop, "loop", never)
    long = [send(shop, way, gate) for way in WAYS]
    (first,) = {entry.pid for entry in shop.journal.wait(4, "start") if entry.task != "process_wait"}

    shop.send_many(shop.call("quick", queue="loops") for _ in range(50))
    second = quick_elsewhere(shop, [first]).pid
    assert worker.log.count("it has run max_jobs jobs") == 1
    long += [send(shop, way, gate) for way in WAYS]
    assert second in {entry.pid for entry in shop.journal.wait(7, "start")}

    shop.send("grow", 250, queue="threads")
    third = quick_elsewhere(shop, [first, second]).pid
    assert worker.log.count("its memory is above max_rss") == 1
    assert not {given_back, *long} & set(shop.journal.ids("end")), "they still run"

    gate.touch()
    for id in long:
        (start,) = shop.journal.all("start", id=id)
        (end,) = shop.journal.wait(1, "end", id=id)
        assert (end.run, end.pid, end.attempt) == (start.run, start.pid, 1)
    wait_dead(second)
    shop.wait(lambda: shop.queue("loops").counts().running == 1, "all else to be settled")
    # The first runner still has a job, and SIGTERM applies to it too.
    assert worker.stop() == 0
    wait_dead(first, third)
    record = shop.queue("loops").get(given_back)
    assert record is not None
    assert (record.state, record.failures, record.stalls) == ("ready", 0, 0)
    assert len(shop.journal.all("start")) == 7, "each was begun once"
    assert not re.search("Runner .* (was killed|died)", worker.log)


def test_a_late_heartbeat_answer_for_a_gone_runner_is_ignored(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with FaultProxy(server.address) as proxy, Workshop(server, tmp_path, url=proxy.url) as shop:
        worker = shop.start("endings", queues={"loops": 1}, max_jobs=10, lease=3.0)
        (long,) = shop.journal.wait(1, "start", id=send(shop, "loop", gate))
        shop.send_many(shop.call("quick", queue="loops") for _ in range(10))
        quick_elsewhere(shop, [long.pid])
        old, beats = f"{worker.name}.1".encode(), []

        def hold_old(request: list[bytes]) -> Fault:
            if scripts.BEAT.sha.encode() not in request:
                return FORWARD
            beats.append(old in request)
            return delay(1.0) if old in request else FORWARD

        proxy.faults = hold_old
        wait_until(lambda: True in beats, "a heartbeat for the old runner")
        gate.touch()
        wait_until(lambda: shop.queue("loops").counts().holders == 1, "what it held to be given back")
        seen = beats.count(False)
        wait_until(lambda: beats.count(False) >= seen + 2 or worker.process.poll() is not None, "more heartbeats")
        assert worker.process.poll() is None, worker.log
        assert "Internal error" not in worker.log


# -- handing over too much -------------------------------------------------------------------------

TOO_MUCH = {"jobs": (MAX_HAND_OVERS + 1, 100), "bytes": (9, MAX_PAYLOAD)}
JUST_FITS = {"jobs": (MAX_HAND_OVERS, 100), "bytes": (8, MAX_PAYLOAD)}


def test_a_hand_over_above_the_limit_fails_the_parent(shop: Workshop) -> None:
    assert MAX_HAND_OVER_BYTES == 8 * MAX_PAYLOAD
    shop.start("endings", queues={"parents": 1})
    limits: dict[str, Any] = {"max_failures": 1, "min_backoff": 0.02}
    retried = [
        shop.send(f"{way}_parent", *case, queue="parents", **limits) for way in WAYS for case in TOO_MUCH.values()
    ]
    strict = [shop.send("strict_parent", *case, queue="parents", **limits) for case in TOO_MUCH.values()]
    for id in retried + strict:
        record = shop.wait_state("parents", id, "dead")
        tries = 2 if id in retried else 1
        assert [entry.attempt for entry in shop.journal.all("try", id=id)] == [1, 2][:tries]
        assert (record.failures, record.stalls, record.reason) == (tries, 0, "failed")
        message = (record.message or "").partition("\n")[0]
        assert "InvalidOption: a job can hand over 1,000 jobs and 8,388,608 bytes at most: hand over jobs" in message
    shop.wait_empty("parents")
    counts = shop.queue("children").counts()
    assert (counts.waiting, counts.running, counts.dead) == (0, 0, 0)


def test_a_hand_over_at_the_limit_works(shop: Workshop) -> None:
    shop.start("endings", queues={"parents": 1})
    ids = [shop.send(f"{way}_parent", *case, queue="parents") for way in WAYS for case in JUST_FITS.values()]
    shop.wait_empty("parents")
    assert Counter(shop.journal.ids("try")) == Counter(ids)
    children = Counter(len(child.data) for child in shop.queue("children").all_jobs("ready"))
    assert children == {size: count * len(WAYS) for count, size in JUST_FITS.values()}


# -- arguments in the log --------------------------------------------------------------------------

SECRET = "the-word-is-swordfish"


@contextmanager
def command(shop: Workshop, folder: Path, *words: str) -> Iterator[Path]:
    """Run `windlass worker` as a user does, and yield its log file. It must exit with code 0."""
    path = folder / "command.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "windlass", "worker", "tests.worker.apps.endings:app", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "WINDLASS_URL": shop.url, "WINDLASS_TEST_JOURNAL": str(shop.journal.path)},
            cwd=ROOT,
        )
    try:
        yield path
        process.terminate()
        assert process.wait(20) == 0, path.read_text()
    finally:
        process.kill()
        process.wait()


def told_of_jobs(log: Path) -> list[dict[str, Any]]:
    """Return the log lines about ended attempts."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if "outcome" in line]


@pytest.mark.parametrize("flags", [[], ["--log-arguments"]], ids=["plain", "log-arguments"])
def test_arguments_are_logged_only_on_request(shop: Workshop, tmp_path: Path, flags: list[str]) -> None:
    fine = shop.send("keep_secret", SECRET, queue="secrets")
    failing = [shop.send(f"{way}_lose_secret", SECRET, queue="secrets") for way in ("loop", "process")]
    payloads = [
        write_envelope("keep_secret", json.dumps({"secret": [SECRET]}).encode()),
        write_envelope("loop_lose_secret", json.dumps([SECRET, SECRET]).encode()),
        json.dumps({"task": "keep_secret", "args": SECRET}).encode(),
        SECRET.encode(),
    ]
    broken = [receipt.id for receipt in shop.queue("secrets").enqueue_many(payloads)]
    expected = Counter(
        [(fine, "completed")]
        + [(id, outcome) for id in failing for outcome in ("retried", "failed")]
        + [(id, "broken") for id in broken]
    )
    with command(shop, tmp_path, "--queue", "secrets", "--log-level", "debug", *flags) as log:
        wait_until(lambda: len(told_of_jobs(log)) >= expected.total(), "every end to be told")
    told = told_of_jobs(log)
    assert Counter((line["job_id"], line["outcome"]) for line in told) == expected
    if flags:
        assert all(SECRET in line["data"] and line["data"] in line["message"] for line in told)
    else:
        assert not any("data" in line for line in told)
        assert SECRET not in log.read_text()


def test_a_value_that_does_not_fit_is_not_in_the_log(shop: Workshop) -> None:
    worker = shop.start("endings", queues={"secrets": 1})
    id = shop.send("keep_secret", "nothing", SECRET, queue="secrets")
    shop.wait_state("secrets", id, "broken")
    shop.wait(lambda: id in worker.log, "it to be told")
    assert SECRET not in worker.log


# -- cancelled without a subscription ----------------------------------------------------------------


def listeners(server: Server) -> list[str]:
    """Return the subscribed cancellation channels."""
    with server.client() as client:
        return [name.decode() for name in client.pubsub_channels("*") if b"cancel" in name]


@pytest.mark.serves("W10")
def test_a_missed_cancellation_arrives_after_resubscribing(server: Server, tmp_path: Path) -> None:
    never = tmp_path / "never"
    with FaultProxy(server.address) as proxy, Workshop(server, tmp_path, url=proxy.url) as shop:
        worker = shop.start("endings", kill_grace=0.5)
        ids = {way: send(shop, way, never) for way in WAYS}
        bystanders = [send(shop, way, never) for way in WAYS]
        shop.journal.wait(6, "start")
        wait_until(lambda: listeners(server), "the worker to listen")
        proxy.faults = always(DROP_REQUEST, only={"SUBSCRIBE"})
        proxy.disconnect()
        wait_until(lambda: not listeners(server), "the subscription to be gone")
        assert all(shop.queue(QUEUES[way]).cancel(id, running=True) for way, id in ids.items())
        assert listeners(server) == []
        assert not shop.journal.all("cancelled")
        proxy.faults = None
        wait_until(lambda: listeners(server), "the worker to listen again")
        for way, id in ids.items():
            shop.wait_job_gone(QUEUES[way], id)
        heard = [ids["loop"], ids["thread"]]
        assert sorted(entry.id for entry in shop.journal.wait(2, "cancelled")) == sorted(heard)
        wait_dead(shop.journal.all("start", id=ids["process"])[0].pid)
        running = {job.id for queue in QUEUES.values() for job in shop.queue(queue).all_jobs("running")}
        assert running == set(bystanders), "others go on"
        assert "Runner " not in worker.log


# -- a blocked event loop --------------------------------------------------------------------------


def test_a_job_that_blocks_the_event_loop_gives_one_warning(shared_shop: Workshop, blocked: str) -> None:
    (worker,) = shared_shop.workers
    shared_shop.journal.wait(1, "end", id=blocked)
    shared_shop.wait_empty("loops")
    (lag,) = re.findall(
        r'! A job has blocked the event loop for (\d\.\d) s; declare its task with run="process"\n', worker.log
    )
    assert float(lag) >= runner_group.LAG_WARNING_S
    assert [entry.attempt for entry in shared_shop.journal.all("start", id=blocked)] == [1], "it is left alone"
    assert worker.stop() == 0
