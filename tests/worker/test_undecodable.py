"""Jobs that a worker cannot decode: none is dropped, and a worker with old code or wrong keys leaves them to others."""

from __future__ import annotations

import os
from base64 import b64encode
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.support.workers import Workshop
from windlass import Windlass
from windlass.tasks.envelope import write_envelope
from windlass.values.decode_guard import MAX_UNDECODABLE_IN_A_ROW
from windlass.values.options import RawJob

JOBS = 300
OLD = {"WINDLASS_TEST_RELEASE": "old"}
KEY, WRONG_KEY = os.urandom(32), os.urandom(32)


def keys(key: bytes) -> dict[str, str]:
    return {"WINDLASS_SIGNING_KEYS": f"k1:{b64encode(key).decode()}"}


def new_jobs(count: int = JOBS) -> list[RawJob]:
    """Calls that only the new release of `greet` can decode."""
    return [RawJob(write_envelope("greet", b'{"number": %d, "name": "Ada"}' % n), id=f"job-{n}") for n in range(count)]


def wait_suspended(shop: Workshop, queue: str = "default") -> None:
    wait_until(lambda: any(queue in worker.suspended for worker in shop.app.workers()), "the queue to be suspended")


def test_old_code_leaves_a_queue_to_a_worker_with_new_code(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        queue = shop.app.queue("default")
        queue.enqueue_many(new_jobs())
        old = shop.start("versions", environment=OLD)
        wait_suspended(shop)
        counts = queue.counts()
        assert 0 < counts.broken <= 2 * MAX_UNDECODABLE_IN_A_ROW, "one run, and the jobs that it tried since then"
        assert counts.ready + counts.running + counts.broken == JOBS
        assert "leases only one job at a time" in old.log
        shop.start("versions")
        wait_until(lambda: queue.counts().ready + queue.counts().running == 0, "the new worker to run the others")
        broken = [job.id for job in queue.jobs("broken", limit=100).jobs]
        old.stop()
        assert all(queue.revive(broken))
        assert {entry.id for entry in shop.journal.wait(JOBS, "done")} == {f"job-{n}" for n in range(JOBS)}


def test_wrong_keys_under_the_right_id_leave_a_queue_to_the_right_ones(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_SIGNING_KEYS", keys(KEY)["WINDLASS_SIGNING_KEYS"])
    with Workshop(server, tmp_path) as shop:
        queue = shop.app.queue("default")
        queue.enqueue_many(new_jobs())
        wrong = shop.start("versions", environment=keys(WRONG_KEY))
        wait_suspended(shop)
        counts = queue.counts()
        assert 0 < counts.broken <= 2 * MAX_UNDECODABLE_IN_A_ROW
        assert counts.ready + counts.running + counts.broken == JOBS
        wrong.stop()
        shop.start("versions", environment=keys(KEY))
        assert all(queue.revive([job.id for job in queue.jobs("broken", limit=100).jobs]))
        shop.journal.wait(JOBS, "done")


def test_a_queue_with_max_broken_jobs_is_suspended_and_loses_none(server: Server, tmp_path: Path) -> None:
    """No worker can decode these jobs: they go to `broken` until it is full."""
    most = 30
    with Workshop(server, tmp_path) as shop, Windlass(server.url, max_broken=most) as app:
        queue = app.queue("default")
        queue.enqueue_many([RawJob(b"no envelope %d" % n, id=f"bad-{n}") for n in range(50)])
        shop.start("versions", environment={"WINDLASS_TEST_MAX_BROKEN": str(most)})
        wait_suspended(shop)
        counts = queue.counts()
        assert (counts.broken, counts.ready + counts.running) == (most, 20)
        queue.enqueue(write_envelope("greet", b'{"number": 1}'), id="good")
        (worker,) = app.workers()
        assert "max_broken" in worker.suspended["default"]
        queue.purge("broken")
        shop.journal.wait(1, "done")  # it goes on by itself
        wait_until(lambda: queue.counts().broken == 20, "the other undecodable jobs to be found")
        wait_until(lambda: not app.workers()[0].suspended, "the worker to say that it goes on")


def test_a_worker_that_suspends_a_queue_works_on_the_others(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        shop.app.queue("new").enqueue_many(new_jobs())
        shop.start("versions", environment=OLD, queues={"new": 1, "plain": 1})
        wait_suspended(shop, "new")
        shop.app.queue("plain").enqueue(write_envelope("greet", b'{"number": 1}'), id="plain")
        assert [entry.id for entry in shop.journal.wait(1, "done")] == ["plain"]


def test_single_undecodable_jobs_among_others_do_not_suspend_a_queue(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        queue = shop.app.queue("default")
        bad, good = (
            new_jobs(3 * MAX_UNDECODABLE_IN_A_ROW),
            [RawJob(write_envelope("greet", b'{"number": 1}'))] * (3 * MAX_UNDECODABLE_IN_A_ROW),
        )
        queue.enqueue_many([job for pair in zip(bad, good, strict=True) for job in pair])
        worker = shop.start("versions", environment=OLD)
        shop.journal.wait(3 * MAX_UNDECODABLE_IN_A_ROW, "done")
        wait_until(lambda: queue.counts().broken == 3 * MAX_UNDECODABLE_IN_A_ROW, "the others to be broken")
        assert "suspended" not in worker.log


def test_dropped_dead_jobs_are_logged(server: Server, tmp_path: Path) -> None:
    with Windlass(server.url, max_dead=3) as app:
        queue = app.queue("default")
        queue.enqueue_many([RawJob(b"x") for _ in range(5)])
        for lease in queue.lease_many(5):
            queue.fail(lease, "no")
        assert (queue.counts().dead, queue.counts().dropped) == (3, 2)
        queue.purge("dead")
        assert queue.counts().dropped == 0
