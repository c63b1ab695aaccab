"""Cancelling: every waiting copy of a task goes, and those who run one drop it, whatever they are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import md5
from typing import cast

import pytest
import redis

from tests.compat.worqr.conftest import NAME, ClockView, Later, contents, worker_keys
from tests.compat.worqr.peer import Peer
from tests.contract.leasing import drain, take
from tests.support.internals import layout_of, perform
from tests.support.server import Server
from windlass import Lease, Queue, State, Windlass
from windlass.storage.compat.worqr import WorqrLayout
from windlass.storage.compat.worqr.layout import name_of

LONG = b"\xff" + b"x" * 600


def hear(queue: Queue, holder: str, task: bytes) -> bool:
    """What a worker of ours does when it hears a peer cancel a task."""

    return perform(queue, lambda layout: cast(WorqrLayout, layout).obey_cancel(holder, task))


@pytest.mark.speaks("worqr", "W10")
@pytest.mark.parametrize("task", [b"T1", LONG, b""])
def test_every_waiting_copy_goes(client: redis.Redis, queue: Queue, task: bytes) -> None:
    queue.enqueue_many([task, b"T0", task, *([b"T2"] * 300), task])
    assert queue.cancel(name_of(task))
    assert not queue.cancel(name_of(task)), "there is none any more"
    assert client.lrange("worqr:queues:tubes", 0, -1) == [*([b"T2"] * 300), b"T0"]


def test_there_may_be_nothing_to_cancel(queue: Queue) -> None:
    assert not queue.cancel("T0")
    assert not queue.cancel("T0", running=True)
    assert not queue.cancel(f"sha1:{'0' * 40}", running=True)


def test_a_running_task_is_left_alone_unless_asked_for(queue: Queue, heard: ClockView) -> None:
    queue.enqueue(b"T0")
    lease = take(queue, holder="w1")
    heard()
    assert not queue.cancel("T0")
    assert heard() == []
    assert queue.extend(lease, 30)
    assert queue.complete(lease)


@pytest.mark.speaks("worqr", "W10")
@pytest.mark.parametrize("task", [b"T0", LONG])
def test_all_who_run_it_are_told(queue: Queue, heard: ClockView, task: bytes) -> None:
    id = name_of(task)
    queue.enqueue_many([task, task, b"T1", task, task])
    first, second, other = queue.lease_many(3, holder="w1")
    third = take(queue, holder="w2")
    heard()
    assert queue.cancel(id, running=True)
    said = heard()
    assert said.count(("windlass:cancel:w1", f"tubes {id}".encode())) == 2
    assert said.count(("windlass:cancel:w2", f"tubes {id}".encode())) == 1
    assert said.count(("worqr_tubes_cancel", task)) == 1
    assert len(said) == 4
    assert {job.id: job.cancelled for job in queue.jobs(State.RUNNING).jobs} == {id: True, "T1": False}
    job = queue.get(id)
    assert job is not None
    assert job.cancelled
    assert not any(queue.extend(lease, 30) for lease in (first, second, third))
    assert queue.extend(other, 30)
    assert not queue.cancel(id, running=True), "they were told already"
    assert queue.counts().ready == 0


@pytest.mark.speaks("worqr", "W10")
@pytest.mark.parametrize("verb", ["complete", "release", "retry", "fail"])
def test_it_is_gone_however_its_attempt_ends(client: redis.Redis, queue: Queue, heard: ClockView, verb: str) -> None:
    ends: dict[str, Callable[[Lease], bool]] = {
        "complete": queue.complete,
        "release": queue.release,
        "retry": lambda lease: queue.retry(lease, delay=0),
        "fail": queue.fail,
    }
    queue.enqueue(b"T0")
    lease = take(queue, holder="w1")
    assert queue.cancel("T0", running=True)
    heard()
    assert ends[verb](lease)
    assert contents(client) == worker_keys("w1")
    assert heard() == [("worqr_tubes_done", b'{"workerId":"w1","task":"T0"}')]


@pytest.mark.speaks("worqr", "W10", "W14")
@pytest.mark.parametrize("holder", [None, "w1"])
def test_it_is_gone_when_its_worker_is_lost(
    client: redis.Redis, queue: Queue, later: Later, holder: str | None
) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    queue.lease_many(2, seconds=10, holder=holder)
    assert queue.cancel("T0", running=True)
    later(11)
    queue.clean()
    assert contents(client) == {"worqr:queues:tubes": [b"T1"]}


@pytest.mark.speaks("worqr", "W10")
def test_what_is_enqueued_after_it_runs(queue: Queue, later: Later) -> None:
    queue.enqueue(b"T0")
    lease = take(queue, holder="w1")
    assert queue.cancel("T0", running=True)
    queue.enqueue(b"T0")
    assert queue.release(lease)
    again = take(queue, holder="w1")
    assert not hear(queue, "w1", b"T0"), "that was our own voice"
    assert queue.extend(again, 30)
    assert queue.complete(again)


@pytest.mark.speaks("worqr", "W10")
@pytest.mark.parametrize("task", [b"T0", LONG, b"\0"])
def test_a_worker_of_ours_drops_what_a_peer_cancels(
    client: redis.Redis, queue: Queue, peer: Peer, heard: ClockView, task: bytes
) -> None:
    queue.enqueue_many([task, b"T1", task, task])
    first, other, second = queue.lease_many(3, seconds=60, holder="w1")
    heard()
    peer.cancel(NAME, task)
    ((channel, message),) = heard()
    layout = layout_of(queue)
    assert isinstance(layout, WorqrLayout)
    assert (channel, message) == (layout.peer_cancel_channel, task)
    assert hear(queue, "w1", message)
    told = ("windlass:cancel:w1", f"tubes {first.id}".encode())
    assert heard() == [told, told], "it hears of each, as if we had cancelled it"
    assert not hear(queue, "w1", message), "once"
    assert not hear(queue, "w2", message), "who has none need not care"
    assert not queue.extend(first, 60)
    assert queue.release(first)
    assert queue.retry(second, delay=0)
    assert queue.extend(other, 60)
    assert queue.release(other)
    assert drain(queue) == ["T1"]


@pytest.mark.speaks("worqr", "W10")
async def test_our_own_worker_drops_what_is_cancelled(client: redis.Redis, server: Server) -> None:
    begun, dropped = asyncio.Event(), asyncio.Event()
    with Windlass(server.url, layouts={NAME: "worqr"}) as app:

        @app.handler(NAME)
        async def hang(data: bytes) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                dropped.set()

        worker = app.worker()
        working = asyncio.create_task(worker.run())
        await app.queue(NAME).aenqueue(b"T0")
        await begun.wait()
        assert await app.queue(NAME).acancel("T0", running=True)
        async with asyncio.timeout(15):
            await dropped.wait()
        await worker.stop()
        await working
    assert contents(client) == {}


@pytest.mark.speaks("worqr", "W10")
def test_a_peer_that_runs_it_counts_as_told(queue: Queue, peer: Peer, heard: ClockView) -> None:
    queue.enqueue(b"T0")
    begun = peer.dequeue(NAME)
    assert begun is not None
    heard()
    assert not queue.cancel("T0")
    assert queue.cancel("T0", running=True)
    assert heard() == [("worqr_tubes_cancel", b"T0")]
    peer.finish(begun[0])
    assert queue.counts().running == 0


def test_the_mark_of_a_unique_task_goes_with_it(client: redis.Redis, queue: Queue, peer: Peer) -> None:
    mark = f"worqr:uniqueTasks:{md5(b'T0').hexdigest()}"
    for end in (queue.complete, queue.fail):
        assert peer.enqueue_unique(NAME, b"T0")
        lease = take(queue)
        assert not peer.enqueue_unique(NAME, b"T0"), "it runs"
        assert end(lease)
    assert peer.enqueue_unique(NAME, LONG)
    assert queue.complete(take(queue))
    assert client.keys("worqr:uniqueTasks:*") == []
    assert peer.enqueue_unique(NAME, b"T0")
    assert queue.retry(take(queue), delay=0)
    assert queue.release(take(queue))
    assert client.exists(mark), "it is not finished"
    assert queue.cancel("T0")
    assert not client.exists(mark)
    assert peer.enqueue_unique(NAME, b"T0")
    lease = take(queue)
    peer.enqueue(NAME, b"T0")
    assert queue.cancel("T0")
    assert client.exists(mark), "another copy still runs"
    assert queue.cancel("T0", running=True)
    assert not client.exists(mark)
    assert queue.release(lease)
