"""arq, with a fast poll and no results."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import arq
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.peers.driving import NAP, URL, Driver, Numbers, began, handled, main, run

settings = RedisSettings.from_dsn(URL)


async def noop(context: dict[str, Any], n: int) -> None:
    handled(n)


async def nap(context: dict[str, Any], n: int) -> None:
    began()
    await asyncio.sleep(NAP)
    handled(n)


class ArqDriver(Driver):
    """It polls: every 10 ms here, every half second by default."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        self.pool = await arq.create_pool(settings)
        yield
        await self.pool.aclose()

    async def awaited(self, numbers: Numbers) -> None:
        for n in numbers:
            await self.pool.enqueue_job(self.task, n)

    def work(self, concurrency: int) -> None:
        run(self._work(concurrency))

    async def _work(self, concurrency: int) -> None:
        worker = Worker(
            functions=[noop, nap],
            redis_settings=settings,
            max_jobs=concurrency,
            keep_result=0,
            poll_delay=0.01,
            handle_signals=False,
        )
        await worker.async_run()


main(ArqDriver())
