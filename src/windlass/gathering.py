"""Awaited enqueues that come at the same time go to the server together.

One that comes while nothing is under way goes at once, so that who comes alone waits for nobody. Those that come behind
it are sent together when this turn of the event loop is over, or earlier if they are enough: then the server is at work
on the first of a crowd while the others are still being made. A few that come while many are under way wait for the
answer to these, for a moment at most: with it the others come again, and one call for all costs little more.
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


ENOUGH = 50  # that wait are sent while others are still coming
MOST_CALLS = 2  # under way that early ones are added to: each has a connection of its own
FEW = 0.5  # of those under way: fewer than that wait for these
MOMENT = 0.002  # seconds that they wait at most


class Gathering:
    """Those of one queue and one event loop. Only such that are to be equally safe go together.

    `split` makes batches that one call can take: each is sent, and answered, by itself.
    """

    def __init__(self, send: Send, split: Split) -> None:
        self._send = send
        self._split = split
        self._waiting: dict[Durability | None, list[Waiting]] = {}
        self._under_way = 0  # jobs
        self._alone = 0  # calls for one job that came alone
        self._sending: set[asyncio.Task[None]] = set()
        self._next: asyncio.Handle | None = None  # when those that wait are looked at

    async def enqueue(self, job: NewJob) -> Receipt:
        """Send a job, alone or with others; its own receipt.

        Who is cancelled before it is sent is not sent. After that the others decide: it may be sent with them.
        """
        loop = asyncio.get_running_loop()
        if not self._under_way and not self._waiting:
            return await self._enqueue_alone(loop, job)
        receipt: asyncio.Future[Receipt] = loop.create_future()
        together = self._waiting.setdefault(job.durability, [])
        together.append((job, receipt))
        if len(together) >= ENOUGH and self._alone + len(self._sending) < MOST_CALLS:
            self._begin(loop, self._waiting.pop(job.durability))
        elif self._next is None:
            self._next = loop.call_soon(self._end_turn, loop)
        return await receipt

    async def _enqueue_alone(self, loop: asyncio.AbstractEventLoop, job: NewJob) -> Receipt:
        self._under_way += 1
        self._alone += 1
        try:
            return (await self._send([job]))[0]
        finally:
            self._alone -= 1
            self._has_ended(loop, 1)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = sum(map(len, self._waiting.values()))
        if 0 < waiting < FEW * self._under_way:
            self._next = loop.call_later(MOMENT, self._begin_all, loop)
        else:
            self._begin_all(loop)

    def _has_ended(self, loop: asyncio.AbstractEventLoop, jobs: int) -> None:
        """A call is answered. Who waited for it goes with those who were: they come again in this turn of the loop."""
        self._under_way -= jobs
        if self._waiting and not loop.is_closed():
            if self._next is not None:
                self._next.cancel()
            self._next = loop.call_soon(self._end_turn, loop)

    def _begin_all(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = None
        waiting, self._waiting = self._waiting, {}
        for together in waiting.values():
            self._begin(loop, together)

    def _begin(self, loop: asyncio.AbstractEventLoop, waiting: list[Waiting]) -> None:
        together = [each for each in waiting if not each[1].done()]
        if not together:
            return
        left = count = len(together)
        self._under_way += count
        task = loop.create_task(self._send_all(together))
        self._sending.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._sending.discard(task)
            self._has_ended(loop, count)

        def one_less(_: asyncio.Future[Receipt]) -> None:
            nonlocal left
            left -= 1
            if not left:
                task.cancel()  # nobody waits any more: as one alone would, it ends where it is

        task.add_done_callback(ended)
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
