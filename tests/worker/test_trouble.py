"""Isolated trouble: a damaged queue, or a poison job in the runner, does not stop the other jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workers import Workshop
from windlass.storage.native.keys import queue_key


def test_a_damaged_queue_does_not_stop_the_others(shop: Workshop) -> None:
    worker = shop.start("running", lease=2.0)
    slow = shop.send("loop_wait", 3.0, queue="loops")  # longer than the lease
    shop.journal.wait(1, "start", id=slow)
    with shop.server.client() as client:
        client.delete(queue_key("threads", "ready"))
        client.set(queue_key("threads", "ready"), "something else")
        shop.wait(lambda: worker.log.count("threads") >= 4, "several complaints")
        quick = [shop.send("loop_wait", 0.0, queue="loops") for _ in range(10)]
        shop.journal.wait(11, "end", task="loop_wait")
        assert [entry.attempt for entry in shop.journal.all("start", id=slow)] == [1]
        assert "Runner " not in worker.log
        assert "threads" in worker.log, "it complains"
        client.delete(queue_key("threads", "ready"))
    assert {entry.id for entry in shop.journal.all("end")} == {slow, *quick}
    mended = shop.send("thread_wait", 0.0, queue="threads")
    shop.journal.wait(1, "end", id=mended)


@pytest.mark.serves("Q4")
def test_poison_is_found_with_zero_process_slots(shop: Workshop) -> None:
    shop.start("hostile", processes=0)
    calls = [shop.call("loop_work", n < 3, queue="loops") for n in range(30)]
    ids = shop.send_many(calls)
    shop.wait_empty("loops")
    assert {record.id for record in shop.queue("loops").all_jobs("dead")} == set(ids[:3])
    assert {entry.id for entry in shop.journal.all("end")} == set(ids[3:])
    assert {entry.attempt for entry in shop.journal.all("end")} == {1}


def test_suspects_do_not_wait_for_each_other(shop: Workshop, tmp_path: Path) -> None:
    """One poison job kills the runner of ten long jobs: all of them start again at once, in processes."""
    gate = tmp_path / "gate"
    shop.start("running", processes=1)
    ids = shop.send_many(shop.call("loop_until", str(gate), queue="loops") for _ in range(10))
    shop.journal.wait(10, "start", task="loop_until")
    shop.send("loop_die_once", queue="loops")
    again = shop.journal.wait(20, "start", task="loop_until")[10:]
    assert not shop.journal.all("end", task="loop_until"), "none had to end before another one started"
    gate.touch()
    shop.wait_empty("loops")
    assert {entry.id for entry in shop.journal.all("end", task="loop_until")} == set(ids)
    assert {entry.attempt for entry in again} == {1}
