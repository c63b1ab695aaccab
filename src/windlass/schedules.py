"""`app.schedules`: add, list, pause and delete schedules. Workers fire them (`worker/runner/schedule_ticks.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Unpack, cast

from msgspec import structs

from windlass.errors import InvalidOption, KeyConflict, ServerBusy
from windlass.storage.capabilities import unsupported
from windlass.storage.port import Capability, Layout, ScheduleBook
from windlass.tasks.call import TaskCall
from windlass.transport.io_steps import Flow
from windlass.transport.session import Session
from windlass.transport.subscription import FlowRunner
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

MAX_ATTEMPTS = 20  # to change a schedule while other programs change it; each of them succeeds in turn


class Schedules:
    """The schedules stored in the server, from `app.schedules`. Every blocking method `x` has an awaitable twin `ax`.

    A schedule belongs to a queue and has a name. At each of its times, a *tick*, a worker of that queue enqueues its
    job. Every method raises `UnsupportedByLayout` if the queue's layout has no schedules, and the connection errors of
    `Queue`.
    """

    def __init__(
        self, layout_of: Callable[[str], Layout], flow_runner: FlowRunner, *, max_payload: int = MAX_PAYLOAD
    ) -> None:
        self._layout_of = layout_of
        self._flow_runner = flow_runner
        self._max_payload = max_payload

    def add(self, name: str, call: Work, **timing: Unpack[TimingOptions]) -> ScheduleRecord:
        """Add a schedule, or replace the one with this name. `call` is `task.call(…)`, or `(queue, data)`.

        Options:
          cron      "0 9 * * MON-FRI", with `zone="Europe/Berlin"`; the zone is UTC by default.
          every     an interval, "5m", counted from `anchor`; by default from the beginning of 1970.
          jitter    delay each job by a random time up to this, so that jobs of many schedules spread out.
          catch_up  what to do about ticks missed while no worker ran: "one" (the default) enqueues one job for all of
                    them, "none" skips them, "all" enqueues each (with overlap="allow").
          overlap   what to do if the previous tick's job is still there: "skip" (the default) drops the tick, "wait"
                    enqueues a job behind a running one, "allow" gives each tick its own job.

        If the timing is unchanged, the next tick stays. A paused schedule stays paused. Raises `InvalidOption`, also
        for a schedule that is declared in code, and `ServerBusy` if other programs keep changing it.
        """
        return self._flow_runner.run(self._add(name, call, timing))

    async def aadd(self, name: str, call: Work, **timing: Unpack[TimingOptions]) -> ScheduleRecord:
        """Awaitable `add`."""
        return await self._flow_runner.arun(self._add(name, call, timing))

    def pause(self, queue: str, name: str) -> bool:
        """Pause a schedule: it enqueues nothing until `resume`. False if it was paused already or does not exist."""
        return self._flow_runner.run(self._pause(queue, name, True))

    async def apause(self, queue: str, name: str) -> bool:
        """Awaitable `pause`."""
        return await self._flow_runner.arun(self._pause(queue, name, True))

    def resume(self, queue: str, name: str) -> bool:
        """Resume a schedule at its next tick from now, without the ticks of the pause. False if it was not paused."""
        return self._flow_runner.run(self._pause(queue, name, False))

    async def aresume(self, queue: str, name: str) -> bool:
        """Awaitable `resume`."""
        return await self._flow_runner.arun(self._pause(queue, name, False))

    def run_now(self, queue: str, name: str) -> Receipt | None:
        """Enqueue the schedule's job now, even if it is paused; the next tick stays. `None` if it does not exist.

        The receipt's status is `kept` or `updated` if `overlap` allows no second job beside the one that is there.
        """
        return self._flow_runner.run(self._run_now(queue, name))

    async def arun_now(self, queue: str, name: str) -> Receipt | None:
        """Awaitable `run_now`."""
        return await self._flow_runner.arun(self._run_now(queue, name))

    def delete(self, queue: str, name: str) -> bool:
        """Delete a schedule; its jobs stay. A worker that declares it in code adds it again. False if there is none."""
        return self._flow_runner.run(self._delete(queue, name))

    async def adelete(self, queue: str, name: str) -> bool:
        """Awaitable `delete`."""
        return await self._flow_runner.arun(self._delete(queue, name))

    def get(self, queue: str, name: str) -> ScheduleRecord | None:
        """Return everything the server knows about one schedule, or `None`."""
        return self._flow_runner.run(self._get(queue, name))

    async def aget(self, queue: str, name: str) -> ScheduleRecord | None:
        """Awaitable `get`."""
        return await self._flow_runner.arun(self._get(queue, name))

    def list(self, queue: str) -> Records:
        """List the schedules of a queue, by name."""
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
                    f"schedule {name!r} of queue {new.queue!r} is declared in code: change it there, or use another "
                    "name. If no code declares it any more, delete it first"
                )
            return structs.replace(new, paused=present is not None and present.paused)

        def flow(session: Session) -> Flow[ScheduleRecord]:
            yield from rewrite(layout, name, write)(session)
            found = yield from session.perform(schedule_book(layout).named([name]))
            # Another program may have deleted it since; then return what was written.
            rows = found.rows or (StoredSchedule(name, write_schedule(new)),)
            return record_of(layout.queue, rows[0])

        return flow

    def _pause(self, queue: str, name: str, paused: bool) -> FlowOf[bool]:
        check_name(name, "schedule")

        def write(present: Schedule | None) -> Schedule | None:
            if present is None or present.paused == paused:
                return None
            return structs.replace(present, paused=paused)

        return rewrite(self._layout(queue), name, write)

    def _run_now(self, queue: str, name: str) -> FlowOf[Receipt | None]:
        check_name(name, "schedule")
        layout = self._layout(queue)

        def flow(session: Session) -> Flow[Receipt | None]:
            found = yield from session.perform(schedule_book(layout).named([name]))
            if not found.rows:
                return None
            schedule = _parse(layout.queue, found.rows[0])
            id = f"{name}@now-{random_id()}" if schedule.overlap == "allow" else name
            job = NewJob(id, schedule.data, job_change(schedule, None))
            ((status,), _) = yield from session.perform(layout.enqueue([job]))
            return Receipt(id, cast(Status, status))

        return flow

    def _delete(self, queue: str, name: str) -> FlowOf[bool]:
        check_name(name, "schedule")
        book = schedule_book(self._layout(queue))
        return lambda session: session.perform(book.delete(name))

    def _get(self, queue: str, name: str) -> FlowOf[ScheduleRecord | None]:
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
    """Build and check a schedule for a task call, or for a queue and data, without sending it."""
    if isinstance(call, TaskCall):
        queue, data, options = call.queue, call.data, call.options
    elif isinstance(call, tuple) and len(call) == 2:
        (queue, data), options = call, {}
    else:
        raise InvalidOption(f"a schedule needs task.call(…), or a queue and data like ('emails', b'…'), not {call!r}")
    return new_schedule(name, queue, data, options, declared=declared, max_payload=max_payload, **timing)


def rewrite(layout: Layout, name: str, write: Callable[[Schedule | None], Schedule | None]) -> FlowOf[bool]:
    """Replace a schedule with `write(present)`, and try again if another program changed it meanwhile.

    False if `write` returns `None`. A new schedule's first tick counts from the server's time. If the timing is
    unchanged, the next tick stays.
    """
    book = schedule_book(layout)

    def flow(session: Session) -> Flow[bool]:
        for _ in range(MAX_ATTEMPTS):
            found = yield from session.perform(book.named([name]))
            row = found.rows[0] if found.rows else None
            present = _parse(layout.queue, row) if row else None
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
            f"schedule {name!r} of queue {layout.queue!r} was not changed: other programs keep changing it. Try again"
        )

    return flow


def _parse(queue: str, row: StoredSchedule) -> Schedule:
    schedule = row.read(queue)
    if isinstance(schedule, Unreadable):
        raise KeyConflict(f"schedule {row.name!r} of queue {queue!r} cannot be read ({schedule.why}). Delete it first")
    return schedule


def schedule_book(layout: Layout) -> ScheduleBook:
    """The schedules of a queue. Raises `UnsupportedByLayout`."""
    if layout.schedules is None:
        raise unsupported(layout.name, layout.queue, "schedules", Capability.SCHEDULES)
    return layout.schedules


def job_change(schedule: Schedule, tick: int | None) -> Change:
    """The change that enqueues a tick's job. An existing job stays as it is; with "wait", a second one follows it."""
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
        replace_extras=False,
        keep_extras=True,
        update_run_at="never",
        update_priority=False,
        update_max_failures=False,
        update_max_stalls=False,
        update_min_backoff=False,
        update_max_backoff=False,
        reset_counts=False,
    )
