"""A server without free memory refuses new jobs, and workers go on settling until there is room again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.server import Server, valkey_binary
from tests.support.workers import Workshop
from windlass.errors import QueueFull

JOBS = int(os.environ.get("WINDLASS_FULL_JOBS", "3000"))


def fill(shop: Workshop, taken: list[str]) -> None:
    """Send jobs until they are refused."""
    kinds = ("loop_fine", "loop_fine", "thread_fine", "process_fine")
    while True:
        batch = [shop.call(kinds[n % len(kinds)], n) for n in range(50)]
        batch.append(shop.call("loop_raise"))  # fails, is retried, and ends dead
        taken += shop.send_many(batch)


def test_workers_drain_a_full_server(tmp_path: Path) -> None:
    with Server(valkey_binary(), config={"appendonly": "no"}) as server, Workshop(server, tmp_path) as shop:
        used = int(server.info("memory")["used_memory"])
        server.command("CONFIG", "SET", "maxmemory", used + 600 * JOBS)
        taken: list[str] = []
        with pytest.raises(QueueFull, match="its memory is full"):
            fill(shop, taken)
        assert len(taken) > JOBS / 10
        worker = shop.start("attempts", concurrency=50, processes=2)
        shop.wait_empty()
        counts = shop.queue().counts()
        failing = len(taken) // 51
        assert (counts.ready, counts.running, counts.dead) == (0, 0, failing)
        assert len(shop.journal.all("done")) == 50 * failing, "each once"
        assert len(shop.journal.all("try")) == 3 * failing
        assert "memory is full" not in worker.log, "no settle was refused"
        shop.send("loop_fine", 1)
        shop.wait_empty()
        print(f"{len(taken)} jobs on a full server: all settled, none refused")
