"""The verbs of schedules, and the tick: how any worker turns what is due into jobs, and no two of them the same.

A schedule lies in the server beside the queue that it feeds. Nobody is in charge of it. A worker reads what is due,
computes the jobs, and fires them in one step that also sets the next tick; that step does nothing when another
worker was faster or the schedule was changed meanwhile. A worker that dies in between has done nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, Unpack, cast

from msgspec import Struct, structs

from windlass.errors import InvalidOption, KeyConflict, ServerBusy, UnsupportedByLayout
from windlass.ids import random_id
from windlass.job import Change, NewJob, Receipt, Status
from windlass.layout import Layout, ScheduleBook
from windlass.limits import MAX_PAYLOAD, check_name
from windlass.queue import Runners
from windlass.schedule import (
    Plan,
    Schedule,
    ScheduleRecord,
    StoredSchedule,
    TimingOptions,
    Unreadable,
    Verdict,
    due_ticks,
    new_schedule,
    next_after,
    record_of,
    same_but_pause,
    write_schedule,
)
from windlass.task import TaskCall
from windlass.transport.session import Session
from windlass.transport.wire import Flow

T = TypeVar("T")
FlowOf = Callable[[Session], Flow[T]]
Work = TaskCall | tuple[str, bytes]
Records = list[ScheduleRecord]

STEP = 200  # jobs that one step may enqueue: keeps the script at a few milliseconds
ROUNDS = 50  # after which a tick leaves the rest to the next
TRIES = 20  # to change a schedule that others change at the same time
NAMES_AT_ONCE = 100


class TickReport(Struct, frozen=True):
    """What a tick did, and in how many milliseconds the next one comes (`None`: nothing is scheduled).

    `unreadable` names schedules that are due but cannot be read here: of another version, or in an unknown zone.
    """

    enqueued: int = 0
    dropped: int = 0
    next_in: int | None = None
    unreadable: tuple[str, ...] = ()


class Schedules:
    """The schedules of an app's queues. Every blocking verb `x` has an awaitable twin `ax`."""

    def __init__(self, layout_of: Callable[[str], Layout], runners: Runners, *, max_payload: int = MAX_PAYLOAD) -> None:
        self._layout_of = layout_of
        self._runners = runners
        self._max_payload = max_payload

    def add(self, name: str, call: Work, **timing: Unpack[TimingOptions]) -> ScheduleRecord:
        """Add a schedule, or replace the one of this name: `task.call(…)`, or a queue and data, at every tick.

        `cron="0 9 * * MON-FRI"` with `zone="Europe/Berlin"`, or `every="5m"` with `anchor=…`. `jitter` spreads jobs;
        `catch_up` ("none", "one", "all") says what to do about ticks that nobody was there for; `overlap` ("skip",
        "wait", "allow") says what to do while the job of the tick before is still there.

        When the timing stays the same the next tick does too. A pause is kept. One that is declared in code is refused.
        """
        return self._runners.run(self._add(name, call, timing))

    async def aadd(self, name: str, call: Work, **timing: Unpack[TimingOptions]) -> ScheduleRecord:
        """Awaitable `add`."""
        return await self._runners.arun(self._add(name, call, timing))

    def pause(self, name: str, queue: str) -> bool:
        """No more ticks until it is resumed; false if it was paused already, or is not there."""
        return self._runners.run(self._pause(name, queue, True))

    async def apause(self, name: str, queue: str) -> bool:
        """Awaitable `pause`."""
        return await self._runners.arun(self._pause(name, queue, True))

    def resume(self, name: str, queue: str) -> bool:
        """Go on with the next tick from now; those of the pause are left out. False if it was not paused."""
        return self._runners.run(self._pause(name, queue, False))

    async def aresume(self, name: str, queue: str) -> bool:
        """Awaitable `resume`."""
        return await self._runners.arun(self._pause(name, queue, False))

    def run_now(self, name: str, queue: str) -> Receipt | None:
        """Enqueue its job now, paused or not; the next tick stays. None if there is no such schedule.

        The receipt says `kept` or `updated` when, by its `overlap`, the job that is there already is enough.
        """
        return self._runners.run(self._run_now(name, queue))

    async def arun_now(self, name: str, queue: str) -> Receipt | None:
        """Awaitable `run_now`."""
        return await self._runners.arun(self._run_now(name, queue))

    def delete(self, name: str, queue: str) -> bool:
        """Take it away; jobs that it has enqueued stay. One that is declared in code comes back with its worker."""
        return self._runners.run(self._delete(name, queue))

    async def adelete(self, name: str, queue: str) -> bool:
        """Awaitable `delete`."""
        return await self._runners.arun(self._delete(name, queue))

    def get(self, name: str, queue: str) -> ScheduleRecord | None:
        """Everything about one schedule."""
        return self._runners.run(self._get(name, queue))

    async def aget(self, name: str, queue: str) -> ScheduleRecord | None:
        """Awaitable `get`."""
        return await self._runners.arun(self._get(name, queue))

    def list(self, queue: str) -> Records:
        """All schedules that feed a queue, by name."""
        return self._runners.run(self._list(queue))

    async def alist(self, queue: str) -> Records:
        """Awaitable `list`."""
        return await self._runners.arun(self._list(queue))

    # -- the flows -------------------------------------------------------------------------------

    def _add(self, name: str, call: Work, timing: TimingOptions) -> FlowOf[ScheduleRecord]:
        new = schedule_of(name, call, max_payload=self._max_payload, **timing)
        layout = self._layout(new.queue)

        def write(present: Schedule | None) -> Schedule:
            if present is not None and present.declared:
                raise InvalidOption(
                    f"schedule {name!r} of queue {new.queue!r} is declared in code: change it there, or take another "
                    "name. If it is no longer in any code, delete it first"
                )
            return structs.replace(new, paused=present is not None and present.paused)

        def flow(session: Session) -> Flow[ScheduleRecord]:
            yield from _rewrite(layout, name, write)(session)
            found = yield from session.perform(_book(layout).named([name]))
            # Should another have deleted it in this moment, it was there all the same.
            rows = found.rows or (StoredSchedule(name, write_schedule(new)),)
            return record_of(layout.queue, rows[0])

        return flow

    def _pause(self, name: str, queue: str, paused: bool) -> FlowOf[bool]:
        check_name(name, "schedule")

        def write(present: Schedule | None) -> Schedule | None:
            if present is None or present.paused == paused:
                return None
            return structs.replace(present, paused=paused)

        return _rewrite(self._layout(queue), name, write)

    def _run_now(self, name: str, queue: str) -> FlowOf[Receipt | None]:
        check_name(name, "schedule")
        layout = self._layout(queue)

        def flow(session: Session) -> Flow[Receipt | None]:
            found = yield from session.perform(_book(layout).named([name]))
            if not found.rows:
                return None
            schedule = _legible(layout.queue, found.rows[0])
            id = f"{name}@now-{random_id()}" if schedule.overlap == "allow" else name
            job = NewJob(id, schedule.data, _change(schedule, None))
            (status,) = yield from session.perform(layout.enqueue([job]))
            return Receipt(id, cast(Status, status))

        return flow

    def _delete(self, name: str, queue: str) -> FlowOf[bool]:
        check_name(name, "schedule")
        book = _book(self._layout(queue))
        return lambda session: session.perform(book.delete(name))

    def _get(self, name: str, queue: str) -> FlowOf[ScheduleRecord | None]:
        check_name(name, "schedule")
        layout = self._layout(queue)

        def flow(session: Session) -> Flow[ScheduleRecord | None]:
            found = yield from session.perform(_book(layout).named([name]))
            return record_of(layout.queue, found.rows[0]) if found.rows else None

        return flow

    def _list(self, queue: str) -> FlowOf[Records]:
        layout = self._layout(queue)

        def flow(session: Session) -> Flow[Records]:
            rows: dict[str, StoredSchedule] = {}
            page = yield from session.perform(_book(layout).page(None))
            rows |= {row.name: row for row in page.rows}
            while page.cursor is not None:
                page = yield from session.perform(_book(layout).page(page.cursor))
                rows |= {row.name: row for row in page.rows}
            return [record_of(layout.queue, rows[name]) for name in sorted(rows)]

        return flow

    def _layout(self, queue: str) -> Layout:
        layout = self._layout_of(check_name(queue))
        _book(layout)
        return layout


