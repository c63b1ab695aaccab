"""`JobHandle`, a handle on one job: wait for its result, watch its events, read its record, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from types import NoneType
from typing import Any, Generic, Self, TypeVar, cast

import msgspec

from windlass.errors import JobExpired, JobFailed, ResultMissing, Undecodable
from windlass.storage.port import Layout
from windlass.tasks.codec import PLAIN, Codec
from windlass.transport.io_steps import Flow
from windlass.transport.job_watch import End, JobWatch
from windlass.transport.session import Session
from windlass.transport.subscription import FlowRunner
from windlass.values.durations import Duration
from windlass.values.events import Event
from windlass.values.job import Ending, JobRecord, Receipt, Sighting, State, Status, failure
from windlass.values.validation import check_id

R = TypeVar("R")
T = TypeVar("T")

_KEEP = 'To keep results, declare the task with keep_result="1h"'


class JobHandle(Generic[R]):
    """A handle on one job, from `task.enqueue(…)` or `app.job(queue, id)`.

    `id` and `queue` name the job. `status` says what its enqueue did ("added", "updated", "kept", "blocked"), and
    `durability` the level it reached; both are `None` if this program did not enqueue it. Every blocking method `x` has
    an awaitable twin `ax`.
    """

    __slots__ = (
        "__weakref__",
        "_codec",
        "_flow_runner",
        "_keeps",
        "_layout",
        "_returns",
        "_sighting",
        "durability",
        "id",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        layout: Layout,
        flow_runner: FlowRunner,
        id: str,
        status: Status | None = None,
        durability: str | None = None,
        *,
        returns: Any = Any,
        keeps: bool | None = None,
        sighting: Sighting | None = None,
        codec: Codec = PLAIN,
    ) -> None:
        """`keeps` says whether the job's result is kept; `None` if unknown. `sighting`: the server had the job then."""
        self.id = id if status is not None else check_id(id)  # with a status the id comes from the server
        self.status = status
        self.durability = durability
        self._layout = layout
        self._flow_runner = flow_runner
        self._returns = returns
        self._keeps = keeps
        self._sighting = sighting
        self._codec = codec

    @classmethod
    def from_receipt(
        cls,
        layout: Layout,
        flow_runner: FlowRunner,
        receipt: Receipt,
        returns: Any,
        keeps: bool | None,
        codec: Codec = PLAIN,
    ) -> Self:
        """Make a handle on a job that this program has enqueued."""
        return cls(
            layout,
            flow_runner,
            receipt.id,
            receipt.status,
            receipt.durability,
            returns=returns,
            keeps=keeps,
            sighting=receipt.sighting,
            codec=codec,
        )

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._layout.queue

    def __repr__(self) -> str:
        return f"<JobHandle {self.id!r} of queue {self.queue!r}{f' ({self.status})' if self.status else ''}>"

    # -- the result ------------------------------------------------------------------------------

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job to end, and return the value that its function returned.

        Waits up to `timeout` (`10`, "5m"), without one for as long as the job takes. The value is kept only if the task
        sets `keep_result`; a task that is annotated `-> None` needs none kept. Raises at once `ResultMissing` if the
        value is not kept; else, when the job has ended, `JobFailed` if it failed for good (`CrashError` if its process
        died too often, `StallError` if its lease was lost too often), `JobExpired` if it expired before it could start,
        `ResultMissing` if it was cancelled or nothing tells how it ended, `TimeoutError` if it has not ended in time,
        `Undecodable` if the value does not fit the declared type.
        """
        return self._flow_runner.run(self._result(timeout))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Awaitable `result`."""
        return await self._flow_runner.arun(self._result(timeout))

    def _result(self, timeout: Duration | None) -> Callable[[Session], Flow[R]]:
        if self._keeps is False and not self._returns_nothing:
            raise ResultMissing(
                f"job {self.id!r} of queue {self.queue!r}: its task keeps no results, so there is no value. "
                f"{_KEEP}, or call ending(): it waits for the end of any job"
            )
        wait = self._wait(timeout)

        def flow(session: Session) -> Flow[R]:
            return self._read((yield from wait(session)))

        return flow

    @property
    def _returns_nothing(self) -> bool:
        return self._returns in (None, NoneType)

    def _read(self, end: End) -> R:
        """Return the value, or raise why there is none."""
        result, ending = end.result, end.ending
        if ending is Ending.COMPLETED and result is not None and result.succeeded:
            return self._decode(result.data)
        if ending is Ending.COMPLETED and self._returns_nothing:
            return cast(R, None)
        if ending in (Ending.DEAD, Ending.BROKEN):
            raise self._failure(end)
        if ending is Ending.EXPIRED:
            raise JobExpired(
                f"job {self.id!r} of queue {self.queue!r} expired before it could start, so it did not run"
            )
        raise self._missing(ending)

    def _failure(self, end: End) -> JobFailed:
        event, record, result = end.event, end.record, end.result
        if event is not None and event.reason is not None:
            return failure(self.queue, self.id, event.reason, event.message or "")
        if record is not None:
            return record.error()
        if result is not None and not result.succeeded:
            return failure(self.queue, self.id, result.reason, result.data.decode(errors="replace"))
        return JobFailed(self.queue, self.id)

    def _missing(self, ending: Ending) -> ResultMissing:
        return ResultMissing(f"job {self.id!r} of queue {self.queue!r} {self._why_missing(ending)}")

    def _why_missing(self, ending: Ending) -> str:
        if ending is Ending.CANCELLED:
            return "was cancelled, so there is no result"
        if ending is Ending.COMPLETED:
            return f"has completed, but its result {'has expired' if self._keeps else f'was not kept. {_KEEP}'}"
        told = "is gone, and nothing tells how it ended"
        if self._sighting is None:
            return f"{told}, or that it ever existed. {_KEEP}"
        return f"{told}: it was purged, the server lost it, or it ended a day ago.{'' if self._keeps else f' {_KEEP}'}"

    def _decode(self, data: bytes) -> R:
        try:
            value: R = self._codec.decoder(self._returns).decode(data)
        except msgspec.DecodeError as error:
            raise Undecodable(
                f"the result of job {self.id!r} of queue {self.queue!r} cannot be decoded: {error}"
            ) from None
        return value

    # -- its state and its end -------------------------------------------------------------------

    def ending(self, timeout: Duration | None = None) -> Ending:
        """Wait for the job to end, and return how it ended: `Ending.COMPLETED`, `DEAD`, `CANCELLED`, …

        It needs no kept result. Waits up to `timeout`, as `result` does. Raises `TimeoutError` if the job has not ended
        in time, `ResultMissing` if nothing tells how it ended.
        """
        return self._flow_runner.run(self._ending(timeout))

    async def aending(self, timeout: Duration | None = None) -> Ending:
        """Awaitable `ending`."""
        return await self._flow_runner.arun(self._ending(timeout))

    def _ending(self, timeout: Duration | None) -> Callable[[Session], Flow[Ending]]:
        wait = self._wait(timeout)

        def flow(session: Session) -> Flow[Ending]:
            ending = (yield from wait(session)).ending
            if ending is Ending.UNKNOWN:
                raise self._missing(ending)
            return ending

        return flow

    def _wait(self, timeout: Duration | None) -> Callable[[Session], Flow[End]]:
        watch = self._watch(timeout)

        def flow(session: Session) -> Flow[End]:
            try:
                return (yield from watch.until_ended(session))
            finally:
                self._end_watch(watch)

        return flow

    def state(self) -> State | Ending:
        """Return the job's state; once it has ended, how: `Ending.UNKNOWN` if nothing tells it."""
        return self._flow_runner.run(self._watch(None).read_state)

    async def astate(self) -> State | Ending:
        """Awaitable `state`."""
        return await self._flow_runner.arun(self._watch(None).read_state)

    def _watch(self, timeout: Duration | None) -> JobWatch:
        was_blocked = self.status is Status.BLOCKED
        return JobWatch(self._layout, self.id, timeout, was_blocked=was_blocked, sighting=self._sighting)

    def _end_watch(self, watch: JobWatch) -> None:
        self._sighting = watch.sighting
        watch.close()

    # -- events ----------------------------------------------------------------------------------

    def events(self, timeout: Duration | None = None) -> Iterator[Event]:
        """Iterate over the job's events: first its present state, then each change, until its last event.

        Raises `TimeoutError` if the last event has not come within `timeout`, counted from this call.
        """
        return self._events(self._watch(timeout))

    def aevents(self, timeout: Duration | None = None) -> AsyncIterator[Event]:
        """`events` for `async for`."""
        return self._aevents(self._watch(timeout))

    def _events(self, watch: JobWatch) -> Iterator[Event]:
        try:
            while not watch.ended:
                yield self._flow_runner.run(watch.next_event)
        finally:
            self._end_watch(watch)

    async def _aevents(self, watch: JobWatch) -> AsyncIterator[Event]:
        try:
            while not watch.ended:
                yield await self._flow_runner.arun(watch.next_event)
        finally:
            self._end_watch(watch)

    # -- inspect and cancel ----------------------------------------------------------------------

    def record(self) -> JobRecord | None:
        """Return everything the server knows about the job, or `None` if it is gone."""
        return self._flow_runner.run(lambda session: session.perform(self._layout.get(self.id)))

    async def arecord(self) -> JobRecord | None:
        """Awaitable `record`."""
        return await self._flow_runner.arun(lambda session: session.perform(self._layout.get(self.id)))

    def cancel(self, *, running: bool = False) -> bool:
        """Cancel the job if it waits; with `running` also if it runs (see `Queue.cancel`). True if it was there."""
        return self._flow_runner.run(self._cancel(running))

    async def acancel(self, *, running: bool = False) -> bool:
        """Awaitable `cancel`."""
        return await self._flow_runner.arun(self._cancel(running))

    def _cancel(self, running: bool) -> Callable[[Session], Flow[bool]]:
        def flow(session: Session) -> Flow[bool]:
            (found,) = yield from session.perform(self._layout.cancel([self.id], running=running))
            return found

        return flow
