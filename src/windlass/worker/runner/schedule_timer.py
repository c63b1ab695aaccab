"""When the schedules of one queue are due. The runner then fires them."""

from __future__ import annotations

from time import monotonic

from windlass.app import Windlass
from windlass.storage.port import Layout
from windlass.worker.runner.schedule_ticks import TickReport, declare, tick

IDLE_TICK_S = 1.0  # between ticks that find nothing due here: a schedule may be due for other workers only
MIN_TICK_S = 0.05  # between two ticks of one queue: a schedule that is always due must not take the whole loop


class ScheduleTimer:
    """The time of a queue's next tick, and the schedules that code declares for the queue."""

    def __init__(self, app: Windlass, layout: Layout) -> None:
        self.ticking = False
        self._app = app
        self._layout = layout
        self._declared = {name: each for name, each in app.declared_schedules.items() if each.queue == layout.queue}
        self._tick_at: float | None = None
        self._quiet_until = 0.0  # no tick before this: what is due may be a schedule of other workers

    def learn(self, tick_in_s: float | None) -> None:
        """Record what the server says about the next tick; None if the queue has no schedule."""
        self._tick_at = None if tick_in_s is None else max(monotonic() + tick_in_s, self._quiet_until)

    @property
    def next_at(self) -> float | None:
        """When the next tick is due; None if no schedule is, or a tick is under way."""
        return None if self.ticking else self._tick_at

    async def tick(self) -> TickReport:
        """Enqueue the jobs of due schedules, and learn when the next tick is."""
        self.ticking = True
        report = TickReport()
        try:
            report = await self._app._flows.arun(tick(self._layout, self._declared))
        finally:
            self.ticking = False
            # If nothing was due here, the server's next tick may belong to a schedule that no worker declares any more.
            wait = IDLE_TICK_S if report.next_in is None else report.next_in / 1000
            self._tick_at = monotonic() + max(MIN_TICK_S if report.enqueued or report.next_in else IDLE_TICK_S, wait)
            self._quiet_until = self._tick_at if not report.enqueued else 0.0
        return report

    async def declare(self, *, again: bool) -> tuple[str, ...]:
        """Store the schedules that code declares. Returns the names of those that could not be stored.

        `again` only restores missing schedules: while old and new code run side by side, the one that started last
        decides.
        """
        wanted = self._declared
        if again and wanted:
            stored = {record.name for record in await self._app.schedules.alist(self._layout.queue)}
            wanted = {name: schedule for name, schedule in wanted.items() if name not in stored}
        if not wanted:
            return ()
        unreadable = await self._app._flows.arun(declare(self._layout, wanted.values()))
        self._tick_at = monotonic()
        return unreadable
