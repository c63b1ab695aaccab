"""SAQ on Redis, nothing kept of a job that is done."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from bench.peers.driving import AWAITS, NAP, URL, Driver, Numbers, began, handled, main, run

queue = Queue.from_url(URL, max_concurrent_ops=AWAITS)


async def noop(context: dict[str, Any], *, n: int) -> None:
    handled(n)


async def nap(context: dict[str, Any], *, n: int) -> None:
    began()
    await asyncio.sleep(NAP)
    handled(n)


class SaqDriver(Driver):
    """`ttl=-1` is how it throws results away."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        await queue.connect()
        yield
        await queue.disconnect()

    async def awaited(self, numbers: Numbers) -> None:
        for n in numbers:
            await queue.enqueue(self.task, n=n, ttl=-1)

    def work(self, concurrency: int) -> None:
        run(Worker(queue, functions=[noop, nap], concurrency=concurrency).start())


main(SaqDriver())
