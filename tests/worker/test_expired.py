"""A worker drops a job that expired before it could start, says so, and runs the next one."""

from __future__ import annotations

from pathlib import Path

from tests.support.waiting import wait_until
from tests.support.workers import Workshop


def test_an_expired_job_is_dropped_and_logged_and_the_next_one_runs(shop: Workshop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    queue = shop.queue("loops")
    old = shop.send("loop_wait", str(gate), queue="loops")
    assert queue.update(old, expires=0.001)
    new = shop.send("loop_wait", str(gate), queue="loops")
    worker = shop.start("endings", queues={"loops": 1}, lease=2.0)
    shop.journal.wait(1, "end", id=new)
    shop.wait_empty("loops")
    dropped = f"loops/{old}: expired before it could start; it was dropped"
    wait_until(lambda: dropped in worker.log, "the log of the expired job")  # logs are written by a thread
    assert not shop.journal.all(id=old)
