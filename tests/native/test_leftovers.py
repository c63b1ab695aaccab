"""No history: when the jobs are done and the programs gone, not one key is left. Nobody has to purge."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.contract.leasing import drain, take
from tests.support.internals import perform, settle
from tests.support.marks import is_mark
from tests.support.queue_clock import pass_time, read_core
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Queue, RawJob, Windlass
from windlass.storage.formats import MARK_TTL_MS
from windlass.storage.native.keys import queue_key
from windlass.values.job import NewJob
from windlass.values.outcome import Broken, Completed, Crashed, HandOver, Kept, Outcome, UnknownTask

NAME = "leftovers"


def names(client: redis.Redis) -> set[str]:
    """The keys that the queue has now, by their last part. Marks of cancelled and dropped jobs end by themselves."""
    return {bytes(key).decode().rpartition(":")[2] for key in client.scan_iter() if not is_mark(client, key)}


def live(queue: Queue, client: redis.Redis) -> None:
    """A life with everything in it; all jobs are done in the end."""
    queue.enqueue_many([b""] * 5)
    queue.enqueue_many(RawJob(b"", id=f"late-{number}", delay=60, priority=number) for number in range(5))
    client.lpush(queue_key(queue.name, "inbox"), "pushed")
    queue.enqueue(b"", id="late-1", delay=30, max_failures=3)
    queue.enqueue(b"", id="gone", delay=30, max_failures=3)
    assert queue.cancel("gone")
    lease = take(queue)
    queue.enqueue(b"", id=lease.id)
    assert queue.progress(lease, 0.5)
    assert queue.extend(lease, 60)
    assert queue.retry(lease, delay=0, message="no luck")
    assert queue.release(take(queue))
    take(queue, seconds=1)  # lost
    pass_time(client, NAME, 61)
    assert len(drain(queue)) == 11
    live_as_a_worker_sees_it(queue, client)
    assert queue.pause()
    assert queue.resume()
    assert queue.lease(wait=0.01) is None
    assert queue.audit(repair=True).repaired == 0


def live_as_a_worker_sees_it(queue: Queue, client: redis.Redis) -> None:
    """The ends that only workers know; all jobs are done in the end."""
    ids = ["crash", "suspect", "break", "put aside", "put aside for long", "hand over"]
    queue.enqueue_many(RawJob(b"", id=id) for id in ids)
    crash, suspect, broken, aside, aside_for_long, parent = queue.lease_many(6)
    child = HandOver(queue.name, NewJob("child", b""))
    outcomes: list[Outcome] = [
        Crashed(crash, "killed", True),
        Crashed(suspect, "killed", False),
        Broken(broken, "not JSON"),
        UnknownTask(aside, "task"),
        UnknownTask(aside_for_long, "another"),
        Completed(parent, hand_overs=(child,)),
    ]
    assert settle(queue, *outcomes) == (True,) * 6
    assert perform(queue, lambda layout: layout.unpark(["task"])) == 1
    assert queue.revive("break") == [True]
    pass_time(client, NAME, 301)
    assert sorted(drain(queue)) == sorted([*ids[:5], "child"])
    assert perform(queue, lambda layout: layout.unpark(["another"])) == 0


@pytest.mark.serves("W4")
def test_after_a_whole_life_not_one_key_is_left(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        live(app.queue(NAME), client)
        assert names(client) == {"state"}, "the last answer to each connection, until it unregisters"
    assert names(client) == set()


@pytest.mark.serves("W4")
def test_a_plain_job_is_three_keys_while_it_waits(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        queue = app.queue(NAME)
        queue.enqueue(b"")
        assert names(client) == {"state", "ready", "data"}
        lease = take(queue)
        assert names(client) == {"state", "data", "leases", "held", "holders"}
        assert queue.complete(lease)
        assert names(client) == {"state"}
    assert names(client) == set()


@pytest.mark.serves("W4")
async def test_nothing_is_left_of_an_awaiting_program(server: Server, client: redis.Redis) -> None:
    async with Windlass(server.url) as app:
        queue = app.queue(NAME)
        await queue.aenqueue_many([b""] * 20)

        async def work() -> None:
            while lease := await queue.alease(wait=0.05):
                assert await queue.acomplete(lease)

        await asyncio.gather(*(work() for _ in range(5)))
    assert names(client) == set()


@pytest.mark.serves("W4")
def test_nothing_is_left_of_many_event_loops(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        queue = app.queue(NAME)

        async def one() -> None:
            await queue.aenqueue(b"")
            lease = await queue.alease()
            assert lease is not None
            assert await queue.acomplete(lease)

        for _ in range(4):
            asyncio.run(one())
    assert names(client) == set()


@pytest.mark.serves("W4")
def test_nothing_is_left_of_many_threads(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        queue = app.queue(NAME)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: queue.enqueue(b""), range(64)))
            assert sum(pool.map(lambda _: len(drain(queue)), range(16))) == 64
    assert names(client) == set()


@pytest.mark.serves("W4")
def test_the_last_program_takes_the_last_key(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as first:
        with Windlass(server.url) as second:
            first.queue(NAME).enqueue(b"")
            drain(second.queue(NAME))
        assert names(client) == {"state"}
        assert client.hlen(queue_key(NAME, "state")) > 0
    assert names(client) == set()


def test_what_nobody_asks_for_again_ends_by_itself(server: Server, client: redis.Redis) -> None:
    """Who watched, what was put aside, a result, how a job was cancelled: each key of theirs has an end."""
    with Windlass(server.url) as app:
        queue = app.queue(NAME)
        assert perform(queue, lambda layout: layout.watch("a", 60))
        queue.enqueue_many(RawJob(b"", id=id) for id in "ab")
        first, second = queue.lease_many(2)
        assert settle(queue, Completed(first, Kept(b"1", 60_000)), UnknownTask(second, "task")) == (True, True)
        assert queue.cancel("b")
    left = {key: client.pttl(key) for key in client.scan_iter()}
    assert {key.decode().partition("}:")[2] for key in left} == {"watched", "parked", "result:a", "ended"}
    marks = left.pop(queue_key(NAME, "ended").encode())
    assert 600_000 < marks <= MARK_TTL_MS
    assert all(0 < ms <= 600_000 for ms in left.values())
    client.delete(*left, queue_key(NAME, "ended"))


def test_what_is_broken_stays(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        app.queue(NAME).enqueue(b"data", id="a")
        assert settle(app.queue(NAME), Broken(take(app.queue(NAME)), "not JSON")) == (True,)
    assert names(client) == {"state", "broken", "dead_records"}
    with Windlass(server.url) as app:
        assert app.queue(NAME).purge("broken") == 1
    assert names(client) == set()


def test_what_waits_stays(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        app.queue(NAME).enqueue(b"data", id="a", delay=60)
    assert names(client) == {"state", "scheduled", "data", "meta"}
    with Windlass(server.url) as app:
        job = app.queue(NAME).get("a")
        assert job is not None
        assert job.data == b"data"
        assert app.queue(NAME).cancel("a")
    assert names(client) == set()


def test_a_pause_stays(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        app.queue(NAME).pause()
    with Windlass(server.url) as app:
        assert app.queue(NAME).counts().paused
        assert app.queue(NAME).resume()
    assert names(client) == set()


def test_looking_leaves_nothing(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        queue = app.queue(NAME)
        queue.counts(), queue.get("a"), queue.jobs("ready"), queue.lease()
        assert not queue.cancel("a")
        assert not queue.beat("worker-1")
    assert names(client) == set()


@pytest.mark.serves("W4")
def test_nothing_is_left_of_a_holder_that_is_done(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        queue = app.queue(NAME)
        queue.enqueue_many([b""] * 3)
        leases = queue.lease_many(3, seconds=30, holder="worker-1")
        assert queue.beat("worker-1", 30)
        assert queue.complete_many(leases) == [True] * 3
    assert names(client) == set()


@pytest.mark.serves("W4", "W7")
def test_nothing_is_left_of_a_cancelled_wait(server: Server, client: redis.Redis) -> None:
    async def wait_and_cancel(queue: Queue) -> None:
        task = asyncio.create_task(queue.alease(wait=60))
        await asyncio.to_thread(wait_until, lambda: client.zcard(queue_key(NAME, "idle")), "the waiter to be idle")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with Windlass(server.url) as app:
        asyncio.run(wait_and_cancel(app.queue(NAME)))
    assert names(client) == set()


# -- programs that end without unregistering ------------------------------------------------------

PROGRAM = """
import sys
from windlass import Windlass
queue = Windlass(sys.argv[1]).queue(sys.argv[2])
queue.enqueue(b"", id="done")
assert queue.complete(queue.lease())
queue.enqueue(b"", id="held")
queue.lease(seconds=30)
print("ready", flush=True)
queue.lease(wait=60)
"""


@pytest.mark.serves("W4", "W14")
def test_what_a_killed_program_left_is_taken_back_and_forgotten(server: Server, client: redis.Redis) -> None:
    victim = subprocess.Popen([sys.executable, "-c", PROGRAM, server.url, NAME], stdout=subprocess.PIPE)
    assert victim.stdout is not None
    with victim.stdout:
        assert victim.stdout.readline() == b"ready\n"
        wait_until(lambda: client.zcard(queue_key(NAME, "idle")), "it to wait")
        os.kill(victim.pid, signal.SIGKILL)
    victim.wait(10)
    assert "state" in names(client)
    pass_time(client, NAME, 601)  # long enough for the lease, and for its last answers to be asked for again
    with Windlass(server.url) as app:
        assert drain(app.queue(NAME)) == ["held"]
        assert app.queue(NAME).lease(wait=0.01) is None
    assert names(client) == set()


@pytest.mark.serves("W4")
def test_young_callers_are_not_forgotten(server: Server, client: redis.Redis) -> None:
    state = queue_key(NAME, "state")
    with Windlass(server.url) as app:
        app.queue(NAME).enqueue(b"", id="a")
        fields = set(client.hkeys(state))
        pass_time(client, NAME, 590)
        with Windlass(server.url) as other:
            other.queue(NAME).enqueue(b"", id="b")
            assert fields <= set(client.hkeys(state)), "a repeat may still come"
        drain(app.queue(NAME))
    assert names(client) == set()


@pytest.mark.serves("W4")
def test_thousands_of_abandoned_callers_are_forgotten(server: Server, client: redis.Redis) -> None:
    state = queue_key(NAME, "state")
    with Windlass(server.url) as app:
        queue = app.queue(NAME)
        queue.enqueue(b"")
        clock = read_core(client, NAME).clock
        client.hset(state, mapping={f"caller:gone{number}": f"3 {clock - 700_000} 1 a" for number in range(2000)})
        assert queue.audit(repair=True).repaired == 2000
        assert client.hlen(state) < 15
        drain(queue)
    assert names(client) == set()
