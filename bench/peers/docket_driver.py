"""docket, nothing kept of a job that is done."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from docket import Docket, Worker

from bench.peers.driving import NAP, POOL_URL, Driver, Numbers, began, handled, main, run


async def noop(n: int) -> None:
    handled(n)


async def nap(n: int) -> None:
    began()
    await asyncio.sleep(NAP)
    handled(n)


TASKS = {"noop": noop, "nap": nap}


class DocketDriver(Driver):
    """A full worker sleeps for its check interval, 250 ms by default: 5 ms here."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        async with Docket(name="bench", url=POOL_URL, execution_ttl=timedelta(0)) as self.docket:
            self.docket.register(noop)
            self.docket.register(nap)
            yield

    async def awaited(self, numbers: Numbers) -> None:
        for n in numbers:
            await self.docket.add(TASKS[self.task])(n)

    async def bulk(self, numbers: Numbers) -> None:
        for batch in numbers.batches():
            await self.docket.add_many([self.docket.call(TASKS[self.task])(n) for n in batch])

    def work(self, concurrency: int) -> None:
        run(self._work(concurrency))

    async def _work(self, concurrency: int) -> None:
        often = timedelta(milliseconds=5)
        async with self.session(), Worker(self.docket, concurrency=concurrency, minimum_check_interval=often) as worker:
            await worker.run_forever()


main(DocketDriver())
