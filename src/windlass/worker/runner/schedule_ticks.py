"""The tick of schedules: any worker enqueues the jobs of due schedules, and each job is enqueued once.

A schedule is stored beside the queue that it feeds, and no worker owns it. A worker reads the due schedules, computes
their jobs, and fires them in one script call that also sets the next tick. The call does nothing if another worker was
faster or the schedule has changed. A worker that dies before the call has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from windlass.schedules import FlowOf, job_change, rewrite, schedule_book
from windlass.storage.port import Layout, ScheduleBook
from windlass.transport.io_steps import Flow
from windlass.transport.session import Session
from windlass.values.schedule import (
    DueTicks,
    FireResult,
    Schedule,
    StoredSchedule,
    Unreadable,
    due_ticks,
    same_but_pause,
)

MAX_JOBS_PER_STEP = 200  # keeps the script at a few milliseconds
MAX_ROUNDS = 50  # per tick: a long backlog must not keep the worker from its other schedules
MAX_NAMES_PER_READ = 100  # keeps the script of one read short


class TickReport(Struct, frozen=True):
    """What a tick did, and in how many milliseconds the next one is due (None: no schedule).

    `unreadable` names due schedules that this version cannot read: a newer format, or an unknown time zone.
    """

    enqueued: int = 0
    dropped: int = 0
    next_in: int | None = None
    unreadable: tuple[str, ...] = ()


def declare(layout: Layout, schedules: Iterable[Schedule]) -> FlowOf[tuple[str, ...]]:
    """Store the schedules that code declares, except those that are stored already without a change.

    A changed timing moves the next tick; any other change keeps it. A pause stays. Returns the names that could not be
    declared because the server holds an unreadable schedule under them.
    """
    declared = {each.name: structs.replace(each, declared=True) for each in schedules if each.queue == layout.queue}
    book = schedule_book(layout)

    def flow(session: Session) -> Flow[tuple[str, ...]]:
        names = list(declared)
        rows: dict[str, StoredSchedule] = {}
        for start in range(0, len(names), MAX_NAMES_PER_READ):
            found = yield from session.perform(book.named(names[start : start + MAX_NAMES_PER_READ]))
            rows |= {row.name: row for row in found.rows}
        unreadable = []
        for name, wanted in declared.items():
            row = rows.get(name)
            present = row.read(layout.queue) if row else None
            if isinstance(present, Unreadable):
                unreadable.append(name)
            elif not (row and present and _is_current(row, present, wanted)):
                yield from rewrite(layout, name, _as_declared(wanted))(session)
        return tuple(unreadable)

    return flow


def _is_current(row: StoredSchedule, present: Schedule, wanted: Schedule) -> bool:
    return same_but_pause(present, wanted) and (row.next_tick is not None or present.paused) and not row.stale


def _as_declared(wanted: Schedule) -> Callable[[Schedule | None], Schedule]:
    return lambda present: structs.replace(wanted, paused=present is not None and present.paused)


def tick(layout: Layout, declared: Mapping[str, Schedule]) -> FlowOf[TickReport]:
    """Fire the due schedules of one queue: those added at run time, and those that code declares (`declared`).

    Any number of workers may do this at the same time. It costs one read, and one more call for each due schedule.
    """
    book = schedule_book(layout)
    names = [name for name, schedule in declared.items() if schedule.queue == layout.queue]

    def flow(session: Session) -> Flow[TickReport]:
        enqueued = dropped = 0
        for _ in range(MAX_ROUNDS):
            done = _Round(book, layout.queue, names)
            yield from done.run(session)
            enqueued, dropped = enqueued + done.enqueued, dropped + done.dropped
            if not done.unfinished:
                break
        return TickReport(enqueued, dropped, done.next_in, tuple(done.unreadable))

    return flow


class _Round:
    """One pass over the due schedules of a queue."""

    def __init__(self, book: ScheduleBook, queue: str, declared: Sequence[str]) -> None:
        self._book = book
        self._queue = queue
        self._declared = declared
        self._now = 0
        self._fired = False
        self._ahead: list[int] = []
        self.enqueued = 0
        self.dropped = 0
        self.unfinished = False
        self.unreadable: list[str] = []

    @property
    def next_in(self) -> int | None:
        """Milliseconds until the next schedule is due."""
        if self.unfinished:
            return 0
        return max(0, min(self._ahead) - self._now) if self._ahead else None

    def run(self, session: Session) -> Flow[None]:
        cursor: str | None = None
        while True:
            found = yield from session.perform(self._book.due(self._declared, cursor))
            self._now = found.now
            for row in found.rows:
                schedule = row.read(self._queue)
                if isinstance(schedule, Unreadable) or row.next_tick is None:
                    self.unreadable.append(row.name)
                else:
                    plan = due_ticks(schedule.timing, row.next_tick, found.now, schedule.catch_up, MAX_JOBS_PER_STEP)
                    yield from self._fire(session, row, schedule, plan)
            # Fired schedules leave the earlier pages, so later ones move up and this pass misses them.
            self.unfinished |= cursor is not None and self._fired
            cursor = found.cursor
            if cursor is None:
                break
        if found.next_tick is not None:
            self._ahead.append(found.next_tick)

    def _fire(self, session: Session, row: StoredSchedule, schedule: Schedule, plan: DueTicks) -> Flow[None]:
        # Without overlap all ticks give the same job id, so only the first is enqueued.
        ticks = plan.fire if schedule.overlap == "allow" else plan.fire[:1]
        fired = yield from session.perform(
            self._book.fire(
                row,
                self._now,
                plan.next,
                [(schedule.job_id(tick), job_change(schedule, tick)) for tick in ticks],
                schedule.data,
                last_tick=plan.fire[-1] if plan.fire else None,
                missed=plan.missed,
                dropped=len(plan.fire) - len(ticks),
            )
        )
        if fired.result is FireResult.EARLY:  # the server's clock was set back just now: try again in a second
            self._ahead.append(self._now + 1000)
        elif fired.result is FireResult.FIRED:
            self._fired = True
            self._ahead.append(plan.next)
            self.enqueued += fired.added
            self.dropped += fired.dropped
            self.unfinished |= plan.next <= self._now
        else:  # another worker fired or changed the schedule: read it again
            self.unfinished = True
