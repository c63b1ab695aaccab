"""Workers live and die: whoever is left takes back what a dead one had, to the front, in the old order, once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.compat.worqr.conftest import NAME, ClockView, Later, contents, entries, members, worker_keys
from tests.compat.worqr.peer import Peer
from tests.contract.leasing import take
from tests.support.conditions import until
from tests.support.internals import perform
from tests.support.server import Server
from windlass import Queue, Windlass
from windlass.storage.port import LeaseRequest
from windlass.values.outcome import Released
from windlass.worker.reclaim import reclaim


def tasks(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def waiting(client: redis.Redis, queue: str = NAME) -> list[bytes]:
    """From the front on."""
    return entries(client, f"worqr:queues:{queue}")[::-1]


@pytest.mark.speaks("worqr", "W3", "W14", "W1")
@pytest.mark.parametrize("holder", [None, "w1"])
def test_the_next_who_looks_recovers_the_dead(server: Server, queue: Queue, later: Later, holder: str | None) -> None:
    queue.enqueue_many(tasks(*range(8)))
    for n in (1, 3, 2):
        queue.lease_many(n, seconds=10, holder=holder)
    later(9)
    assert queue.lease_many(10, seconds=10, holder="w2") != []
    later(2)
    with Windlass(server.url) as peer:
        got = peer.queue(NAME, layout="worqr").lease_many(10)
    assert [lease.data for lease in got] == tasks(*range(6)), "in front, and in their order"


@pytest.mark.speaks("worqr", "W3", "W13")
def test_only_the_dead_one_loses_its_tasks(client: redis.Redis, queue: Queue, later: Later) -> None:
    queue.enqueue_many(tasks(*range(9)))
    dead = queue.lease_many(2, seconds=10, holder="dead")
    alive = queue.lease_many(2, seconds=10, holder="alive")
    dead += queue.lease_many(2, seconds=10, holder="dead")
    raw = queue.lease_many(2, seconds=60)
    later(8)
    assert queue.beat("alive", 10)
    later(3)
    assert queue.clean().recovered == 4
    assert waiting(client) == tasks(0, 1, 4, 5, 8)
    assert queue.complete_many(dead) == [False] * 4
    assert queue.complete_many(alive + raw) == [True] * 4


@pytest.mark.speaks("worqr", "W14", "W2")
def test_eight_peers_recover_a_dead_one_once(client: redis.Redis, queue: Queue, later: Later, heard: ClockView) -> None:
    queue.enqueue_many(tasks(*range(100)))
    queue.lease_many(60, seconds=10, holder="w1")
    heard()
    later(11)
    with ThreadPoolExecutor(8) as pool:
        found = sum(cleaned.recovered for cleaned in pool.map(lambda _: queue.clean(), range(8)))
    assert found == 60
    assert waiting(client) == tasks(*range(100))
    assert heard() == [("worqr_tubes_work", b"60")]


@pytest.mark.speaks("worqr", "W13", "W14", "W3")
def test_a_worker_of_another_queue_is_failed_on_all_of_its_queues(
    client: redis.Redis, app: Windlass, queue: Queue, heard: ClockView
) -> None:
    red, blue = app.queue("red", layout="worqr"), app.queue("blue", layout="worqr")
    for each in (red, blue):
        each.enqueue_many(tasks(*range(5)))
        lost = each.lease_many(3, seconds=10, holder="w1")
    kept = take(red, seconds=10, holder="w2")
    red.beat("idle", 10, register=True)
    heard()
    client.delete("worqr:workerTimers:w1", "worqr:workerTimers:idle")
    assert queue.clean().recovered == 0, "none of them were of this queue"
    assert sorted(heard()) == [("worqr_blue_work", b"3"), ("worqr_red_work", b"3")]
    assert waiting(client, "red") == tasks(0, 1, 2, 4)
    assert waiting(client, "blue") == tasks(0, 1, 2, 3, 4)
    assert contents(client)["worqr:workers"] == {"w2"}
    assert not client.exists("worqr:workingQueues:w1", "worqr:workingQueues:idle")
    assert blue.complete_many(lost) == [False] * 3
    assert red.complete(kept)
    assert (red.counts().holders, blue.counts().holders) == (1, 0)
    red.purge()
    blue.purge()


@pytest.mark.speaks("worqr", "W14")
def test_a_queue_that_holds_something_else_does_not_stop_the_others(
    client: redis.Redis, app: Windlass, queue: Queue
) -> None:
    queue.enqueue(b"T0")
    take(queue, seconds=10, holder="w1")
    client.sadd("worqr:workingQueues:w1", "odd")
    client.set("worqr:queues:odd", "no list")
    client.delete("worqr:workerTimers:w1")
    assert queue.clean().recovered == 1
    assert contents(client)["worqr:workingQueues:w1"] == {"odd"}, "until somebody mends it"
    client.delete("worqr:queues:odd")
    assert queue.clean().recovered == 0
    assert contents(client) == {"worqr:queues:tubes": [b"T0"]}


@pytest.mark.speaks("worqr", "W13")
def test_thousands_come_back_step_by_step_and_in_order(client: redis.Redis, queue: Queue, app: Windlass) -> None:
    other = app.queue("other", layout="worqr")
    for each in (queue, other):
        each.enqueue_many(tasks(*range(2500)))
        while each.lease_many(1000, seconds=10, holder="w1"):
            pass
    client.delete("worqr:workerTimers:w1")
    assert perform(queue, lambda layout: layout.turn()).swept == 1000, "one call does not hold up the server"
    assert queue.clean().recovered == 1500
    assert waiting(client) == tasks(*range(2500))
    other.clean()
    assert waiting(client, "other") == tasks(*range(2500))
    other.purge()


@pytest.mark.speaks("worqr", "W11")
def test_a_worker_whose_timer_is_gone_has_failed(client: redis.Redis, queue: Queue) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    queue.beat("w1", 30, register=True)
    lease = take(queue, seconds=30, holder="w1")
    assert queue.beat("w1", 30)
    client.delete("worqr:workerTimers:w1")
    assert not queue.beat("w1", 30), "it is only refreshed if it still exists"
    assert not queue.extend(lease, 30)
    assert not client.exists("worqr:workerTimers:w1")
    turn = perform(
        queue, lambda layout: layout.turn((), LeaseRequest(want=1, seconds=3, holder="w1", only_if_registered=True))
    )
    assert turn.lost
    assert turn.leases == ()
    assert queue.clean().recovered == 1
    queue.beat("w1", 30, register=True)
    assert queue.beat("w1", 30), "it has begun again"


@pytest.mark.speaks("worqr", "W11")
def test_what_a_late_worker_finishes_before_it_is_found_out_is_finished(client: redis.Redis, queue: Queue) -> None:
    queue.enqueue(b"T0")
    lease = take(queue, seconds=10)
    client.delete(f"worqr:workerTimers:.{lease.fence}")
    assert queue.complete(lease)
    assert queue.lease() is None
    assert contents(client) == {}


@pytest.mark.speaks("worqr", "W12", "W3")
async def test_stopping_work_returns_what_is_left_of_one_queue(client: redis.Redis, server: Server) -> None:
    with Windlass(server.url, layouts={"red": "worqr", "blue": "worqr"}) as app:
        for queue in (app.queue("red"), app.queue("blue")):
            await queue.aenqueue_many(tasks(*range(4)))
            await queue.alease_many(3, seconds=10, holder="w1")
        await reclaim(app, "red", "w1", lambda lease, _: Released(lease))
        assert waiting(client, "red") == tasks(*range(4))
        assert waiting(client, "blue") == tasks(3)
        assert contents(client)["worqr:workingQueues:w1"] == {"blue"}
        await reclaim(app, "blue", "w1", lambda lease, _: Released(lease))
        assert set(contents(client)) == {"worqr:queues:red", "worqr:queues:blue"}
        assert waiting(client, "blue") == tasks(*range(4))
        for queue in (app.queue("red"), app.queue("blue")):
            await queue.apurge()


@pytest.mark.speaks("worqr", "W14")
def test_a_permanent_worker_needs_no_timer(client: redis.Redis, queue: Queue) -> None:
    peer = Peer(client, "rock").start(NAME, permanent=True)
    queue.enqueue(b"T0")
    assert peer.dequeue(NAME)
    assert queue.clean().recovered == 0
    assert queue.counts().running == 1
    peer.fail("rock")


@pytest.mark.speaks("worqr", "W1", "W7", "W11", "W12")
async def test_our_own_worker_is_a_peer_as_any_other(client: redis.Redis, server: Server, peer: Peer) -> None:
    seen: list[bytes] = []
    with Windlass(server.url, layouts={NAME: "worqr"}) as app:

        @app.handler(NAME)
        async def work(data: bytes) -> None:
            seen.append(data)

        worker = app.worker(name="ours")
        working = asyncio.create_task(worker.run())
        await until(lambda: client.scard("worqr:workers") == 2)
        (name,) = members(client, "worqr:workers") - {"peer"}
        assert members(client, "worqr:expiringWorkers") == {"peer", name}
        assert members(client, f"worqr:workingQueues:{name}") == {NAME}
        assert client.get(f"worqr:workerTimers:{name}") == b"RUN"
        assert 0 < client.pttl(f"worqr:workerTimers:{name}") <= 3000
        peer.enqueue(NAME, b"T0", b"\xff", b"T2")
        await until(lambda: len(seen) == 3)
        await worker.stop()
        await working
    assert seen == [b"T0", b"\xff", b"T2"]
    assert contents(client) == worker_keys("peer")
