"""Beside workers of the published package on one queue: they take over from us and we from them, whoever dies."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import redis

from tests.compat.worqr.conftest import NAME, ClockView, Later, contents, worker_keys
from tests.compat.worqr.peer import Peer
from tests.contract.leasing import drain, take
from windlass import Lease, Queue, Windlass


def dequeued(peer: Peer) -> bytes:
    begun = peer.dequeue(NAME)
    assert begun is not None
    return begun[1]


@pytest.mark.speaks("worqr", "W9", "W4")
def test_a_peer_works_on_our_tasks(client: redis.Redis, queue: Queue, peer: Peer) -> None:
    queue.enqueue_many([b"T0", b"\xff"])
    for task in (b"T0", b"\xff"):
        process, got = peer.dequeue(NAME) or ("", b"")
        assert got == task
        assert (queue.counts().ready, queue.counts().running) == (1 if task == b"T0" else 0, 1)
        peer.finish(process)
    assert contents(client) == worker_keys("peer")


@pytest.mark.speaks("worqr", "W3", "W13", "W14")
def test_we_recover_a_dead_peer(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    peer = Peer(client, "peer").start(NAME, "other")
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    assert (dequeued(peer), dequeued(peer)) == (b"T0", b"T1")
    peer.enqueue("other", b"U0", b"U1")
    assert peer.dequeue("other")
    heard()
    assert queue.clean().recovered == 0, "it lives"
    peer.die()
    assert queue.clean().recovered == 2
    assert sorted(heard()) == [("worqr_other_work", b"1"), ("worqr_tubes_work", b"2")]
    found = contents(client)
    assert set(found) == {"worqr:queues:tubes", "worqr:queues:other"}
    assert found["worqr:queues:other"] == [b"U1", b"U0"], "in front"
    assert found["worqr:queues:tubes"][0] == b"T2"
    assert sorted(found["worqr:queues:tubes"][1:]) == [b"T0", b"T1"], "in front, in no order: its peers know none"
    client.delete("worqr:queues:other")


@pytest.mark.speaks("worqr", "W5", "W13")
def test_a_dead_peer_costs_our_own_workers_nothing(queue: Queue, peer: Peer) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2", b"T3"])
    named, raw = take(queue, holder="w1"), take(queue)
    assert dequeued(peer) == b"T2"
    peer.die()
    assert queue.clean().recovered == 1
    assert queue.complete_many([named, raw]) == [True, True]
    assert drain(queue) == ["T2", "T3"]


@pytest.mark.speaks("worqr", "W13", "W14")
def test_what_peers_share_on_a_queue_comes_back_and_nothing_else(client: redis.Redis, app: Windlass) -> None:
    shared, ours, elsewhere = (app.queue(name, layout="worqr") for name in (NAME, "ours", "elsewhere"))
    for each in (shared, ours, elsewhere):
        each.enqueue_many([b"%d" % n for n in range(20)])
    dead, alive = Peer(client, "dead").start(NAME, "ours"), Peer(client, "alive").start(NAME, "elsewhere")
    running = [(alive.dequeue(NAME), alive.dequeue("elsewhere"), ours.lease(60, holder="w1")) for _ in range(10)]
    assert dequeued(dead) == b"10"
    dead.die()
    assert shared.clean().recovered == 11, "its own task, and 10 of 10 of its neighbour: no key tells them apart"
    assert (shared.counts().ready, shared.counts().running) == (20, 0)
    assert all(client.exists(f"worqr:processes:{process[0]}") for _, process, _ in running if process)
    assert elsewhere.counts().running == 10, "0 of 10 of a queue that the dead one did not serve"
    assert all(ours.complete_many([lease for *_, lease in running if lease])), "0 of 10 of ours"
    alive.fail("alive")
    for each in (shared, ours, elsewhere):
        each.purge()


def test_a_dead_worker_of_ours_costs_a_peer_nothing(
    client: redis.Redis, queue: Queue, peer: Peer, later: Later
) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    take(queue, seconds=10, holder="w1")
    queue.beat("idle", 60, register=True)
    assert dequeued(peer) == b"T1"
    later(11)
    client.delete("worqr:workerTimers:idle")
    assert queue.clean().recovered == 1
    assert (queue.counts().ready, queue.counts().running) == (2, 1)
    assert contents(client)["worqr:workers"] == {"peer"}


@pytest.mark.speaks("worqr", "W14", "W11")
@pytest.mark.parametrize("holder", [None, "w1"])
def test_a_peer_recovers_a_dead_worker_of_ours(
    client: redis.Redis, queue: Queue, peer: Peer, holder: str | None
) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    lease = take(queue, seconds=30, holder=holder)
    peer.clean_up()
    assert queue.counts().running == 1, "it lives"
    worker = holder or f".{lease.fence}"
    client.delete(f"worqr:workerTimers:{worker}")
    peer.clean_up()
    assert contents(client) == {"worqr:queues:tubes": [b"T0", b"T1"], **worker_keys("peer")}, "to the back, as it does"
    assert not queue.complete(lease)
    assert not queue.extend(lease, 30)
    if holder:
        assert not queue.beat(holder, 30)
    assert queue.clean().recovered == 0, "nothing comes back twice"
    assert sorted(drain(queue)) == ["T0", "T1"]


@pytest.mark.speaks("worqr", "W5", "W14")
def test_a_peer_that_fails_another_takes_our_tasks_too(client: redis.Redis, queue: Queue, peer: Peer) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    lease = take(queue, seconds=30, holder="w1")
    Peer(client, "dead").start(NAME).die()
    peer.clean_up()
    assert not queue.complete(lease)
    assert queue.beat("w1", 30), "the worker itself was not failed"
    fresh = queue.lease_many(10, seconds=30, holder="w1")
    assert sorted(one.data for one in fresh) == [b"T0", b"T1", b"T2"]
    assert all(queue.complete_many(fresh))


@pytest.mark.speaks("worqr", "W5", "W12")
def test_a_peer_that_stops_work_in_order_takes_our_tasks_too(client: redis.Redis, queue: Queue, peer: Peer) -> None:
    """Its keys do not tell them apart. Nothing is lost, and no task is in two places."""
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    lease = take(queue, seconds=30, holder="w1")
    assert dequeued(peer) == b"T1"
    peer.stop_work(NAME)
    assert not queue.complete(lease)
    fresh = queue.lease_many(10, seconds=30, holder="w1")
    assert sorted(one.data for one in fresh) == [b"T0", b"T1", b"T2"]
    assert all(queue.complete_many(fresh))


@pytest.mark.speaks("worqr", "W2")
def test_a_task_that_we_begin_while_a_peer_fails_another_is_not_forgotten(
    client: redis.Redis, queue: Queue, peer: Peer, later: Later
) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    Peer(client, "dead").start(NAME).die()
    go_on = peer.about_to_fail("dead")
    lease = take(queue, seconds=30, holder="w1")
    go_on()
    assert queue.counts().running == 0, "the peer has taken it off the list, and left it where it is"
    assert queue.beat("w1", 30)
    assert queue.counts().running == 1
    assert queue.complete(lease)
    second = take(queue, seconds=30)
    client.delete("worqr:workingProcesses:tubes")
    later(31)
    assert take(queue, holder="w1").data == second.data == b"T1"


@pytest.mark.speaks("worqr", "W14", "W2")
def test_both_recover_one_dead_worker_at_once(client: redis.Redis, queue: Queue, peer: Peer) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    queue.lease_many(2, seconds=30, holder="w1")
    client.delete("worqr:workerTimers:w1")
    go_on = peer.about_to_fail("w1")
    assert queue.clean().recovered == 2
    go_on()
    assert contents(client) == {"worqr:queues:tubes": [b"T2", b"T1", b"T0"], **worker_keys("peer")}


@pytest.mark.speaks("worqr", "W2", "W3", "W14")
def test_thousands_of_tasks_with_deaths_on_both_sides(client: redis.Redis, queue: Queue) -> None:
    """Both makes enqueue, work, die and clean up in turn. Peers take all back, also what runs."""
    chance = random.Random(14)
    peers = [Peer(client, f"peer{n}").start(NAME) for n in range(3)]
    finished: Counter[bytes] = Counter()
    ours: list[Lease] = []
    theirs: list[tuple[Peer, str, bytes]] = []
    added = deaths = 0
    while added < 2000 or queue.counts().ready or queue.counts().running:
        step = chance.random()
        if step < 0.3 and added < 2000:
            batch = [b"%d" % n for n in range(added, added + 10)]
            added += 10
            if chance.random() < 0.5:
                queue.enqueue_many(batch)
            else:
                chance.choice(peers).enqueue(NAME, *batch)
        elif step < 0.6:
            ours += queue.lease_many(8, seconds=60, holder=f"w{chance.randrange(3)}")
        elif step < 0.8:
            for _ in range(8):
                peer = chance.choice(peers)
                begun = peer.dequeue(NAME)
                if begun:
                    theirs.append((peer, *begun))
        elif step < 0.98:
            settled = queue.complete_many(ours)
            finished.update(lease.data for lease, done in zip(ours, settled, strict=True) if done)
            for peer, process, task in theirs:
                if client.exists(f"worqr:processes:{process}"):
                    peer.finish(process)
                    finished[task] += 1
            ours, theirs = [], []
        elif step < 0.99:
            deaths += 1
            victim = f"w{chance.randrange(3)}"
            client.delete(f"worqr:workerTimers:{victim}")
            queue.clean() if chance.random() < 0.5 else peers[0].clean_up()
            ours = [lease for lease in ours if lease.holder != victim]
        else:
            deaths += 1
            dead = peers.pop(1)
            dead.die()
            queue.clean() if chance.random() < 0.5 else peers[0].clean_up()
            theirs = [begun for begun in theirs if begun[0] is not dead]
            peers.append(Peer(client).start(NAME))
    assert set(finished) == {b"%d" % n for n in range(2000)}
    assert set(finished.values()) == {1}, "who was taken back could not finish it"
    assert deaths > 5
    for peer in peers:
        peer.fail(peer.name)
    print(f"2000 tasks, {deaths} deaths, none lost")