def schedule_of(
    name: str,
    call: Work,
    *,
    declared: bool = False,
    max_payload: int = MAX_PAYLOAD,
    **timing: Unpack[TimingOptions],
) -> Schedule:
    """A schedule for a task's call, or for a queue and data; checked, and not sent anywhere."""
    if isinstance(call, TaskCall):
        queue, data, options = call.queue, call.data, call.options
    elif isinstance(call, tuple) and len(call) == 2:
        (queue, data), options = call, {}
    else:
        raise InvalidOption(f"a schedule needs task.call(…) or a queue and data, like ('emails', b'…'), not {call!r}")
    return new_schedule(name, queue, data, options, declared=declared, max_payload=max_payload, **timing)


def declare(layout: Layout, schedules: Iterable[Schedule]) -> FlowOf[tuple[str, ...]]:
    """Put the schedules that code declares into the server. What is there already as it should be is not touched.

    A changed timing takes effect, otherwise the next tick stays; so does a pause. Returns the names of those that could
    not be declared because the server has something unreadable under them.
    """
    ours = {each.name: structs.replace(each, declared=True) for each in schedules if each.queue == layout.queue}
    book = _book(layout)

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
                yield from _rewrite(layout, name, _as_declared(wanted))(session)
        return tuple(unreadable)

    return flow


