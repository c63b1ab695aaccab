"""The server loses data: it is flushed, or an old copy of its data is restored. A worker notices and recovers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, valkey_binary
from tests.support.waiting import wait_until
from tests.support.workers import Workshop
from windlass import Windlass

QUEUES = {"first": 1}


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that keeps a log, for one test."""
    with Server(valkey_binary(), config={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


def restore(server: Server, copy: Path) -> None:
    """Replace the log with an old copy."""
    server.kill()
    shutil.rmtree(server.dir / "appendonlydir")
    shutil.copytree(copy, server.dir / "appendonlydir")
    server.start()


def test_a_job_that_an_old_copy_shows_as_leased_runs_again(own: Server, tmp_path: Path) -> None:
    """The job was done, but the copy shows it as leased by this worker, whose heartbeats would keep it so."""
    gate, copy = tmp_path / "gate", tmp_path / "copy"
    with Workshop(own, tmp_path) as shop:
        worker = shop.start("waiting", queues=QUEUES, lease=600, concurrency=4)
        done = shop.send("wait_for", str(gate), queue="first")
        shop.journal.wait(1, "start", id=done)
        shutil.copytree(own.dir / "appendonlydir", copy)
        gate.touch()
        shop.journal.wait(1, "end", id=done)
        shop.wait_empty("first")
        restore(own, copy)
        shop.journal.wait(2, "end", id=done)  # far sooner than the lease ends
        shop.wait_empty("first")
        shop.wait(lambda: "has lost data" in worker.log, "the log of the loss")
        first, second = shop.journal.all("start", id=done)
        assert second.fence > first.fence
        assert second.attempt == 1, "nobody is charged"


def test_running_jobs_that_the_old_copy_knows_go_on(own: Server, tmp_path: Path) -> None:
    gate, open_gate, copy = tmp_path / "gate", tmp_path / "open", tmp_path / "copy"
    open_gate.touch()
    with Workshop(own, tmp_path) as shop:
        shop.start("waiting", queues=QUEUES, lease=30, concurrency=4)
        running = shop.send("wait_for", str(gate), queue="first")
        shop.journal.wait(1, "start", id=running)
        shutil.copytree(own.dir / "appendonlydir", copy)
        shop.send_many(shop.call("wait_for", str(open_gate), queue="first") for _ in range(20))
        shop.journal.wait(20, "end")
        restore(own, copy)
        later = shop.send("wait_for", str(open_gate), queue="first")
        shop.journal.wait(1, "end", id=later)  # leases are compared before the first new one
        gate.touch()
        shop.wait_empty("first")
        assert len(shop.journal.all("start", id=running)) == 1, "it was ours all the time"


def test_a_flushed_server_is_noticed(own: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Workshop(own, tmp_path) as shop:
        worker = shop.start("waiting", queues=QUEUES, lease=3, concurrency=4)
        lost = shop.send("wait_for", str(gate), queue="first")
        shop.journal.wait(1, "start", id=lost)
        own.command("FLUSHALL")
        gate.touch()
        found = shop.send("wait_for", str(gate), queue="first")
        shop.journal.wait(1, "end", id=found)
        shop.wait_empty("first")
        known = ("has lost data", "it lost its leases")  # the runner or the supervisor notices it first
        wait_until(lambda: any(words in worker.log for words in known), "the worker to find out")


def test_a_purge_is_no_rewind(own: Server) -> None:
    with Windlass(own.url) as app, Windlass(own.url) as other:
        layout = app.layout("q")
        for _ in range(3):
            app.queue("q").enqueue(b"x")
            other.queue("q").purge()
        app.queue("q").enqueue(b"x")
        assert layout.data_losses == 0
        own.command("FLUSHALL")
        app.queue("q").enqueue(b"x")
        assert layout.data_losses == 1
        app.queue("q").purge()


def test_a_waiting_job_that_the_old_copy_does_not_know_never_starts(own: Server, tmp_path: Path) -> None:
    """The jobs were leased after the copy was made, so the server leases them again."""
    gate, open_gate, copy = tmp_path / "gate", tmp_path / "open", tmp_path / "copy"
    open_gate.touch()
    with Workshop(own, tmp_path) as shop:
        worker = shop.start("waiting", queues=QUEUES, lease=30, concurrency=1)
        # Jobs so short that some are leased ahead, and then one that keeps the only slot.
        shop.send_many(shop.call("wait_for", str(open_gate), queue="first") for _ in range(150))
        shop.journal.wait(150, "end")
        blocker = shop.send("wait_for", str(gate), queue="first")
        shop.journal.wait(1, "start", id=blocker)
        queue = shop.queue("first")
        queue.pause()
        behind = shop.send_many(shop.call("wait_for", str(open_gate), queue="first") for _ in range(5))
        shutil.copytree(own.dir / "appendonlydir", copy)
        queue.resume()
        wait_until(lambda: queue.counts().running > 1, "some to be fetched ahead")
        restore(own, copy)
        wait_until(lambda: "has lost data" in worker.log, "the worker to find out")
        later = time.monotonic()
        queue.resume()
        gate.touch()
        shop.wait_empty("first")
        for id in behind:
            assert [entry.at > later for entry in shop.journal.all("start", id=id)] == [True], "once, by its new lease"
