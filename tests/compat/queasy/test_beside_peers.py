"""Beside peers of the published kind: each finishes what the other began, and a dead one is recovered once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from tests.compat.queasy.conftest import NAME, Later, Look
from tests.compat.queasy.peer import Peer
from tests.contract.leasing import drain, take
from tests.support.repairing import repaired
from tests.support.server import Server
from windlass import Cleaned, Queue, Windlass

ODD_IDS = ["a:b", ":", "a:", ":a", "a::b:", "größer", "line\nbreak", "nul\0", "{x}", "windlass:worker-1"]


def test_what_a_peer_adds_is_run_here(emails: Queue, peer: Peer, look: Look) -> None:
    peer.notify({"to": "ann"}, "a", maxFailures=2, maxStalls=1, minBackoff=500, maxBackoff=1500)
    lease = take(emails)
    assert (lease.id, lease.json(), lease.limited) == ("a", {"to": "ann"}, True)
    assert (lease.limits.max_failures, lease.limits.max_stalls) == (2, 1)
    assert (lease.limits.min_backoff, lease.limits.max_backoff) == (0.5, 1.5)
    assert emails.retry(lease, delay=0)
    assert peer.dequeue()[0]["failureCount"] == "1"
    peer.success("a")
    assert look() == {}


def test_what_we_add_is_run_there(emails: Queue, peer: Peer, look: Look) -> None:
    emails.enqueue_json([1], id="a", max_failures=3)
    emails.enqueue_json([2], id="b", delay=60)
    (job,) = peer.dequeue(5)
    assert (job["id"], job["data"], job["maxFailures"], job["failureCount"]) == ("a", "[1]", "3", "0")
    assert peer.heartbeat("a")
    assert not peer.heartbeat("b")
    assert emails.lease() is None
    (leased,) = emails.jobs("running").jobs
    assert (leased.id, leased.holder, leased.fence) == ("a", "peer-1", None)
    peer.retry("a", run_at=1)
    lease = take(emails)
    assert (lease.failures, lease.json()) == (1, [1])
    assert emails.complete(lease)
    assert peer.cancel("b")
    assert look() == {}


@pytest.mark.parametrize(("flag", "mode"), [("true", True), ("false", False), ("ifLater", "later")])
@pytest.mark.speaks("queasy", "Q10", "Q11")
def test_a_blocked_job_is_merged_whoever_wrote_it(emails: Queue, peer: Peer, flag: str, mode: Any) -> None:
    """Blocked by a peer and merged by us, then the other way round: the run time and data are the same."""
    soon = round(time.time()) + 1000
    emails.enqueue(b"1", id="a")
    lease = take(emails)
    peer.notify(2, "a", runAt=soon * 1000, updateRunAt=flag, updateData="false", resetCounts="false", maxStalls=7)
    assert emails.retry(lease, run_at=soon - 500)
    ours = emails.get("a")
    assert ours is not None
    assert emails.cancel("a")

    emails.enqueue(b"1", id="a")
    peer.dequeue()
    emails.enqueue(
        b"2",
        id="a",
        run_at=soon,
        update_run_at=mode,
        update_data=False,
        reset_counts=False,
        max_stalls=7,
    )
    peer.retry("a", run_at=(soon - 500) * 1000)
    theirs = emails.get("a")
    assert theirs is not None
    expected = (b"1", 1, 7, soon if mode is not False else soon - 500)
    assert (ours.data, ours.failures, ours.limits.max_stalls, ours.run_at) == expected
    assert (theirs.data, theirs.failures, theirs.limits.max_stalls, theirs.run_at) == expected


@pytest.mark.speaks("queasy", "Q10", "Q11")
@pytest.mark.parametrize("boolean", [False, True], ids=["document", "published"])
@pytest.mark.parametrize("first", [{}, {"update_data": False, "reset_counts": True}], ids=["once", "twice"])
def test_what_we_change_while_a_peer_runs_it_survives_its_retry(
    emails: Queue, peer: Peer, look: Look, boolean: bool, first: dict[str, Any]
) -> None:
    peer.boolean = boolean
    emails.enqueue(b"1", id="a", max_stalls=5)
    peer.dequeue()
    peer.retry("a", run_at=1)
    peer.dequeue()
    if first:
        emails.enqueue(b"2", id="a", **first)
    emails.enqueue(b"3", id="a", max_failures=7)
    peer.retry("a", run_at=2)
    job = emails.get("a")
    assert job is not None
    assert (job.data, job.failures, job.limits.max_failures, job.limits.max_stalls) == (b"3", 0, 7, 3)
    assert emails.complete(take(emails))
    assert look() == {}


@pytest.mark.speaks("queasy", "Q10", "Q11")
@pytest.mark.parametrize("boolean", [False, True], ids=["document", "published"])
def test_what_we_must_not_change_survives_its_retry_too(emails: Queue, peer: Peer, boolean: bool) -> None:
    peer.boolean = boolean
    emails.enqueue(b"1", id="a", max_stalls=5)
    peer.dequeue()
    kept = {f"update_{name}": False for name in ("data", "run_at", "max_failures", "max_stalls")}
    emails.enqueue(b"2", id="a", max_failures=7, max_stalls=9, **kept)  # type: ignore[arg-type]
    peer.retry("a", run_at=4102444800000)
    job = emails.get("a")
    assert job is not None
    assert (job.data, job.failures, job.run_at) == (b"1", 1, 4102444800)
    assert (job.limits.max_failures, job.limits.max_stalls) == (10, 5)


def test_odd_ids_go_through_every_step(emails: Queue, peer: Peer, later: Later, look: Look) -> None:
    for id in ODD_IDS:
        emails.enqueue(b"1", id=id)
    leases = emails.lease_many(100, 10)
    assert sorted(lease.id for lease in leases) == sorted(ODD_IDS)
    for id in ODD_IDS:
        emails.enqueue(b"2", id=id, update_data=False)
    assert sorted(job.id for job in emails.jobs("running").jobs) == sorted(ODD_IDS)
    later(11)
    assert emails.clean() == Cleaned(recovered=len(ODD_IDS))
    assert repaired(emails) == (0, 0)
    assert all(emails.complete_many(emails.lease_many(100)))
    assert look() == {}


# -- the dead --------------------------------------------------------------------------------------


def test_a_peers_stalled_job_is_taken_back(emails: Queue, client: redis.Redis) -> None:
    odd = Peer(client, NAME, worker="host:1:uuid")
    odd.later = -11_000  # it took the job eleven seconds ago
    emails.enqueue(b"1", id="a:b")
    assert len(odd.dequeue()) == 1
    assert emails.clean() == Cleaned(recovered=1)
    assert not odd.heartbeat("a:b")
    lease = take(emails)
    assert (lease.id, lease.stalls) == ("a:b", 1)


def test_our_stalled_job_is_taken_back_by_a_peer(emails: Queue, peer: Peer, client: redis.Redis) -> None:
    emails.enqueue(b"1", id="a")
    lease = take(emails, seconds=10, holder="worker-1")
    client.zadd("{emails}:active", {"a:worker-1": 1})  # its heartbeats came late
    assert peer.clear_stall() == 1
    assert not emails.extend(lease, 10)
    assert not emails.complete(lease)
    again = take(emails, holder="worker-1")
    assert (again.stalls, again.fence > lease.fence) == (1, True)
    assert not emails.complete(lease), "the same worker has it again, under another number"
    assert emails.complete(again)


def test_all_recover_a_dead_worker_at_once_and_it_is_recovered_once(
    emails: Queue, server: Server, client: redis.Redis, later: Later
) -> None:
    ids = {receipt.id for receipt in emails.enqueue_many([b"1"] * 300)}
    emails.lease_many(200, 10, holder="worker-1")
    emails.lease_many(50, 10)
    early = Peer(client, NAME)
    early.later = -11_000
    assert len(early.dequeue(50)) == 50
    later(11)
    start = threading.Barrier(6)

    def ours(_: int) -> int:
        with Windlass(server.url) as app:
            start.wait()
            return app.queue(NAME, layout="queasy").audit(repair=True).recovered

    def theirs(_: int) -> int:
        with server.client() as connection:
            start.wait()
            return Peer(connection, NAME).clear_stall()

    with ThreadPoolExecutor(6) as pool:
        found = [*pool.map(lambda work: work(0), [ours, ours, ours, theirs, theirs, theirs])]
    assert sum(found) == 300
    leases = emails.lease_many(1000)
    assert {lease.id for lease in leases} == ids
    assert [lease.stalls for lease in leases] == [1] * 300


def test_a_deep_clean_finds_what_was_dropped_half_way(emails: Queue, client: redis.Redis, look: Look) -> None:
    emails.enqueue_many([b"1"] * 20)
    emails.enqueue(b"1", id="waits", delay=60)
    emails.enqueue(b"1", id="behind")
    emails.enqueue(b"1", id="runs")
    leases = {lease.id: lease for lease in emails.lease_many(30)}
    emails.enqueue(b"2", id="behind")
    before = look()
    assert repaired(emails) == (0, 0)
    assert look() == before
    client.zrem("{emails}:waiting", "waits")  # in no index
    client.zrem("{emails}:active", f"runs:.{leases['runs'].fence}")
    client.delete("{emails}:active_job:behind")  # blocked by nobody
    client.zrem("{emails}:active", f"behind:.{leases['behind'].fence}")
    assert repaired(emails) == (0, 3)
    assert look()[":waiting"] == {
        "waits": before[":waiting"]["waits"],
        "behind": 0,
        "runs": 0,
    }
    assert {lease.id: lease.stalls for lease in emails.lease_many(5)} == {"behind": 0, "runs": 1}


# -- together --------------------------------------------------------------------------------------


@pytest.mark.speaks("queasy", "Q1", "Q11")
def test_many_are_done_beside_each_other_and_never_one_id_twice_at_once(
    emails: Queue, server: Server, client: redis.Redis
) -> None:
    """Half of the producers and workers are ours. Every id is enqueued again and again, also while it runs."""
    ids = [f"job-{number}" for number in range(150)]
    running: Counter[str] = Counter()
    done: Counter[str] = Counter()
    added: Counter[str] = Counter()
    over: list[str] = []
    lock = threading.Lock()
    ended = threading.Event()

    def enter(id: str) -> None:
        with lock:
            running[id] += 1
            if running[id] > 1:
                over.append(id)

    def leave(id: str, finished: bool) -> None:
        with lock:
            running[id] -= 1
            done[id] += finished

    def produce(seed: int, add: Callable[[str], object]) -> None:
        chance = random.Random(seed)
        for _ in range(700):
            id = chance.choice(ids)
            add(id)
            with lock:
                added[id] += 1

    def work(seed: int, queue: Queue) -> None:
        chance = random.Random(seed)
        while not ended.is_set():
            for lease in queue.lease_many(5, 60, 0.02):
                enter(lease.id)
                finished = chance.random() < 0.7
                leave(lease.id, finished)
                assert queue.complete(lease) if finished else queue.retry(lease, delay=0)

    def work_there(seed: int, peer: Peer) -> None:
        chance = random.Random(seed)
        while not ended.is_set():
            for job in peer.dequeue(5):
                enter(job["id"])
                finished = chance.random() < 0.7
                leave(job["id"], finished)
                peer.success(job["id"]) if finished else peer.retry(job["id"], run_at=1)

    with server.client() as one, server.client() as other, ThreadPoolExecutor(8) as pool:
        # A peer writes -0 for a blocked job of run time 0, which its like would take: its run time here is 1.
        makers = [
            pool.submit(produce, 1, lambda id: emails.enqueue(b"1", id=id)),
            pool.submit(produce, 2, lambda id: Peer(one, NAME).notify(1, id, runAt=1)),
        ]
        workers = [pool.submit(work, seed, emails) for seed in (3, 4)]
        workers += [pool.submit(work_there, seed, Peer(other, NAME, f"peer-{seed}")) for seed in (5, 6)]
        try:
            for maker in makers:
                maker.result(60)
            deadline = time.monotonic() + 60
            while client.keys("{emails}*") and time.monotonic() < deadline:
                ended.wait(0.01)
        finally:
            ended.set()
        for worker in workers:
            worker.result(60)
    assert sum(added.values()) == 1400
    assert over == []
    assert set(done) == set(added)
    assert all(done[id] <= added[id] for id in ids)
    assert drain(emails) == []
