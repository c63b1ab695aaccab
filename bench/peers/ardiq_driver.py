"""ArdiQ, whose worker loop is written in Rust, results off."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import asyncio

from ardiq import Ardiq

from bench.peers.driving import NAP, URL, Driver, Numbers, began, handled, main, run


async def noop(n: int) -> None:
    handled(n)


async def nap(n: int) -> None:
    began()
    await asyncio.sleep(NAP)
    handled(n)


def make_app(concurrency: int = 100) -> Ardiq:
    """An app with this concurrency, and an equal prefetch."""
    app = Ardiq(URL, "bench", concurrency=concurrency, prefetch=2 * concurrency, result_ttl_ms=0)
    app.task(name="noop")(noop)
    app.task(name="nap")(nap)
    return app


class ArdiqDriver(Driver):
    """Enqueues by name."""

    app = make_app()

    async def awaited(self, numbers: Numbers) -> None:
        task = self.app.ref(self.task)
        for n in numbers:
            await task.enqueue(n)

    async def bulk(self, numbers: Numbers) -> None:
        task = self.app.ref(self.task)
        for batch in numbers.batches():
            await self.app.enqueue_many([task.prepare(n) for n in batch])

    def work(self, concurrency: int) -> None:
        run(make_app(concurrency).run())


main(ArdiqDriver())
