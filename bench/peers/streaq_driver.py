"""streaQ, results off and its log of each task silenced."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streaq import Worker

from bench.peers.driving import NAP, URL, Driver, Numbers, began, handled, main

worker: Worker[None] = Worker(redis_url=URL, concurrency=100, handle_signals=False, anyio_kwargs={"use_uvloop": True})


@worker.task(ttl=0, silent=True)
async def noop(n: int) -> None:
    handled(n)


@worker.task(ttl=0, silent=True)
async def nap(n: int) -> None:
    began()
    await asyncio.sleep(NAP)
    handled(n)


TASKS = {"noop": noop, "nap": nap}


class StreaqDriver(Driver):
    """Its prefetch equals its concurrency, which is its default."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        async with worker:
            yield

    async def awaited(self, numbers: Numbers) -> None:
        task = TASKS[self.task]
        for n in numbers:
            await task.enqueue(n)

    async def bulk(self, numbers: Numbers) -> None:
        task = TASKS[self.task]
        for batch in numbers.batches():
            await worker.enqueue_many([task.enqueue(n) for n in batch])

    def work(self, concurrency: int) -> None:
        worker.concurrency = concurrency
        worker.prefetch = 2 * concurrency
        worker.run_sync()


main(StreaqDriver())
