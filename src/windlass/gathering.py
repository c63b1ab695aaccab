"""Awaited enqueues that come at the same time go to the server together.

The first in a turn of the event loop goes at once, so that who comes alone waits for nobody. Those that come behind it
in the same turn are sent as one call when the turn is over: a hundred at a time cost little more than two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from windlass.durability import Durability
from windlass.errors import NotDurable
from windlass.job import NewJob, Receipt

Send = Callable[[list[NewJob]], Awaitable[list[Receipt]]]


class Gathering:
    """Those of one queue and one event loop. Only such that are to be equally safe go together."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: dict[Durability | None, list[tuple[NewJob, asyncio.Future[Receipt]]]] = {}
        self._turn_begun = False
        self._sending: set[asyncio.Task[None]] = set()

    async def enqueue(self, job: NewJob) -> Receipt:
        """Send a job, alone or with others; its own receipt."""
        loop = asyncio.get_running_loop()
        if not self._turn_begun:
            self._turn_begun = True
            loop.call_soon(self._end_turn, loop)
            return (await self._send([job]))[0]
        receipt: asyncio.Future[Receipt] = loop.create_future()
        self._waiting.setdefault(job.durability, []).append((job, receipt))
        return await receipt

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_begun = False
        waiting, self._waiting = self._waiting, {}
        for together in waiting.values():
            task = loop.create_task(self._send_all(together))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_all(self, together: list[tuple[NewJob, asyncio.Future[Receipt]]]) -> None:
        together = [each for each in together if not each[1].cancelled()]
        short: NotDurable | None = None
        try:
            receipts = await self._send([job for job, _ in together])
        except NotDurable as error:
            receipts, short = error.receipts, error
        except BaseException as error:
            for _, waits in together:
                if not waits.done():
                    waits.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, waits), receipt in zip(together, receipts, strict=True):
            if waits.done():
                continue
            if short is None:
                waits.set_result(receipt)
            else:
                waits.set_exception(NotDurable(short.queue, short.asked, short.reached, [receipt]))
