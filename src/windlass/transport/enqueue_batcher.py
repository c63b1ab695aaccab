"""Sends concurrent awaited enqueues in one call.

If no call is in flight, an enqueue is sent at once, so a single one never waits. Further enqueues are collected and
sent at the end of this event-loop iteration, or as soon as FLUSH_AT are pending: then the server works on the first
batch while the program makes the rest. If only a few are pending while many jobs are in flight, they wait for those
replies, MAX_WAIT_S at most. The tasks that get these replies often enqueue again, and one call for all is cheaper.

Concurrent calls arrive in order only if their connections are open already. So the batcher runs no more calls at once
than it has run before. A program that needs an order awaits one enqueue after the other.
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


FLUSH_AT = 50  # pending enqueues that trigger a send before the end of the loop's iteration
MAX_EARLY_CALLS = 2  # calls in flight up to which FLUSH_AT applies: each call needs its own connection
MIN_PENDING_RATIO = 0.5  # pending enqueues per job in flight; with fewer it pays to wait for the replies
MAX_WAIT_S = 0.002  # the longest time that an enqueue waits for others


class EnqueueBatcher:
    """Batches the enqueues of one queue on one event loop. One batch holds jobs of one durability level only.

    `split` divides the jobs into batches that one call can take. Each batch is sent and answered separately.
    """

    def __init__(self, send: Send, split: Split) -> None:
        self._send = send
        self._split = split
        self._waiting: dict[Durability | None, list[Waiting]] = {}
        self._in_flight: Counter[Durability | None] = Counter()  # jobs
        self._calls = 0  # in flight
        self._max_calls_seen = 0  # the most calls in flight at once so far
        self._sending: dict[asyncio.Task[None], list[Waiting]] = {}
        self._flush_scheduled = False  # for the end of this iteration of the event loop
        self._cleanup_scheduled = False  # an enqueue was cancelled: check for calls that no one awaits
        self._flush_timer: asyncio.TimerHandle | None = None  # fires when the oldest one has waited MAX_WAIT_S

    async def enqueue(self, job: NewJob) -> Receipt:
        """Send a job, alone or in a batch, and return its receipt.

        If the caller is cancelled before the send, the job is not sent. Later, it may be sent with its batch.
        """
        loop = asyncio.get_running_loop()
        if not self._calls and not self._waiting:
            self._call_begins(job.durability, 1)
            try:
                return (await self._send([job]))[0]
            finally:
                self._call_ends(loop, job.durability, 1)
        receipt: asyncio.Future[Receipt] = loop.create_future()
        if self._flush_timer is None:
            self._flush_timer = loop.call_later(MAX_WAIT_S, self._begin_all, loop)
        together = self._waiting.setdefault(job.durability, [])
        together.append((job, receipt))
        if len(together) >= FLUSH_AT and self._calls < min(MAX_EARLY_CALLS, self._max_calls_seen):
            self._begin(loop, job.durability)
        else:
            self._schedule_flush(loop)
        try:
            return await receipt
        except asyncio.CancelledError:
            self._schedule_cleanup(loop)
            raise

    def _schedule_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            loop.call_soon(self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flush_scheduled = False
        for durability, waiting in list(self._waiting.items()):
            if len(waiting) >= MIN_PENDING_RATIO * self._in_flight[durability]:
                self._begin(loop, durability)

    def _begin_all(self, loop: asyncio.AbstractEventLoop) -> None:
        for durability in list(self._waiting):
            self._begin(loop, durability)

    def _begin(self, loop: asyncio.AbstractEventLoop, durability: Durability | None) -> None:
        together = [each for each in self._waiting.pop(durability) if not each[1].done()]
        if not self._waiting and self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not together:
            return
        task = loop.create_task(self._send_all(together))
        self._sending[task] = together
        self._call_begins(durability, len(together))

        def ended(task: asyncio.Task[None]) -> None:
            del self._sending[task]
            self._call_ends(loop, durability, len(together))

        task.add_done_callback(ended)

    def _schedule_cleanup(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check once for all enqueues cancelled in this loop iteration: counting waiters would cost time for each."""
        if not self._cleanup_scheduled:
            self._cleanup_scheduled = True
            loop.call_soon(self._cancel_abandoned_calls)

    def _cancel_abandoned_calls(self) -> None:
        self._cleanup_scheduled = False
        for task, together in self._sending.items():
            # Tasks are usually cancelled in order, so the last one is the most likely to be still waiting.
            if all(receipt.done() for _, receipt in reversed(together)):
                task.cancel()

    def _call_begins(self, durability: Durability | None, jobs: int) -> None:
        self._in_flight[durability] += jobs
        self._calls += 1

    def _call_ends(self, loop: asyncio.AbstractEventLoop, durability: Durability | None, jobs: int) -> None:
        """Schedule a flush: the tasks that get their receipts now may enqueue again in this loop iteration."""
        self._max_calls_seen = max(self._max_calls_seen, self._calls)
        self._in_flight[durability] -= jobs
        self._calls -= 1
        if self._waiting and not loop.is_closed():
            self._schedule_flush(loop)

    async def _send_all(self, together: list[Waiting]) -> None:
        waiting = iter(together)
        for batch in self._split([job for job, _ in together]):
            receipts = [receipt for _, receipt in islice(waiting, len(batch))]
            if not all(receipt.done() for receipt in receipts):  # cancelled while an earlier batch was in flight
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
