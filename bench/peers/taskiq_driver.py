"""taskiq on taskiq-redis' stream broker, without a result backend."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers.driving import NAP, URL, Driver, Numbers, began, handled, main, run

# From the stream's beginning: the jobs arrive before the worker.
broker = RedisStreamBroker(URL, consumer_id="0", max_connection_pool_size=200)


@broker.task(task_name="noop")
async def noop(n: int) -> None:
    handled(n)


@broker.task(task_name="nap")
async def nap(n: int) -> None:
    began()
    await asyncio.sleep(NAP)
    handled(n)


class TaskiqDriver(Driver):
    """Reads and prefetches 100 messages at a time, which is its default."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        await broker.startup()
        yield
        await broker.shutdown()

    async def awaited(self, numbers: Numbers) -> None:
        task = broker.find_task(self.task)
        assert task
        for n in numbers:
            await task.kiq(n)

    def work(self, concurrency: int) -> None:
        run(run_receiver_task(broker, max_async_tasks=concurrency, max_prefetch=100, run_startup=True))


main(TaskiqDriver())
