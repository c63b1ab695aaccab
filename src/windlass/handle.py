"""`JobHandle`, a handle on one job: wait for its result, watch its events, read its record, cancel it.

A wait subscribes, and checks the state every 5 s as a fallback. On the server it leaves one entry in `watched`, which
expires within a minute.

The order matters: the wait subscribes to the job's events, asks the server to publish them (`watch`), reads the job's
state, and only then sleeps. So it misses no event, unless a message is lost with its connection.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from enum import StrEnum
from time import monotonic
from types import NoneType
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from windlass.errors import (
    AccessDenied,
    JobExpired,
    JobFailed,
    NotApplied,
    OutcomeUnknown,
    ResultMissing,
    Undecodable,
)
from windlass.storage.port import Call, Layout
from windlass.tasks.codec import PLAIN, Codec
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.io_steps import Flow, Sleep
from windlass.transport.listeners import Listener
from windlass.transport.session import Session
from windlass.transport.subscription import FlowRunner
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import JobRecord, Result, State, Status, failure
from windlass.values.validation import check_id

R = TypeVar("R")
T = TypeVar("T")

WATCH_FOR_S = 60.0  # how long the server publishes a job's events after `watch`
REWATCH_AFTER_S = 30.0  # half of it: one lost `watch` call does no harm
RECHECK_AFTER_S = 5.0  # a lost message delays a wait by no more
RECONNECT_AFTER_S = 1.0  # between two tries to subscribe
FINAL_EVENT_TIMEOUT_S = 0.1  # a job has just gone: the message with its end arrives within a round trip


class EventKind(StrEnum):
    """The kind of an event. `ready` and `scheduled` are the state at the start; `gone` means that no trace is left."""

    READY = "ready"
    SCHEDULED = "scheduled"
    STARTED = "started"
    PROGRESS = "progress"
    RELEASED = "released"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    CRASHED = "crashed"
    STALLED = "stalled"
    COMPLETED = "completed"
    DEAD = "dead"
    BROKEN = "broken"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    GONE = "gone"


_FAILURES = (EventKind.DEAD, EventKind.BROKEN)
_LAST = (EventKind.COMPLETED, *_FAILURES, EventKind.CANCELLED, EventKind.EXPIRED, EventKind.GONE)
_RUNNING = (EventKind.STARTED, EventKind.PROGRESS)
_FOUND = {
    State.READY: EventKind.READY,
    State.SCHEDULED: EventKind.SCHEDULED,
    State.RUNNING: EventKind.STARTED,
    State.DEAD: EventKind.DEAD,
    State.BROKEN: EventKind.BROKEN,
}


class Event(Struct, frozen=True):
    """An event of a job. `progress` is 0 to 1 where it is known.

    For a job whose failure goes to a failure handler, `reason` ("crashed" or "stalled") and `message` say why it died:
    such a job leaves no dead record.
    """

    kind: EventKind
    progress: float | None = None
    reason: str | None = None
    message: str | None = None

    @property
    def last(self) -> bool:
        """Whether this is the job's last event."""
        return self.kind in _LAST


