"""`app.schedules`: add, list, pause and delete schedules. `worker/runner/ticker.py` fires them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Unpack, cast

from msgspec import structs

from windlass.errors import InvalidOption, KeyConflict, ServerBusy, UnsupportedByLayout
from windlass.queue import FlowRunner
from windlass.storage.port import Layout, ScheduleBook
from windlass.tasks.call import TaskCall
from windlass.transport.session import Session
from windlass.transport.wire import Flow
from windlass.values.ids import random_id
from windlass.values.job import Change, NewJob, Receipt, Status
from windlass.values.schedule import (
    Schedule,
    ScheduleRecord,
    StoredSchedule,
    TimingOptions,
    Unreadable,
    new_schedule,
    next_after,
    record_of,
    write_schedule,
)
from windlass.values.validation import MAX_PAYLOAD, check_name

T = TypeVar("T")
FlowOf = Callable[[Session], Flow[T]]
Work = TaskCall | tuple[str, bytes]
Records = list[ScheduleRecord]

TRIES = 20  # to change a schedule that others change at the same time


class Schedules:
    """The schedules of an app's queues. Every blocking verb `x` has an awaitable twin `ax`."""

    def __init__(
        self, layout_of: Callable[[str], Layout], flow_runner: FlowRunner, *, max_payload: int = MAX_PAYLOAD
    ) -> None:
        self._layout_of = layout_of
        self._flow_runner = flow_runner
        self._max_payload = max_payload

    def add(self, name: str, call: Work, **timing: Unpack[TimingOptions]) -> ScheduleRecord:
        """Add a schedule, or replace the one of this name: `task.call(…)`, or a queue and data, at every tick.

        `cron="0 9 * * MON-FRI"` with `zone="Europe/Berlin"`, or `every="5m"` with `anchor=…`. `jitter` spreads jobs;
        `catch_up` ("none", "one", "all") says what to do about ticks that nobody was there for; `overlap` ("skip",
        "wait", "allow") says what to do while the job of the tick before is still there.

        When the timing stays the same the next tick does too. A pause is kept. One that is declared in code is refused.
        """
        return self._flow_runner.run(self._add(name, call, timing))

    async def aadd(self, name: str, call: Work, **timing: Unpack[TimingOptions]) -> ScheduleRecord:
        """Awaitable `add`."""
        return await self._flow_runner.arun(self._add(name, call, timing))

    def pause(self, name: str, queue: str) -> bool:
        """No more ticks until it is resumed; false if it was paused already, or is not there."""
        return self._flow_runner.run(self._pause(name, queue, True))

    async def apause(self, name: str, queue: str) -> bool:
        """Awaitable `pause`."""
        return await self._flow_runner.arun(self._pause(name, queue, True))

    def resume(self, name: str, queue: str) -> bool:
        """Go on with the next tick from now; those of the pause are left out. False if it was not paused."""
        return self._flow_runner.run(self._pause(name, queue, False))

    async def aresume(self, name: str, queue: str) -> bool:
        """Awaitable `resume`."""
        return await self._flow_runner.arun(self._pause(name, queue, False))

    def run_now(self, name: str, queue: str) -> Receipt | None:
        """Enqueue its job now, paused or not; the next tick stays. None if there is no such schedule.

        The receipt says `kept` or `updated` when, by its `overlap`, the job that is there already is enough.
        """
        return self._flow_runner.run(self._run_now(name, queue))

    async def arun_now(self, name: str, queue: str) -> Receipt | None:
        """Awaitable `run_now`."""
        return await self._flow_runner.arun(self._run_now(name, queue))

    def delete(self, name: str, queue: str) -> bool:
        """Take it away; jobs that it has enqueued stay. One that is declared in code comes back with its worker."""
        return self._flow_runner.run(self._delete(name, queue))

    async def adelete(self, name: str, queue: str) -> bool:
        """Awaitable `delete`."""
        return await self._flow_runner.arun(self._delete(name, queue))

    def get(self, name: str, queue: str) -> ScheduleRecord | None:
        """Everything about one schedule."""
        return self._flow_runner.run(self._get(name, queue))

    async def aget(self, name: str, queue: str) -> ScheduleRecord | None:
        """Awaitable `get`."""
        return await self._flow_runner.arun(self._get(name, queue))

    def list(self, queue: str) -> Records:
        """All schedules that feed a queue, by name."""
        return self._flow_runner.run(self._list(queue))

    async def alist(self, queue: str) -> Records:
        """Awaitable `list`."""
        return await self._flow_runner.arun(self._list(queue))

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
            yield from rewrite(layout, name, write)(session)
            found = yield from session.perform(schedule_book(layout).named([name]))
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

        return rewrite(self._layout(queue), name, write)

    def _run_now(self, name: str, queue: str) -> FlowOf[Receipt | None]:
        check_name(name, "schedule")
        layout = self._layout(queue)

        def flow(session: Session) -> Flow[Receipt | None]:
            found = yield from session.perform(schedule_book(layout).named([name]))
            if not found.rows:
                return None
            schedule = _legible(layout.queue, found.rows[0])
            id = f"{name}@now-{random_id()}" if schedule.overlap == "allow" else name
            job = NewJob(id, schedule.data, job_change(schedule, None))
            (status,) = yield from session.perform(layout.enqueue([job]))
            return Receipt(id, cast(Status, status))

        return flow

    def _delete(self, name: str, queue: str) -> FlowOf[bool]:
        check_name(name, "schedule")
        book = schedule_book(self._layout(queue))
        return lambda session: session.perform(book.delete(name))

    def _get(self, name: str, queue: str) -> FlowOf[ScheduleRecord | None]:
        check_name(name, "schedule")
        layout = self._layout(queue)

        def flow(session: Session) -> Flow[ScheduleRecord | None]:
            found = yield from session.perform(schedule_book(layout).named([name]))
            return record_of(layout.queue, found.rows[0]) if found.rows else None

        return flow

    def _list(self, queue: str) -> FlowOf[Records]:
        layout = self._layout(queue)

        def flow(session: Session) -> Flow[Records]:
            rows: dict[str, StoredSchedule] = {}
            page = yield from session.perform(schedule_book(layout).page(None))
            rows |= {row.name: row for row in page.rows}
            while page.cursor is not None:
                page = yield from session.perform(schedule_book(layout).page(page.cursor))
                rows |= {row.name: row for row in page.rows}
            return [record_of(layout.queue, rows[name]) for name in sorted(rows)]

        return flow

    def _layout(self, queue: str) -> Layout:
        layout = self._layout_of(check_name(queue))
        schedule_book(layout)
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


def rewrite(layout: Layout, name: str, write: Callable[[Schedule | None], Schedule | None]) -> FlowOf[bool]:
    """Read a schedule and write what `write` makes of it, again if it was changed in between; false if that is nothing.

    The first tick counts from the server's time. The next tick that is known stays while the timing does.
    """
    book = schedule_book(layout)

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


def schedule_book(layout: Layout) -> ScheduleBook:
    if layout.schedules is None:
        raise UnsupportedByLayout(f"queue {layout.queue!r} has the layout {layout.name!r}, which has no schedules")
    return layout.schedules


def job_change(schedule: Schedule, tick: int | None) -> Change:
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
