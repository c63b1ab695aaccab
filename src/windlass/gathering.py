"""Awaited enqueues that come at the same time go to the server together.

The first in a turn of the event loop goes at once, so that who comes alone waits for nobody. Those that come behind it
in the same turn are sent together when the turn is over: a hundred at a time cost little more than two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from windlass.durability import Durability
from windlass.errors import NotDurable
from windlass.job import NewJob, Receipt

Send = Callable[[list[NewJob]], Awaitable[list[Receipt]]]
Split = Callable[[list[NewJob]], Iterable[list[NewJob]]]
Waiting = tuple[NewJob, asyncio.Future[Receipt]]


class Gathering:
    """Those of one queue and one event loop. Only such that are to be equally safe go together.

    `split` makes batches that one call can take: each is sent, and answered, by itself.
    """

    def __init__(self, send: Send, split: Split) -> None:
        self._send = send
        self._split = split
        self._waiting: dict[Durability | None, list[Waiting]] = {}
        self._turn_begun = False
        self._sending: set[asyncio.Task[None]] = set()

    async def enqueue(self, job: NewJob) -> Receipt:
        """Send a job, alone or with others; its own receipt.

        Who is cancelled before the turn is over is not sent. After that the others decide: it may be sent with them.
        """
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
        for all_of_them in waiting.values():
            together = [each for each in all_of_them if not each[1].done()]
            if together:
                self._begin(loop, together)

    def _begin(self, loop: asyncio.AbstractEventLoop, together: list[Waiting]) -> None:
        task = loop.create_task(self._send_all(together))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        left = len(together)

        def one_less(_: asyncio.Future[Receipt]) -> None:
            nonlocal left
            left -= 1
            if not left:
                task.cancel()  # nobody waits any more: as one alone would, it ends where it is

        for _, receipt in together:
            receipt.add_done_callback(one_less)

    async def _send_all(self, together: list[Waiting]) -> None:
        waiting = iter(together)
        for batch in self._split([job for job, _ in together]):
            receipts = [receipt for _, receipt in islice(waiting, len(batch))]
            await self._send_batch(batch, receipts)

    async def _send_batch(self, batch: list[NewJob], waiting: list[asyncio.Future[Receipt]]) -> None:
        try:
            receipts = await self._send(batch)
        except NotDurable as error:
            for place, own in enumerate(error.receipts):
                _fail(waiting[place], NotDurable(error.queue, error.asked, error.reached, [own]))
        except Exception as error:
            for each in waiting:
                _fail(each, error)
        else:
            for each, receipt in zip(waiting, receipts, strict=True):
                if not each.done():
                    each.set_result(receipt)


def _fail(waiting: asyncio.Future[Receipt], error: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(error)