class JobHandle(Generic[R]):
    """A handle on one job, from `task.enqueue(…)` or `app.job(queue, id)`.

    `id` and `queue` name the job. `status` says what its enqueue did ("added", "updated", "kept", "blocked"), and
    `durability` the level it reached; both are `None` if this program did not enqueue it. Every blocking method `x` has
    an awaitable twin `ax`.
    """

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_codec",
        "_flow_runner",
        "_keeps",
        "_layout",
        "_returns",
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
        codec: Codec = PLAIN,
    ) -> None:
        """`keeps` says whether the job's result is kept; `None` if unknown."""
        self.id = id if status is not None else check_id(id)  # with a status the id comes from the server
        self.status = status
        self.durability = durability
        self._layout = layout
        self._flow_runner = flow_runner
        self._returns = returns
        self._keeps = keeps
        self._codec = codec
        self._cancelled = False

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
        sets `keep_result`. Raises `JobFailed` if the job failed for good (`CrashError` if its process died too often,
        `StallError` if its lease was lost too often), `JobExpired` if it expired before it could start,
        `ResultMissing` if the job is gone and no result was kept, `TimeoutError` if it has not ended in time,
        `Undecodable` if the value does not fit the declared type.
        """
        return self._flow_runner.run(self._result(timeout))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Awaitable `result`."""
        return await self._flow_runner.arun(self._result(timeout))

    def _result(self, timeout: Duration | None) -> Callable[[Session], Flow[R]]:
        watch = _Watch(self, timeout)

        def flow(session: Session) -> Flow[R]:
            try:
                ending = yield from watch.until_ended(session)
            finally:
                watch.close()
            return self._read(ending)

        return flow

    def _read(self, ending: _Ending) -> R:
        """Return the value, or raise why there is none. If a result and a dead record exist, the last event decides."""
        record, result = ending.record, ending.result
        kind = None if ending.event is None else ending.event.kind
        if result is not None and result.succeeded and kind in (None, EventKind.COMPLETED):
            return self._decode(result.data)
        if kind is None or kind in _FAILURES:
            if ending.event is not None and ending.event.reason is not None:
                raise failure(self.queue, self.id, ending.event.reason, ending.event.message or "")
            if record is not None and record.state in (State.DEAD, State.BROKEN):
                raise record.error()
            if result is not None and not result.succeeded:
                raise failure(self.queue, self.id, result.reason, result.data.decode(errors="replace"))
            if kind is not None:
                raise JobFailed(self.queue, self.id)
        if kind is EventKind.EXPIRED:
            raise JobExpired(
                f"job {self.id!r} of queue {self.queue!r} expired before it could start, so it did not run"
            )
        if kind is EventKind.COMPLETED and self._returns in (None, NoneType):
            return cast(R, None)  # a task without a return value needs no stored result
        raise ResultMissing(f"job {self.id!r} of queue {self.queue!r} {self._why_missing(kind)}")

    def _why_missing(self, kind: EventKind | None) -> str:
        if kind is EventKind.CANCELLED or (kind is None and self._cancelled):
            return "was cancelled, so there is no result"
        if kind is EventKind.COMPLETED:
            return 'has completed, but its result was not kept. Declare the task with keep_result="1h"'
        if self._keeps:
            return "is gone without a result: it was cancelled, or its keep_result time is over"
        remedy = 'To keep results, declare the task with keep_result="1h"'
        if self._keeps is None:
            return f"is gone and no result was kept: it ended, was cancelled, or never existed. {remedy}"
        return f"is gone: it ended or was cancelled, and its task keeps no results. {remedy}"

    def _decode(self, data: bytes) -> R:
        try:
            value: R = self._codec.decoder(self._returns).decode(data)
        except msgspec.DecodeError as error:
            raise Undecodable(
                f"the result of job {self.id!r} of queue {self.queue!r} cannot be decoded: {error}"
            ) from None
        return value

    # -- events ----------------------------------------------------------------------------------

    def events(self, timeout: Duration | None = None) -> Iterator[Event]:
        """Iterate over the job's events: first its present state, then each change, until its last event.

        Raises `TimeoutError` if the last event has not come within `timeout`, counted from this call.
        """
        return self._events(_Watch(self, timeout))

    def aevents(self, timeout: Duration | None = None) -> AsyncIterator[Event]:
        """`events` for `async for`."""
        return self._aevents(_Watch(self, timeout))

    def _events(self, watch: _Watch) -> Iterator[Event]:
        try:
            while not watch.ended:
                yield self._flow_runner.run(watch.next_event)
        finally:
            watch.close()

    async def _aevents(self, watch: _Watch) -> AsyncIterator[Event]:
        try:
            while not watch.ended:
                yield await self._flow_runner.arun(watch.next_event)
        finally:
            watch.close()

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
            self._cancelled = self._cancelled or found
            return found

        return flow