def _stands(row: StoredSchedule, present: Schedule, wanted: Schedule) -> bool:
    return same_but_pause(present, wanted) and (row.next_tick is not None or present.paused) and not row.stale


def _as_declared(wanted: Schedule) -> Callable[[Schedule | None], Schedule]:
    return lambda present: structs.replace(wanted, paused=present is not None and present.paused)


def _rewrite(layout: Layout, name: str, write: Callable[[Schedule | None], Schedule | None]) -> FlowOf[bool]:
    """Read a schedule and write what `write` makes of it, again if it was changed in between; false if that is nothing.

    The first tick counts from the server's time. The next tick that is known stays while the timing does.
    """
    book = _book(layout)

    def flow(session: Session) -> Flow[bool]:
        for _ in range(TRIES):
            found = yield from session.perform(book.named([name]))
            row = found.rows[0] if found.rows else None
            present = _legible(layout.queue, row) if row else None
            new = write(present)
            if new is None:
                return False
            steady = present is not None and not present.paused and present.timing == new.timing
            done = yield from session.perform(
                book.put(
                    name,
                    row.stored if row else None,
                    write_schedule(new),
                    None if new.paused else next_after(new.timing, found.now),
                    keep_tick=steady,
                )
            )
            if done:
                return True
        raise ServerBusy(
            f"schedule {name!r} of queue {layout.queue!r} is being changed by others all the time: try again"
        )

    return flow


def _legible(queue: str, row: StoredSchedule) -> Schedule:
    schedule = row.read(queue)
    if isinstance(schedule, Unreadable):
        raise KeyConflict(f"schedule {row.name!r} of queue {queue!r} cannot be read ({schedule.why}): delete it first")
    return schedule


def _book(layout: Layout) -> ScheduleBook:
    if layout.schedules is None:
        raise UnsupportedByLayout(f"queue {layout.queue!r} has the layout {layout.name!r}, which has no schedules")
    return layout.schedules


# -- the tick --------------------------------------------------------------------------------------


def tick(layout: Layout, declared: Mapping[str, Schedule]) -> FlowOf[TickReport]:
    """Fire what is due on one queue: schedules that were added, and of those that code declares the `declared` ones.

    Any number of workers may do this at the same time. One read when nothing is due; one more step for each
    schedule that is.
    """
    book = _book(layout)
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
                [(schedule.job_id(tick), _change(schedule, tick)) for tick in ticks],
                schedule.data,
                last_tick=plan.fire[-1] if plan.fire else None,
                missed=plan.missed,
                dropped=len(plan.fire) - len(ticks),
            )
        )
        if fired.verdict is Verdict.EARLY:  # the clock was put back this moment: look again in a while
            self._ahead.append(self._now + 1000)
        elif fired.verdict is Verdict.FIRED:
            self._fired = True
            self._ahead.append(plan.next)
            self.enqueued += fired.added
            self.dropped += fired.dropped
            self.unfinished |= plan.next <= self._now
        else:  # another was faster, or changed it: what it is now is not known here
            self.unfinished = True


def _change(schedule: Schedule, tick: int | None) -> Change:
    """What is asked of a tick's job. One that is there already stays as it is; with `wait`, another follows it."""
    run_at = None if tick is None else schedule.run_at(tick)
    plain = Change(
        when=None if run_at is None else ("at", run_at),
        keep=schedule.overlap != "wait",
        **structs.asdict(schedule.job),
    )
    if schedule.overlap != "wait":
        return plain
    return structs.replace(
        plain,
        update_data=False,
        update_run_at="never",
        update_priority=False,
        update_max_failures=False,
        update_max_stalls=False,
        update_min_backoff=False,
        update_max_backoff=False,
        reset_counts=False,
    )
