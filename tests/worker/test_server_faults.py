"""The server is killed, emptied, or out of reach: a worker goes on by itself, and no job runs twice at a time."""

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


def work_again(shop: Workshop, worker: Worker, timeout: float = 15.0) -> float:
    """Wait until new jobs in every way are done by this worker; how long that took."""
    began = time.monotonic()
    ids = send(shop, 1, 0.0)
    for id in ids:
        shop.journal.wait(1, "end", id=id, timeout=timeout)
    assert worker.process.poll() is None
    return time.monotonic() - began


def test_a_server_that_is_killed_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}
    with Server(config=config) as server, Workshop(server, tmp_path) as shop:
        worker = shop.start("faults", lease=3.0, concurrency=10, threads=4, processes=2)
        ids = send(shop, 60, 0.05)
        back = []
        for part in (20, 60, 100):
            shop.journal.wait(part, "end")
            server.kill()
            server.start()
            at = time.monotonic()
            seen = len(shop.journal.all("end"))
            shop.journal.wait(seen + 1, "end")
            back.append(shop.journal.all("end")[seen].at - at)
        print(f"\nserver back to the next finished job: {', '.join(f'{each:.2f} s' for each in back)}")
        shop.wait_empty(*QUEUES.values())
        ends = Counter(shop.journal.ids("end"))
        assert set(ends) == set(ids), "lost"
        print(f"{len(ids)} jobs, {sum(ends.values()) - len(ids)} run twice over three kills of the server")
        assert not shop.journal.overlaps()
        assert all(shop.queue(queue).counts().dead == 0 for queue in QUEUES.values())
        assert worker.process.poll() is None
        assert worker.stop() == 0


def test_an_emptied_server_ends_no_worker(shop: Workshop) -> None:
    worker = shop.start("faults", lease=1.5)
    send(shop, 10, 0.3)
    shop.journal.wait(4, "start")
    shop.server.command("FLUSHALL")
    took = work_again(shop, worker)
    print(f"\nFLUSHALL to the next finished jobs in every way: {took:.2f} s")
    shop.server.command("FLUSHALL")  # and idle
    # It finds out, begins again, and is at rest then.
    pass_time(2.0)
    ended = worker.log.count("the runner")
    pass_time(2.0)
    assert worker.log.count("the runner") == ended, f"a crash loop:\n{worker.log}"
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
    assert "the runner" not in worker.log
    assert worker.stop() == 0


def test_an_outcome_whose_turn_failed_is_sent_with_the_next(server: Server, tmp_path: Path) -> None:
    """The worker gives that call up, not the job: it is settled as soon as the server can be reached."""
    with FaultProxy(server.address) as proxy, Workshop(server, tmp_path, url=proxy.url) as shop:
        worker = shop.start("gated", queues={"gated": 1}, lease=60.0, environment={"WINDLASS_TEST_PATIENCE": "0.3"})
        gate = tmp_path / "gate"
        id = shop.send("loop_gate", str(gate), queue="gated")
        shop.journal.wait(1, "start", id=id)
        proxy.down()
        gate.touch()
        shop.journal.wait(1, "end", id=id)
        failed = worker.log.count("trying again")
        # One may have been under way when the job ended; the next has its outcome.
        wait_until(lambda: worker.log.count("trying again") >= failed + 2, "its turn to fail")
        proxy.up()
        shop.wait_empty("gated")
        assert len(shop.journal.all("start", id=id)) == 1
        assert worker.stop() == 0


@pytest.mark.serves("Q14", "Q4")
@pytest.mark.parametrize("how", ["refused", "silent"])
def test_jobs_of_a_worker_that_cannot_reach_the_server_are_stopped_before_others_begin_them(
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
        again = [shop.journal.wait(2, "start", id=id)[1] for id in ids]
        soonest, latest = min(entry.at for entry in again) - at, max(entry.at for entry in again) - at
        print(f"\ncut off ({how}), run again after {soonest:.2f} to {latest:.2f} s")
        assert latest <= lease + 2.0
        # The slot_table of who ran when: a process that was ended writes nothing, so look whether it is there.
        assert not any(process_info.is_alive(pid) for pid in first_pids), "the first attempts were not stopped"
        pass_time(2.5 * lease, since=at)
        shop.wait_empty(*QUEUES.values())
        assert not shop.journal.overlaps()
        assert Counter(shop.journal.ids("end")) == Counter(ids)
        # Healed, the first worker works again.
        heal(proxy, how)
        assert second.stop() == 0
        took = work_again(shop, first, timeout=20)
        print(f"healed, work again after {took:.2f} s")
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