class _Ending(Struct, frozen=True):
    """What is known of a job that has ended: its last event if one was received, its dead record, its result."""

    event: Event | None
    record: JobRecord | None
    result: Result | None

    @property
    def kind(self) -> EventKind:
        """How it ended."""
        if self.event is not None:
            return self.event.kind
        if self.result is not None and self.result.succeeded:
            return EventKind.COMPLETED
        if self.record is not None:
            return _FOUND[self.record.state]
        return EventKind.DEAD if self.result is not None else EventKind.GONE


class _Watch:
    """One wait for one job. It survives lost connections, and lasts over several flows.

    If the enqueue was `blocked`, a job of the same id ran first: the end of that one is not the end of this one.
    """

    def __init__(self, handle: JobHandle[Any], timeout: Duration | None) -> None:
        self._timeout = math.inf if timeout is None else milliseconds(timeout, "timeout") / 1000
        self._deadline = monotonic() + self._timeout
        self._title = f"job {handle.id!r} of queue {handle.queue!r}"
        self._layout = handle._layout
        self._id = handle.id
        self._blocked = handle.status is Status.BLOCKED
        self._listener: Listener | None = None
        self._rewatch_at = self._recheck_at = 0.0  # monotonic
        self._last_event: Event | None = None  # the last one that the user got
        self._progress: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the user got the last event."""
        return self._last_event is not None and self._last_event.last

    def close(self) -> None:
        """Close the connection. The watch key in the server expires by itself."""
        if self._listener is not None:
            self._listener.wire.abort()
            self._listener = None
        self._rewatch_at = self._recheck_at = 0.0

    # -- the end, or one event after the other ---------------------------------------------------

    def until_ended(self, session: Session) -> Flow[_Ending]:
        """Wait until the job has ended."""
        last: Event | None = None
        while True:
            timed_out = yield from self._ensure_watching(session)
            found = yield from self._read_state(session, last)
            if isinstance(found, _Ending):
                return found
            if timed_out:
                raise self._timeout_error(found)
            last = None
            while (event := (yield from self._next_message(session))) is not None:
                if event.last:
                    last = event
                    break

    def next_event(self, session: Session) -> Flow[Event]:
        """Wait for one event."""
        last: Event | None = None
        while True:
            timed_out = yield from self._ensure_watching(session)
            if timed_out or monotonic() >= self._recheck_at:
                found = yield from self._read_state(session, last)
                last = None
                event = self._new_event(_present(found))
                if event is not None:
                    return self._record(event)
                if timed_out:
                    raise self._timeout_error(found)
            event = yield from self._next_message(session)
            if event is None or self._is_known(event):
                continue
            if event.last and self._blocked:
                last, self._recheck_at = event, 0.0  # it may be the end of the job that ran first
                continue
            return self._record(event)

    def _timeout_error(self, found: object) -> TimeoutError:
        state = f" It is {found.state}." if isinstance(found, JobRecord) else ""
        return TimeoutError(f"{self._title} has not ended within {self._timeout:g} s.{state}")

    def _record(self, event: Event) -> Event:
        self._last_event = event
        if event.kind in _RUNNING:
            self._progress = event.progress
        return event

    def _is_known(self, event: Event) -> bool:
        """Whether the user got it already, from a state read before the message. Only progress comes twice in a row."""
        last = self._last_event
        return last is not None and event.kind is last.kind and event.kind is not EventKind.PROGRESS

    def _new_event(self, present: Event) -> Event | None:
        """The event for the present state, if the user did not get it before."""
        last = self._last_event
        runs, ran = present.kind is EventKind.STARTED, last is not None and last.kind in _RUNNING
        if last is None or present.last or runs is not ran:
            return present
        if not runs or present.progress is None or present.progress == self._progress:
            return None
        return Event(EventKind.PROGRESS, present.progress)

    # -- subscribing and reading the state -------------------------------------------------------

    def _ensure_watching(self, session: Session) -> Flow[bool]:
        """Subscribe and ask for events, so that none is missed from now on. True if the deadline is over."""
        if monotonic() >= self._deadline:
            return True
        if self._listener is None:
            self._listener = yield from self._listen(session)
        if monotonic() >= self._rewatch_at:
            try:
                yield from self._perform(session, self._layout.watch(self._id, WATCH_FOR_S))
                self._rewatch_at = monotonic() + REWATCH_AFTER_S
            except OutcomeUnknown:
                pass  # it may be repeated; the state read that follows raises if the server cannot be reached
        return False

    def _listen(self, session: Session) -> Flow[Listener | None]:
        """A listener, or `None` while the server cannot be reached: then reading the state must do."""
        try:
            keys = self._layout.get(self._id).keys
            return (yield from session.subscribe(keys, [self._layout.event_channel(self._id)]))
        except AccessDenied:
            raise  # reading the state would hide the missing permission
        except (ConnectFailed, WireLost, NotApplied):
            return None

    def _next_message(self, session: Session) -> Flow[Event | None]:
        """The next published event; `None` if it is time to read the state, or the connection was lost."""
        while (pause := min(self._deadline, self._recheck_at) - monotonic()) > 0:
            if self._listener is None:
                yield Sleep(min(pause, RECONNECT_AFTER_S))
                self._recheck_at = 0.0
                return None
            event = yield from self._receive(session, self._listener, pause)
            if event is not None:
                return event
        return None

    def _receive(self, session: Session, listener: Listener, seconds: float) -> Flow[Event | None]:
        """One message; `None` if none came, its kind is unknown, or the connection was lost."""
        try:
            message = yield from session.next_message(listener, seconds)
        except WireLost:
            self.close()
            return None
        return None if message is None else _read_event(message[1])

    def _read_state(self, session: Session, last: Event | None) -> Flow[JobRecord | _Ending]:
        """The record of a waiting or running job, else how it ended. `last` is its last event, if one was received.

        It reads the job first and then its result: the server writes both in one step.
        """
        record: JobRecord | None = None
        if last is None or last.kind in _FAILURES or self._blocked:
            record = yield from self._perform(session, self._layout.get(self._id))
            alive = record is not None and record.state not in (State.DEAD, State.BROKEN)
            if record is not None and alive and (last is None or self._blocked):
                self._recheck_at = monotonic() + RECHECK_AFTER_S
                return record
        result = yield from self._perform(session, self._layout.result(self._id))
        if last is None and record is None and result is None:
            last = yield from self._final_event(session)
        return _Ending(last, record, result)

    def _final_event(self, session: Session) -> Flow[Event | None]:
        """The job has left no trace. If it ended just now, the message that says how is still to arrive."""
        until = min(self._deadline, monotonic() + FINAL_EVENT_TIMEOUT_S)
        while self._listener is not None and (pause := until - monotonic()) > 0:
            event = yield from self._receive(session, self._listener, pause)
            if event is not None and event.last:
                return event
        return None

    def _perform(self, session: Session, call: Call[T]) -> Flow[T]:
        left = max(0.0, self._deadline - monotonic())
        return (yield from session.perform(call, min(session.options.retry_for, left)))


def _present(found: JobRecord | _Ending) -> Event:
    """The event for a job's present state."""
    if isinstance(found, _Ending):
        return found.event or Event(found.kind)
    return Event(_FOUND[found.state], found.progress)


def _read_event(message: bytes) -> Event | None:
    """Parse a published event; `None` for a kind that only a later version knows."""
    word, _, more = message.decode(errors="replace").partition(" ")
    try:
        kind = EventKind(word)
        if more and kind is EventKind.DEAD:
            reason, _, text = more.partition(" ")
            return Event(kind, reason=reason, message=text)
        return Event(kind, float(more) if more else None)
    except ValueError:
        return None
