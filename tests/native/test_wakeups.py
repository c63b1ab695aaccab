"""How a waiter hears of work: aimed announcements, a look on time for what is scheduled, and the poll floor below.

Most tests here begin with waiters that are known to be idle. Where the poll floor is taken away under them, only
an announcement can wake them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.client import PubSub

from tests.support.queue_clock import change_core, read_core
from tests.support.server import Server
from tests.support.waiting import FOREVER_S, LIMIT_S, wait_until
from windlass import Lease, Queue, RawJob, Windlass
from windlass.storage.native.keys import cancel_channel, queue_key, wake_channel

Later = Callable[[float], None]


class Waiter:
    """A thread that waits for a job, longer than a test would wait for the thread."""

    def __init__(self, queue: Queue) -> None:
        self.leases: list[Lease] = []
        self.woke_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(queue,), daemon=True)
        self._thread.start()

    def _run(self, queue: Queue) -> None:
        self.leases = queue.lease_many(1, wait=FOREVER_S)
        self.woke_at = time.monotonic()

    @property
    def done(self) -> bool:
        return self.woke_at > 0

    def join(self) -> Lease:
        """The lease that it got."""
        self._thread.join(LIMIT_S)
        assert self.done, "nobody woke the waiter"
        (lease,) = self.leases
        return lease


@pytest.fixture
def other(server: Server, raw_queue: Queue) -> Iterator[Queue]:
    """The same queue in another program."""
    with Windlass(server.url) as app:
        yield app.queue(raw_queue.name)


@pytest.fixture
def no_poll_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters do not look by themselves: what is not announced is not found."""
    monkeypatch.setattr("windlass.queue.LEASE_WAIT_POLL_S", FOREVER_S)


def idle(client: redis.Redis, queue: Queue, count: int) -> None:
    """Returns when so many waiters are registered."""
    key = queue_key(queue.name, "idle")
    wait_until(lambda: client.zcard(key) == count, f"{count} idle waiters", interval=0.002)


def calls(client: redis.Redis) -> int:
    """How many scripts the server has run."""
    stats = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(stats["calls"])


# -- idle is idle ----------------------------------------------------------------------------------


