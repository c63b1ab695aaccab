"""Awaited enqueues that come at the same time go to the server together.

One that comes while nothing is under way goes at once, so that who comes alone waits for nobody. Those that come behind
it are sent together when this turn of the event loop is over, or earlier if they are enough: then the server is at work
on the first of a crowd while the others are still being made. A few that come while many are under way wait for the
answer to these, for a moment at most: with it the others come again, and one call for all costs little more.

Calls that are under way at the same time arrive in the order in which they came if their connections are open already,
which is why a crowd is split only as far as it was before. Who needs an order awaits one after the other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from windlass.errors import NotDurable
from windlass.values.durability import Durability
from windlass.values.job import NewJob, Receipt

Send = Callable[[list[NewJob]], Awaitable[list[Receipt]]]
Split = Callable[[list[NewJob]], Iterable[list[NewJob]]]
Waiting = tuple[NewJob, asyncio.Future[Receipt]]


ENOUGH = 50  # that wait are sent while others are still coming
MOST_CALLS = 2  # under way at a time, if there is no need for more: each has a connection of its own
FEW = 0.5  # of those under way: fewer than that wait for these
MOMENT = 0.002  # seconds that they wait at most


class EnqueueBatcher:
    """Those of one queue and one event loop. Only such that are to be equally safe go together.

    `split` makes batches that one call can take: each is sent, and answered, by itself.
    """

    def __init__(self, send: Send, split: Split) -> None:
        self._send = send
        self._split = split
        self._waiting: dict[Durability | None, list[Waiting]] = {}
        self._under_way: Counter[Durability | None] = Counter()  # jobs
        self._calls = 0
        self._calls_before = 0  # that were under way at a time, at most
        self._sending: dict[asyncio.Task[None], list[Waiting]] = {}
        self._turn_begun = False  # at its end those that wait are looked at
        self._abandoning = False  # somebody was cancelled: at its end calls that nobody waits for are ended
        self._patience: asyncio.TimerHandle | None = None  # ends when the first of them has waited long enough

    async def enqueue(self, job: NewJob) -> Receipt:
        """Send a job, alone or with others; its own receipt.

        Who is cancelled before it is sent is not sent. After that the others decide: it may be sent with them.
        """
        loop = asyncio.get_running_loop()
        if not self._calls and not self._waiting:
            self._call_begins(job.durability, 1)
            try:
                return (await self._send([job]))[0]
            finally:
                self._call_ends(loop, job.durability, 1)
        receipt: asyncio.Future[Receipt] = loop.create_future()
        if self._patience is None:
            self._patience = loop.call_later(MOMENT, self._begin_all, loop)
        together = self._waiting.setdefault(job.durability, [])
        together.append((job, receipt))
        if len(together) >= ENOUGH and self._calls < min(MOST_CALLS, self._calls_before):
            self._begin(loop, job.durability)
        else:
            self._look_after_this_turn(loop)
        try:
            return await receipt
        except asyncio.CancelledError:
            self._look_for_abandoned_calls(loop)
            raise

    def _look_after_this_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._turn_begun:
            self._turn_begun = True
            loop.call_soon(self._end_turn, loop)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_begun = False
        for durability, waiting in list(self._waiting.items()):
            if len(waiting) >= FEW * self._under_way[durability]:
                self._begin(loop, durability)

    def _begin_all(self, loop: asyncio.AbstractEventLoop) -> None:
        for durability in list(self._waiting):
            self._begin(loop, durability)

    def _begin(self, loop: asyncio.AbstractEventLoop, durability: Durability | None) -> None:
        together = [each for each in self._waiting.pop(durability) if not each[1].done()]
        if not self._waiting and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if not together:
            return
        task = loop.create_task(self._send_all(together))
        self._sending[task] = together
        self._call_begins(durability, len(together))

        def ended(task: asyncio.Task[None]) -> None:
            del self._sending[task]
            self._call_ends(loop, durability, len(together))

        task.add_done_callback(ended)

    def _look_for_abandoned_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once for all that are cancelled in one turn of the loop. To count those who wait would cost every job."""
        if not self._abandoning:
            self._abandoning = True
            loop.call_soon(self._end_abandoned_calls)

    def _end_abandoned_calls(self) -> None:
        self._abandoning = False
        for task, together in self._sending.items():
            # Who came first is cancelled first, as a rule: from the end it takes one look to know that somebody waits.
            if all(receipt.done() for _, receipt in reversed(together)):
                task.cancel()  # nobody waits any more: as one alone would, it ends where it is

    def _call_begins(self, durability: Durability | None, jobs: int) -> None:
        self._under_way[durability] += jobs
        self._calls += 1

    def _call_ends(self, loop: asyncio.AbstractEventLoop, durability: Durability | None, jobs: int) -> None:
        """Who waited for it goes with those who were under way: they come again in this turn of the loop."""
        self._calls_before = max(self._calls_before, self._calls)
        self._under_way[durability] -= jobs
        self._calls -= 1
        if self._waiting and not loop.is_closed():
            self._look_after_this_turn(loop)

    async def _send_all(self, together: list[Waiting]) -> None:
        waiting = iter(together)
        for batch in self._split([job for job, _ in together]):
            receipts = [receipt for _, receipt in islice(waiting, len(batch))]
            if not all(receipt.done() for receipt in receipts):  # cancelled while an earlier batch was under way
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
