"""The server is killed, flushed or unreachable: a worker recovers by itself, and no job runs twice at a time."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.proxy import HANG, FaultProxy, always
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.support.workers import Worker, Workshop, pass_time
from windlass.worker import process_info

QUEUES = {"loop": "loops", "thread": "threads", "process": "processes"}
WAYS = tuple(QUEUES)


def send(shop: Workshop, count: int, *seconds: float) -> list[str]:
    return shop.send_many(
        shop.call(f"{way}_wait", *seconds, queue=QUEUES[way], max_stalls=1000) for _ in range(count) for way in WAYS
    )


def work_again(shop: Workshop, worker: Worker) -> None:
    """Wait until this worker has done a new job in every way of running."""
    for id in send(shop, 1, 0.0):
        shop.journal.wait(1, "end", id=id)
    assert worker.process.poll() is None


def test_a_killed_and_restarted_server_loses_nothing(tmp_path: Path) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}
    with Server(config=config) as server, Workshop(server, tmp_path) as shop:
        worker = shop.start("faults", lease=3.0, concurrency=10, threads=4, processes=2)
        ids = send(shop, 60, 0.05)
        for part in (20, 60, 100):
            shop.journal.wait(part, "end")
            server.kill()
            server.start()
            shop.journal.wait(len(shop.journal.all("end")) + 1, "end")
        shop.wait_empty(*QUEUES.values())
        ends = Counter(shop.journal.ids("end"))
        assert set(ends) == set(ids), "lost"
        print(f"{len(ids)} jobs, {sum(ends.values()) - len(ids)} run twice over three kills of the server")
        assert not shop.journal.overlaps()
        assert all(shop.queue(queue).counts().dead == 0 for queue in QUEUES.values())
        assert worker.process.poll() is None
        assert worker.stop() == 0


def test_a_flushed_server_stops_no_worker(shop: Workshop) -> None:
    worker = shop.start("faults", lease=1.5)
    send(shop, 10, 0.3)
    shop.journal.wait(4, "start")
    shop.server.command("FLUSHALL")
    work_again(shop, worker)
    shop.server.command("FLUSHALL")  # and idle
    # The worker notices, starts a new runner, and is idle then.
    pass_time(2.0)
    ended = worker.log.count("Runner ")
    pass_time(2.0)
    assert worker.log.count("Runner ") == ended, f"a crash loop:\n{worker.log}"
    work_again(shop, worker)
    assert worker.stop() == 0


def test_forgotten_scripts_are_loaded_again(shop: Workshop) -> None:
    worker = shop.start("faults", lease=1.5)
    ids = send(shop, 30, 0.02)
    for _ in range(10):
        seen = len(shop.journal.all("end"))
        shop.server.command("SCRIPT", "FLUSH")
        shop.journal.wait(min(len(ids), seen + 3), "end")
    shop.wait_empty(*QUEUES.values())
    assert Counter(shop.journal.ids("end")) == Counter(ids)
    assert "Runner " not in worker.log
    assert worker.stop() == 0


def test_an_outcome_is_sent_again_after_a_failed_turn(server: Server, tmp_path: Path) -> None:
    """The worker gives up the call, not the outcome: it settles the job when the server is reachable again."""
    with FaultProxy(server.address) as proxy, Workshop(server, tmp_path, url=proxy.url) as shop:
        worker = shop.start("gated", queues={"gated": 1}, lease=60.0, environment={"WINDLASS_TEST_PATIENCE": "0.3"})
        gate = tmp_path / "gate"
        id = shop.send("loop_gate", str(gate), queue="gated")
        shop.journal.wait(1, "start", id=id)
        proxy.down()
        gate.touch()
        shop.journal.wait(1, "end", id=id)
        failed = worker.log.count("trying again")
        # One turn may have started before the job ended; the next one carries its outcome.
        wait_until(lambda: worker.log.count("trying again") >= failed + 2, "its turn to fail")
        proxy.up()
        shop.wait_empty("gated")
        assert len(shop.journal.all("start", id=id)) == 1
        assert worker.stop() == 0


@pytest.mark.serves("Q14", "Q4")
@pytest.mark.parametrize("how", ["refused", "silent"])
def test_an_unreachable_worker_stops_its_jobs_before_others_start_them(
    server: Server, tmp_path: Path, how: str
) -> None:
    lease = 2.0
    with FaultProxy(server.address) as proxy, Workshop(server, tmp_path, url=proxy.url) as shop:
        first = shop.start("faults", lease=lease, concurrency=10, threads=4, processes=4)
        ids = send(shop, 2, 30.0, 1.0)
        for id in ids:
            shop.journal.wait(1, "start", id=id)
        first_pids = {entry.pid for entry in shop.journal.all("start")}
        shop.url = server.url
        second = shop.start("faults", lease=lease, concurrency=10, threads=4, processes=4)
        at = time.monotonic()
        cut(proxy, how)
        for id in ids:
            shop.journal.wait(2, "start", id=id)
        # A killed process writes no journal entry, so look at the processes themselves.
        assert not any(process_info.is_alive(pid) for pid in first_pids), "the first attempts were not stopped"
        pass_time(2.5 * lease, since=at)
        shop.wait_empty(*QUEUES.values())
        assert not shop.journal.overlaps()
        assert Counter(shop.journal.ids("end")) == Counter(ids)
        # Healed, the first worker works again.
        heal(proxy, how)
        assert second.stop() == 0
        work_again(shop, first)
        assert first.stop() == 0


def cut(proxy: FaultProxy, how: str) -> None:
    if how == "silent":
        proxy.faults = always(HANG)
    else:
        proxy.down()


def heal(proxy: FaultProxy, how: str) -> None:
    if how == "silent":
        proxy.faults = None
    else:
        proxy.up()
