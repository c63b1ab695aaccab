"""An idle worker costs the server little, and still finds jobs that sent no wake-up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
from msgspec import structs

from tests.support.internals import aperform_call, app_of
from tests.support.server import Server
from tests.support.waiting import FOREVER_S
from tests.support.workers import Workshop, pass_time
from windlass import Windlass
from windlass.storage.formats import SOON_MS
from windlass.storage.native.keys import queue_key
from windlass.storage.port import LeaseRequest, Turn
from windlass.values.job import Change, NewJob
from windlass.worker.runner.poll_timer import FULL_RATE_WAITERS, MAX_POLL_S, MIN_POLL_S
from windlass.worker.runner.queue_consumer import QueueConsumer


def begin_idle(shop: Workshop) -> None:
    """Start a worker, and let it poll an empty queue."""
    shop.start("gated", queues={"gated": 1}, lease=FOREVER_S)
    pass_time(1.5)


def test_an_idle_worker_mostly_probes(server: Server, shop: Workshop) -> None:
    begin_idle(shop)
    with server.client() as client:
        client.config_resetstat()
        began = monotonic()
        pass_time(3.0)
        stats: Any = client.info("commandstats")
        seconds = monotonic() - began
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    assert calls["evalsha"] <= 2 * seconds
    assert sum(calls.values()) <= 15 * seconds


def test_a_job_that_was_pushed_by_hand_is_found(server: Server, shop: Workshop) -> None:
    begin_idle(shop)
    with server.client() as client:
        client.lpush(queue_key("gated", "inbox"), b'{"task": "loop_gate", "args": ["/"]}')
    shop.journal.wait(1, "end")
    shop.wait_empty("gated")


def test_a_lease_that_ends_earlier_than_it_knew_is_found(server: Server, shop: Workshop) -> None:
    with Windlass(server.url) as other:
        queue = other.queue("gated")
        id = shop.send("loop_gate", "/", queue="gated")
        lease = queue.lease(FOREVER_S)
        assert lease is not None
        begin_idle(shop)
        assert queue.extend(lease, 0.5)  # sends no wake-up
        shop.journal.wait(1, "start", id=id)
        shop.wait_empty("gated")


@pytest.fixture
async def waiters(server: Server) -> AsyncIterator[Callable[[int], Awaitable[QueueConsumer]]]:
    """Make a number of workers wait on a queue, and return a queue consumer that has polled in vain too."""
    async with Windlass(server.url) as app:

        async def look_in_vain(waiter: str) -> None:
            look = app.layout("quiet").turn((), LeaseRequest(want=1, seconds=15.0, holder="w", waiter=waiter))
            await aperform_call(app, look)

        async def wait(count: int) -> QueueConsumer:
            for number in range(count):
                await look_in_vain(f"waiter-{number}")
            consumer = QueueConsumer(app, "quiet", 1, frozenset({"loop"}), "w", 15.0, lambda: None)
            consumer.poll.begin()
            await consumer.turn(1)
            consumer.poll.end()
            return consumer

        yield wait
        await app.queue("quiet").apurge()


@pytest.mark.parametrize("waiting", [0, FULL_RATE_WAITERS])
async def test_few_workers_poll_once_a_second(waiters: Callable[[int], Awaitable[QueueConsumer]], waiting: int) -> None:
    consumer = await waiters(waiting)
    for _ in range(5):
        before = monotonic()
        assert not await consumer.probe()
        assert before + MIN_POLL_S <= consumer.poll.next_at <= monotonic() + MIN_POLL_S


@pytest.mark.parametrize(("waiting", "longest"), [(3 * FULL_RATE_WAITERS, 3 * MIN_POLL_S), (1000, MAX_POLL_S)])
async def test_with_more_waiting_workers_each_polls_less_often(
    waiters: Callable[[int], Awaitable[QueueConsumer]], waiting: int, longest: float
) -> None:
    consumer = await waiters(waiting)
    pauses = []
    for _ in range(40):
        assert not await consumer.probe()
        pauses.append(consumer.poll.next_at - monotonic())
    assert max(pauses) <= longest
    assert max(pauses) > longest / 2 > min(pauses), "by chance, or all of them would look at once"


async def test_a_worker_polls_for_lost_jobs_only_if_others_hold_some(server: Server) -> None:
    async with Windlass(server.url) as app:
        queue = app.queue("held")

        async def next_work_in() -> float | None:
            look = app.layout("held").turn((), LeaseRequest(want=1, seconds=15.0, holder="looks", waiter="looks"))
            return (await aperform_call(app, look)).next_work_in

        assert not await queue.abeat("peer", 5.0, register=True)
        assert await next_work_in() is None
        await queue.aenqueue(b"")
        assert await queue.alease(5.0, holder="peer")
        left = await next_work_in()
        assert left is not None
        assert 0 < left <= 5.1, "its jobs are taken back when it does not beat again"
        await queue.apurge()


async def test_a_probe_tells_when_a_lease_ends_that_was_taken_since(
    waiters: Callable[[int], Awaitable[QueueConsumer]],
) -> None:
    consumer = await waiters(1000)
    queue = app_of(consumer).queue("quiet")
    assert not await queue.abeat("peer", 3.0, register=True)
    await queue.aenqueue(b"")
    assert await queue.alease(3.0, holder="peer")
    assert not await consumer.probe()
    assert consumer.poll.next_at <= monotonic() + 3.1
    await queue.apurge()


async def test_a_probe_corrects_a_clock_reading_that_was_behind(server: Server) -> None:
    async with Windlass(server.url) as app:
        queue = app.queue("quiet")
        await queue.aenqueue(b"")
        assert await queue.alease(1.0)
        probe = app.layout("quiet").probe()
        assert probe is not None
        due, now = probe.args
        late = structs.replace(probe, args=(due, int(now) - 60_000))
        left = await aperform_call(app, late)
        assert left is not None
        assert 0 < left <= 1.0
        await queue.apurge()


async def test_no_poll_is_longer_than_a_lease(server: Server) -> None:
    async with Windlass(server.url) as app:
        consumer = QueueConsumer(app, "quiet", 1, frozenset({"loop"}), "w", 2.0, lambda: None)
        consumer.poll.learn_from_turn(Turn((), (), None, 0, 0, None, False, 1000, ()), 1)
        pauses = []
        for _ in range(40):
            assert not await consumer.probe()
            pauses.append(consumer.poll.next_at - monotonic())
        assert 1.0 < max(pauses) <= 2.0


def test_announced_run_times_reach_beyond_the_longest_poll() -> None:
    assert SOON_MS > MAX_POLL_S * 1000


async def test_a_probe_finds_a_run_time_that_was_not_announced(
    waiters: Callable[[int], Awaitable[QueueConsumer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await waiters(1000)
    job = NewJob("later", b"", Change(when=("in", 150)))
    await aperform_call(app_of(consumer), consumer.layout.enqueue([job]))
    assert not await consumer.probe()
    assert consumer.poll.next_at <= monotonic() + 0.15, "long before the next poll"
    assert consumer.may_probe(1)
    monkeypatch.setattr("windlass.worker.runner.poll_timer.monotonic", lambda: consumer.poll.next_at)
    assert not consumer.may_probe(1), "when its time has come a real look is made"
