"""The tick of schedules: any worker turns what is due into jobs, and no two of them the same.

A schedule lies in the server beside the queue that it consumers, and no worker is in charge of it. A worker reads
what is
due, computes the jobs, and fires them in one step that also sets the next tick. That step does nothing when another
worker was faster or the schedule was changed meanwhile. A worker that dies in between has done nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from windlass.schedules import FlowOf, job_change, rewrite, schedule_book
from windlass.storage.port import Layout, ScheduleBook
from windlass.transport.session import Session
from windlass.transport.wire import Flow
from windlass.values.schedule import FireResult, Plan, Schedule, StoredSchedule, Unreadable, due_ticks, same_but_pause

STEP = 200  # jobs that one step may enqueue: keeps the script at a few milliseconds
ROUNDS = 50  # after which a tick leaves the rest to the next
NAMES_AT_ONCE = 100


class TickReport(Struct, frozen=True):
    """What a tick did, and in how many milliseconds the next one comes (`None`: nothing is scheduled).

    `unreadable` names schedules that are due but cannot be read here: of another version, or in an unknown zone.
    """

    enqueued: int = 0
    dropped: int = 0
    next_in: int | None = None
    unreadable: tuple[str, ...] = ()


def declare(layout: Layout, schedules: Iterable[Schedule]) -> FlowOf[tuple[str, ...]]:
    """Put the schedules that code declares into the server. What is there already as it should be is not touched.

    A changed timing takes effect, otherwise the next tick stays; so does a pause. Returns the names of those that could
    not be declared because the server has something unreadable under them.
    """
    ours = {each.name: structs.replace(each, declared=True) for each in schedules if each.queue == layout.queue}
    book = schedule_book(layout)

    def flow(session: Session) -> Flow[tuple[str, ...]]:
        names = list(ours)
        rows: dict[str, StoredSchedule] = {}
        for start in range(0, len(names), NAMES_AT_ONCE):
            found = yield from session.perform(book.named(names[start : start + NAMES_AT_ONCE]))
            rows |= {row.name: row for row in found.rows}
        unreadable = []
        for name, wanted in ours.items():
            row = rows.get(name)
            present = row.read(layout.queue) if row else None
            if isinstance(present, Unreadable):
                unreadable.append(name)
            elif not (row and present and _stands(row, present, wanted)):
                yield from rewrite(layout, name, _as_declared(wanted))(session)
        return tuple(unreadable)

    return flow


def _stands(row: StoredSchedule, present: Schedule, wanted: Schedule) -> bool:
    return same_but_pause(present, wanted) and (row.next_tick is not None or present.paused) and not row.stale


def _as_declared(wanted: Schedule) -> Callable[[Schedule | None], Schedule]:
    return lambda present: structs.replace(wanted, paused=present is not None and present.paused)


def tick(layout: Layout, declared: Mapping[str, Schedule]) -> FlowOf[TickReport]:
    """Fire what is due on one queue: schedules that were added, and of those that code declares the `declared` ones.

    Any number of workers may do this at the same time. One read when nothing is due; one more step for each
    schedule that is.
    """
    book = schedule_book(layout)
    names = [name for name, schedule in declared.items() if schedule.queue == layout.queue]

    def flow(session: Session) -> Flow[TickReport]:
        enqueued = dropped = 0
        for _ in range(ROUNDS):
            done = _Round(book, layout.queue, names)
            yield from done.run(session)
            enqueued, dropped = enqueued + done.enqueued, dropped + done.dropped
            if not done.unfinished:
                break
        return TickReport(enqueued, dropped, done.next_in, tuple(done.unreadable))

    return flow


class _Round:
    """All that is due on a queue, gone through once."""

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
        """Milliseconds until there is something to do."""
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
                    plan = due_ticks(schedule.timing, row.next_tick, found.now, schedule.catch_up, STEP)
                    yield from self._fire(session, row, schedule, plan)
            # What was fired left the pages before, so some that are due moved up and were passed over.
            self.unfinished |= cursor is not None and self._fired
            cursor = found.cursor
            if cursor is None:
                break
        if found.next_tick is not None:
            self._ahead.append(found.next_tick)

    def _fire(self, session: Session, row: StoredSchedule, schedule: Schedule, plan: Plan) -> Flow[None]:
        # Ticks whose jobs have one and the same id fall together in the first of them.
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
        if fired.result is FireResult.EARLY:  # the clock was put back this moment: look again in a while
            self._ahead.append(self._now + 1000)
        elif fired.result is FireResult.FIRED:
            self._fired = True
            self._ahead.append(plan.next)
            self.enqueued += fired.added
            self.dropped += fired.dropped
            self.unfinished |= plan.next <= self._now
        else:  # another was faster, or changed it: what it is now is not known here
            self.unfinished = True
