"""What a runner does beside its jobs: schedules, outboxes, and its leases compared with the server's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from time import monotonic
from typing import Any

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.worker.runner.outbox import empty_outbox
from windlass.worker.runner.queue_consumer import QueueConsumer

log = logging.getLogger("windlass.worker")

DECLARE_EVERY_S = 300.0  # a purge or restore may remove declared schedules; they come back within this time
OUTBOX_RETRY_S = 2.0  # after an error: the target queue's server may be down for a while
TURN_CHECK_EVERY_S = 0.05  # while a comparison of leases waits for the turns of its queue to end


class Upkeep:
    """The upkeep of one runner's queues. It calls `notify` when there may be work."""

    def __init__(self, app: Windlass, notify: Callable[[], None], stop_attempt: Callable[[str, int], None]) -> None:
        self._app = app
        self._notify = notify
        self._stop_attempt = stop_attempt
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()

    async def finish(self) -> None:
        """Wait for the work that has begun."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def after_turn(self, consumer: QueueConsumer) -> None:
        """Begin what a turn has shown to be due."""
        if consumer.leases.need_reconcile:
            consumer.leases.reconciling = True
            self._begin(self._reconcile(consumer))
        if consumer.outbox and not consumer.forwarding:
            consumer.forwarding = True
            self._begin(self._empty_outbox(consumer))

    def run_ticks(self, consumers: Iterable[QueueConsumer]) -> None:
        """Fire the schedules that are due."""
        now = monotonic()
        for consumer in consumers:
            if (at := consumer.schedules.next_at) is not None and at <= now:
                consumer.schedules.ticking = True
                self._begin(self._tick(consumer))

    async def declare_schedules(self, consumers: Iterable[QueueConsumer]) -> None:
        """Store the declared schedules at the start, and again later, because a purge removes them."""
        again = False
        while True:
            for consumer in consumers:
                await self._declare(consumer, again=again)
            again = True
            self._notify()
            await asyncio.sleep(DECLARE_EVERY_S)

    async def _declare(self, consumer: QueueConsumer, *, again: bool) -> None:
        try:
            unreadable = await consumer.schedules.declare(again=again)
        except WindlassError as error:
            text = "Cannot declare the schedules of queue %s, trying again in %g s: %s"
            log.warning(text, consumer.queue, DECLARE_EVERY_S, error)
            return
        for name in unreadable:
            self._warn_once(
                f"Cannot declare schedule {name} of queue {consumer.queue}: this Windlass version cannot "
                "read the stored one. Upgrade Windlass, or delete the schedule"
            )

    async def _tick(self, consumer: QueueConsumer) -> None:
        try:
            report = await consumer.tick()
        except WindlassError as error:
            log.warning("Cannot fire the schedules of queue %s, trying again: %s", consumer.queue, error)
            return
        for name in report.unreadable:
            self._warn_once(
                f"Schedule {name} of queue {consumer.queue} is due, but this Windlass version cannot read it: "
                "upgrade Windlass, or delete the schedule"
            )
        self._notify()

    async def _reconcile(self, consumer: QueueConsumer) -> None:
        """Compare our leases with the server's, because it restarted or lost data.

        No turn starts meanwhile: its leases would be on the server before they are here.
        """
        try:
            while consumer.in_flight:  # noqa: ASYNC110  # a turn has no event for its end, and this is rare
                await asyncio.sleep(TURN_CHECK_EVERY_S)
            released, lost, rewound = await self._app._flows.arun(consumer.leases.reconcile)
        except WindlassError as error:
            text = "Cannot compare the leases of queue %s with the server's, trying again with the next turn: %s"
            log.warning(text, consumer.queue, error)
            return
        finally:
            consumer.leases.reconciling = False
            self._notify()
        if released or lost or rewound:
            log.error(
                "Queue %s: the server has lost data (it was purged, flushed or restored, or a replica behind the "
                "primary took over). Jobs may be lost or run again. Leases released, because their jobs do not run "
                "here: %d; running jobs stopped, because their leases are gone: %d",
                consumer.queue,
                released,
                len(lost),
            )
        for fence in lost:
            self._stop_attempt(consumer.queue, fence)

    async def _empty_outbox(self, consumer: QueueConsumer) -> None:
        try:
            await self._app._flows.arun(lambda session: empty_outbox(session, consumer.layout, self._app.layout))
        except WindlassError as error:
            text = "Cannot forward the outbox of queue %s, trying again in %g s: %s"
            log.warning(text, consumer.queue, OUTBOX_RETRY_S, error)
            await asyncio.sleep(OUTBOX_RETRY_S)
        finally:
            consumer.forwarding = False

    def _warn_once(self, about: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("%s", about)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
