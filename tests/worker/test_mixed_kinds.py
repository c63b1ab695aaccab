"""Jobs of several kinds on one queue: the few slots of a rare kind do not shrink the batches of the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.server import Server
from tests.support.workers import Workshop


def test_quick_jobs_are_leased_in_large_batches_beside_process_jobs(server: Server, shop: Workshop) -> None:
    shop.send_many(shop.call("quick", number, queue="mixed") for number in range(3000))
    with server.client() as client:
        client.config_resetstat()
        shop.start("mixed", concurrency=100, processes=2)
        shop.wait_empty("mixed")
        stats: Any = client.info("commandstats")
    looks = int(stats["cmdstat_zpopmin"]["calls"])
    print(f"\n3,000 jobs in {looks} looks")
    assert looks < 300


def test_surplus_jobs_of_a_rare_kind_are_returned(shop: Workshop) -> None:
    shop.send_many(shop.call("quick", number, queue="mixed") for number in range(2000))
    workers = [shop.start("mixed", concurrency=100, processes=2, lease=30.0) for _ in range(2)]
    shop.wait_empty("mixed")
    ids = shop.send_many(shop.call("slow", 0.4, queue="mixed") for _ in range(16))
    shop.wait_empty("mixed")
    assert Counter(shop.journal.ids("end")) == Counter(ids), "each once"
    assert {entry.attempt for entry in shop.journal.all("start")} == {1}, "and nobody was charged"
    ran_by = [entry.pid for entry in shop.journal.all("start")]
    shares = [sum(pid in worker.processes() for pid in ran_by) for worker in workers]
    print(f"\nrun by each worker: {shares}")
    assert sum(shares) == len(ids)
    assert min(shares) >= 3