@pytest.mark.serves("W7")
def test_an_idle_waiter_does_not_poll_hot(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue(b"", delay=3600)  # nor for what is far away
    before = calls(client)
    assert queue.lease(wait=2.1) is None
    assert calls(client) - before <= 6


@pytest.mark.serves("W7")
def test_a_paused_queue_is_not_polled_hot(raw_queue: Queue, client: redis.Redis, later: Later) -> None:
    raw_queue.enqueue(b"")
    raw_queue.enqueue(b"", delay=1)
    raw_queue.pause()
    later(5)
    before = calls(client)
    assert raw_queue.lease(wait=1.2) is None
    assert calls(client) - before <= 5


@pytest.mark.serves("W7")
def test_a_silent_holder_that_is_given_grace_is_not_polled_hot(raw_queue: Queue, client: redis.Redis) -> None:
    raw_queue.enqueue(b"")
    assert raw_queue.lease(seconds=1, holder="worker-1")
    # Nobody says anything for 10 s; the holder may have been asleep with all the others, and gets 5 s to say so.
    core = read_core(client, raw_queue.name)
    change_core(client, raw_queue.name, clock=core.clock - 10_000, wall=core.wall - 10_000)
    client.zincrby(queue_key(raw_queue.name, "holders"), -10_000, "worker-1")
    before = calls(client)
    assert raw_queue.lease(wait=1.2) is None
    assert calls(client) - before <= 8


# -- announcements ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7")
def test_an_enqueue_of_another_program_wakes_a_waiter_at_once(queue: Queue, other: Queue, client: redis.Redis) -> None:
    for _ in range(20):
        waiter = Waiter(queue)
        idle(client, queue, 1)
        other.enqueue(b"")
        assert other.complete(waiter.join())


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7", "W13")
@pytest.mark.parametrize("by", ["enqueue", "enqueue_many", "release", "retry", "complete", "fail", "update", "clean"])
def test_whatever_makes_a_job_ready_wakes_a_waiter(
    queue: Queue, other: Queue, client: redis.Redis, later: Later, by: str
) -> None:
    other.enqueue(b"", id="a")
    lease = other.lease()
    assert lease is not None
    if by in ("complete", "fail"):
        other.enqueue(b"successor", id="a")
    other.enqueue(b"", id="late", delay=3600)
    waiter = Waiter(queue)
    idle(client, queue, 1)
    if by == "clean":
        later(31)
    match by:
        case "enqueue":
            other.enqueue(b"")
        case "enqueue_many":
            other.enqueue_many([b"", b""])
        case "release":
            assert other.release(lease)
        case "retry":
            assert other.retry(lease, delay=0)
        case "complete":
            assert other.complete(lease)
        case "fail":
            assert other.fail(lease)
        case "update":
            assert other.update("late", delay=0)
        case "clean":
            assert other.clean().recovered == 1
    waiter.join()


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7")
def test_a_resumed_queue_wakes_its_waiters(queue: Queue, other: Queue, client: redis.Redis) -> None:
    other.enqueue(b"")
    other.pause()
    waiter = Waiter(queue)
    idle(client, queue, 1)
    assert other.resume()
    waiter.join()


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7")
@pytest.mark.parametrize("jobs", [1, 3])
def test_as_many_waiters_are_woken_as_there_are_jobs(
    raw_queue: Queue, other: Queue, client: redis.Redis, jobs: int
) -> None:
    waiters = [Waiter(raw_queue) for _ in range(10)]
    idle(client, raw_queue, 10)
    before = calls(client)
    other.enqueue_many([b""] * jobs)
    wait_until(lambda: sum(waiter.done for waiter in waiters) == jobs, "the woken")
    assert client.zcard(queue_key(raw_queue.name, "idle")) == 10 - jobs
    other.enqueue_many([b""] * (10 - jobs))
    assert len({waiter.join().id for waiter in waiters}) == 10
    assert calls(client) - before == 2 + 10, "two enqueues, and one look of each waiter"


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7")
def test_every_waiter_gets_its_job_from_a_burst(raw_queue: Queue, other: Queue, client: redis.Redis) -> None:
    waiters = [Waiter(raw_queue) for _ in range(10)]
    idle(client, raw_queue, 10)
    for _ in range(10):
        other.enqueue(b"")
    assert len({waiter.join().id for waiter in waiters}) == 10


@pytest.mark.usefixtures("no_poll_floor")
def test_one_that_takes_less_than_it_brought_up_wakes_another(
    raw_queue: Queue, other: Queue, client: redis.Redis, later: Later
) -> None:
    other.enqueue_many(RawJob(b"", delay=3600) for _ in range(3))
    waiters = [Waiter(raw_queue), Waiter(raw_queue)]
    idle(client, raw_queue, 2)
    later(3601)
    assert other.lease() is not None  # it brings up all three and takes one
    for waiter in waiters:
        waiter.join()


# -- run times -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7", "Q8")
@pytest.mark.parametrize("by", ["enqueue", "batch", "staggered", "retry", "release", "update", "upsert"])
def test_a_waiter_is_on_time_for_a_run_time_set_while_it_waits(
    raw_queue: Queue, other: Queue, client: redis.Redis, by: str
) -> None:
    other.enqueue(b"", id="late", delay=3600)
    other.enqueue(b"", id="a")
    lease = other.lease()
    assert lease is not None
    if by == "release":
        other.enqueue(b"", id="a", delay=0.3)
    waiters = [Waiter(raw_queue) for _ in range({"batch": 2, "staggered": 3}.get(by, 1))]
    idle(client, raw_queue, len(waiters))
    due = time.monotonic() + 0.3
    match by:
        case "enqueue":
            other.enqueue(b"", delay=0.3)
        case "batch":  # one for each waiter, the second a little later
            other.enqueue_many([b"", RawJob(b"", delay=0.3)])
        case "staggered":
            other.enqueue_many(RawJob(b"", delay=delay) for delay in (0.2, 0.25, 0.3))
        case "retry":
            assert other.retry(lease, delay=0.3)
        case "release":  # what waits behind it says when
            assert other.release(lease)
        case "update":
            assert other.update("late", delay=0.3)
        case "upsert":
            other.enqueue(b"", id="late", delay=0.3)
    for waiter in waiters:
        waiter.join()
    assert max(waiter.woke_at for waiter in waiters) > due - 0.05


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7", "Q8", "W1")
def test_a_waiter_takes_what_falls_due_while_it_waits(raw_queue: Queue, client: redis.Redis) -> None:
    raw_queue.enqueue(b"", delay=1.3)
    began = time.monotonic()
    before = calls(client)
    assert len(raw_queue.lease_many(1, wait=FOREVER_S)) == 1
    assert time.monotonic() - began > 1.25
    assert calls(client) - before <= 6


@pytest.mark.usefixtures("no_poll_floor")
def test_a_waiter_takes_back_what_expires_while_it_waits(queue: Queue, other: Queue) -> None:
    other.enqueue(b"")
    assert other.lease(seconds=0.3) is not None
    (lease,) = queue.lease_many(1, wait=FOREVER_S)
    assert lease.stalls == 1


# -- what can go wrong -----------------------------------------------------------------------------


@pytest.mark.serves("W7")
def test_a_lost_announcement_only_delays(queue: Queue, other: Queue, client: redis.Redis) -> None:
    waiter = Waiter(queue)
    idle(client, queue, 1)
    client.delete(queue_key(queue.name, "idle"))  # nobody is known to wait
    other.enqueue(b"")
    waiter.join()


@pytest.mark.serves("W7")
def test_a_waiter_whose_listening_connection_is_cut_still_gets_its_job(
    queue: Queue, other: Queue, client: redis.Redis
) -> None:
    waiter = Waiter(queue)
    idle(client, queue, 1)
    for connection in client.client_list(_type="pubsub"):
        client.client_kill_filter(_id=connection["id"])
    other.enqueue(b"")
    waiter.join()


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7")
def test_a_waiter_that_died_does_not_swallow_the_wake_up(
    queue: Queue, other: Queue, server: Server, client: redis.Redis
) -> None:
    program = "import sys; from windlass import Windlass; Windlass(sys.argv[1]).queue(sys.argv[2]).lease(wait=60)"
    victim = subprocess.Popen([sys.executable, "-c", program, server.url, queue.name])
    idle(client, queue, 1)
    ((name, _),) = client.zscan_iter(queue_key(queue.name, "idle"))
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait(10)
    channel = wake_channel(bytes(name).decode())
    wait_until(lambda: client.pubsub_numsub(channel)[0][1] == 0, "the server to see it go")
    waiter = Waiter(queue)
    idle(client, queue, 2)
    other.enqueue(b"")
    waiter.join()


async def test_a_wait_can_be_cancelled_at_any_moment(raw_queue: Queue) -> None:
    assert await raw_queue.alease(wait=0.01) is None  # connected and subscribed
    for moment in range(60):
        task = asyncio.create_task(raw_queue.alease(wait=0.3))
        for _ in range(moment // 3):  # a few steps of the loop further each time
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError), f"after {moment // 3} steps it went on to wait"


@pytest.mark.usefixtures("no_poll_floor")
@pytest.mark.serves("W7")
async def test_a_cancelled_wait_does_not_swallow_the_wake_up(
    raw_queue: Queue, other: Queue, client: redis.Redis
) -> None:
    tasks = [asyncio.create_task(raw_queue.alease(wait=FOREVER_S)) for _ in range(3)]
    await asyncio.to_thread(idle, client, raw_queue, 3)
    while not all(task.done() for task in tasks):
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
    left = client.zcard(queue_key(raw_queue.name, "idle"))
    waiting = asyncio.create_task(raw_queue.alease(wait=FOREVER_S))
    await asyncio.to_thread(idle, client, raw_queue, left + 1)
    await other.aenqueue(b"")
    assert await asyncio.wait_for(waiting, LIMIT_S) is not None


@pytest.mark.serves("W7")
async def test_a_timed_out_wait_leaves_no_registration(raw_queue: Queue, client: redis.Redis) -> None:
    assert await raw_queue.alease(wait=0.05) is None
    assert await asyncio.to_thread(raw_queue.lease, wait=0.05) is None
    assert not client.exists(queue_key(raw_queue.name, "idle"))


# -- the other announcement ------------------------------------------------------------------------


@pytest.mark.serves("W10")
def test_a_holder_hears_which_of_its_jobs_was_cancelled(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue(b"", id="a")
    queue.enqueue(b"", id="b")
    assert len(queue.lease_many(2, holder="worker-1")) == 2
    with PubSub(client.connection_pool, ignore_subscribe_messages=True) as ear:
        ear.subscribe(cancel_channel("worker-1"))
        wait_until(lambda: client.pubsub_numsub(cancel_channel("worker-1"))[0][1], "the subscription")
        assert not queue.cancel("a")
        assert queue.cancel("b", running=True)
        message = wait_until(lambda: ear.get_message(timeout=1), "the message")
    assert message["data"] == f"{queue.name} b".encode()
