"""A handle on one job: wait for what it returns, hear what happens to it, look at it, cancel it.

Nobody polls. Who waits subscribes to the events of the job, asks for them to be published (`watch`), then looks what
there is already, and only then sleeps; so nothing can happen unheard in between. Messages can be lost with a
connection, so there is a look now and then as well. A wait leaves no key behind, however it ends: the one that names
the watched jobs expires within a minute.
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
    JobFailed,
    NotApplied,
    OutcomeUnknown,
    ResultMissing,
    Undecodable,
)
from windlass.queue import FlowRunner
from windlass.storage.port import Call, Layout
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.session import Listener, Session
from windlass.transport.wire import Flow, Sleep
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import JobRecord, Result, State, Status, failure
from windlass.values.validation import check_id

R = TypeVar("R")
T = TypeVar("T")

WATCH_FOR = 60.0  # seconds for which events are published once asked for
WATCH_AGAIN = 30.0
LOOK_AGAIN = 5.0  # a lost message costs at most this many seconds
RECONNECT = 1.0
LAST_WORDS = 0.1


class EventKind(StrEnum):
    """What happens to a job. The first two tell how it is found; `gone` that nothing is known of it any more."""

    READY = "ready"
    SCHEDULED = "scheduled"
    STARTED = "started"
    PROGRESS = "progress"
    RELEASED = "released"
    RETRIED = "retried"
    CRASHED = "crashed"
    STALLED = "stalled"
    COMPLETED = "completed"
    DEAD = "dead"
    BROKEN = "broken"
    CANCELLED = "cancelled"
    GONE = "gone"


_FAILURES = (EventKind.DEAD, EventKind.BROKEN)
_LAST = (EventKind.COMPLETED, *_FAILURES, EventKind.CANCELLED, EventKind.GONE)
_RUNNING = (EventKind.STARTED, EventKind.PROGRESS)
_FOUND = {
    State.READY: EventKind.READY,
    State.SCHEDULED: EventKind.SCHEDULED,
    State.LEASED: EventKind.STARTED,
    State.DEAD: EventKind.DEAD,
    State.BROKEN: EventKind.BROKEN,
}


class Event(Struct, frozen=True):
    """Something that happened to a job; `progress` (0 to 1) where it is known.

    `reason` (crashed or stalled) and `message` tell why it died where a failure handler hears of that: such a job is
    not among the dead.
    """

    kind: EventKind
    progress: float | None = None
    reason: str | None = None
    message: str | None = None

    @property
    def last(self) -> bool:
        """Nothing comes after it."""
        return self.kind in _LAST


class JobHandle(Generic[R]):
    """One job by its queue and id. `status` is what its enqueue did, `durability` how safe it was when that returned.

    Both are `None` for a job that was not enqueued here.
    """

    __slots__ = (
        "__weakref__",
        "_cancelled",
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
    ) -> None:
        """`keeps`: whether its result is kept, if that is known."""
        self.id = id if status is not None else check_id(id)  # the server just answered for it, or nobody did
        self.status = status
        self.durability = durability
        self._layout = layout
        self._flow_runner = flow_runner
        self._returns = returns
        self._keeps = keeps
        self._cancelled = False

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._layout.queue

    def __repr__(self) -> str:
        return f"<JobHandle {self.id!r} of queue {self.queue!r}{f' ({self.status})' if self.status else ''}>"

    # -- the result ------------------------------------------------------------------------------

    def result(self, timeout: Duration | None = None) -> R:
        """What the job returned; waits for its end, so long at most.

        Raises `JobFailed` (`StallError`, `CrashError`) when it failed for good, `ResultMissing` when it is gone and
        nothing of it was kept, `TimeoutError` when it has not ended in time.
        """
        return self._flow_runner.run(self._result(timeout))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Awaitable `result`."""
        return await self._flow_runner.arun(self._result(timeout))

    def _result(self, timeout: Duration | None) -> Callable[[Session], Flow[R]]:
        vigil = _Watch(self, timeout)

        def flow(session: Session) -> Flow[R]:
            try:
                ending = yield from vigil.until_the_end(session)
            finally:
                vigil.close()
            return self._read(ending)

        return flow

    def _read(self, ending: _Ending) -> R:
        """The value, or the error that tells why there is none. What was heard says which of two traces is newer."""
        record, result = ending.record, ending.result
        heard = None if ending.heard is None else ending.heard.kind
        if result is not None and result.succeeded and heard in (None, EventKind.COMPLETED):
            return self._decode(result.data)
        if heard is None or heard in _FAILURES:
            if ending.heard is not None and ending.heard.reason is not None:
                raise failure(self.queue, self.id, ending.heard.reason, ending.heard.message or "")
            if record is not None and record.state in (State.DEAD, State.BROKEN):
                raise record.error()
            if result is not None and not result.succeeded:
                raise failure(self.queue, self.id, result.reason, result.data.decode(errors="replace"))
            if heard is not None:
                raise JobFailed(self.queue, self.id)
        if heard is EventKind.COMPLETED and self._returns in (None, NoneType):
            return cast(R, None)  # it has nothing to say, and has said it
        raise ResultMissing(f"job {self.id!r} of queue {self.queue!r} {self._why_missing(heard)}")

    def _why_missing(self, heard: EventKind | None) -> str:
        if heard is EventKind.CANCELLED or (heard is None and self._cancelled):
            return "was cancelled: there is no result"
        if heard is EventKind.COMPLETED:
            return 'is done, but what it returned was not kept: use keep_result="1h"'
        if self._keeps:
            return "is gone, and there is no result of it: it was cancelled, or the time is over for which one is kept"
        remedy = 'To keep what a task returns, declare it with keep_result="1h"'
        if self._keeps is None:
            return f"is gone, and no result of it was kept: it ended, was cancelled, or was never there. {remedy}"
        return f"is gone: it ended, or was cancelled, and its task keeps no results. {remedy}"

    def _decode(self, data: bytes) -> R:
        try:
            value: R = msgspec.json.decode(data, type=self._returns)
        except msgspec.DecodeError as error:
            raise Undecodable(f"the result of job {self.id!r} of queue {self.queue!r}: {error}") from None
        return value

    # -- events ----------------------------------------------------------------------------------

    def events(self, timeout: Duration | None = None) -> Iterator[Event]:
        """What happens to the job, beginning with how it is found now and ending with its last event.

        Raises `TimeoutError` when that has not come within `timeout`, counted from this call.
        """
        return self._events(_Watch(self, timeout))

    def aevents(self, timeout: Duration | None = None) -> AsyncIterator[Event]:
        """`events` for `async for`."""
        return self._aevents(_Watch(self, timeout))

    def _events(self, vigil: _Watch) -> Iterator[Event]:
        try:
            while not vigil.ended:
                yield self._flow_runner.run(vigil.next_event)
        finally:
            vigil.close()

    async def _aevents(self, vigil: _Watch) -> AsyncIterator[Event]:
        try:
            while not vigil.ended:
                yield await self._flow_runner.arun(vigil.next_event)
        finally:
            vigil.close()

    # -- looking and cancelling ------------------------------------------------------------------

    def record(self) -> JobRecord | None:
        """Everything about the job; `None` when it is gone."""
        return self._flow_runner.run(lambda session: session.perform(self._layout.get(self.id)))

    async def arecord(self) -> JobRecord | None:
        """Awaitable `record`."""
        return await self._flow_runner.arun(lambda session: session.perform(self._layout.get(self.id)))

    def cancel(self, *, running: bool = False) -> bool:
        """Take the job away if it waits, with `running` also if it runs (as `Queue.cancel`); whether there was one."""
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
    """What is known of a job that has ended: the event that said so if one was heard, and what it left behind."""

    heard: Event | None
    record: JobRecord | None
    result: Result | None

    @property
    def kind(self) -> EventKind:
        """How it ended."""
        if self.heard is not None:
            return self.heard.kind
        if self.result is not None and self.result.succeeded:
            return EventKind.COMPLETED
        if self.record is not None:
            return _FOUND[self.record.state]
        return EventKind.DEAD if self.result is not None else EventKind.GONE


class _Watch:
    """One wait for one job: it outlives lost connections, and the run of a single flow.

    Who was told that a job of its id is running waits behind that one (`blocked`): the end of it is not yet the end.
    """

    def __init__(self, handle: JobHandle[Any], timeout: Duration | None) -> None:
        self._timeout = math.inf if timeout is None else milliseconds(timeout, "timeout") / 1000
        self._deadline = monotonic() + self._timeout
        self._about = f"job {handle.id!r} of queue {handle.queue!r}"
        self._layout = handle._layout
        self._id = handle.id
        self._behind = handle.status is Status.BLOCKED
        self._listener: Listener | None = None
        self._watch_again = self._look_again = 0.0
        self._told: Event | None = None
        self._progress: float | None = None

    @property
    def ended(self) -> bool:
        """The last event was told."""
        return self._told is not None and self._told.last

    def close(self) -> None:
        """Without its connection nothing is left of a vigil but a note on the server, which ends by itself."""
        if self._listener is not None:
            self._listener.wire.abort()
            self._listener = None
        self._watch_again = self._look_again = 0.0

    # -- one ending, or one event after the other ------------------------------------------------

    def until_the_end(self, session: Session) -> Flow[_Ending]:
        """Waits until the job has ended."""
        heard: Event | None = None
        while True:
            late = yield from self._attend(session)
            found = yield from self._look(session, heard)
            if isinstance(found, _Ending):
                return found
            if late:
                raise self._too_late(found)
            heard = None
            while (event := (yield from self._hear(session))) is not None:
                if event.last:
                    heard = event
                    break

    def next_event(self, session: Session) -> Flow[Event]:
        """Waits for one event."""
        heard: Event | None = None
        while True:
            late = yield from self._attend(session)
            if late or monotonic() >= self._look_again:
                found = yield from self._look(session, heard)
                heard = None
                event = self._news(_present(found))
                if event is not None:
                    return self._tell(event)
                if late:
                    raise self._too_late(found)
            event = yield from self._hear(session)
            if event is None or self._is_known(event):
                continue
            if event.last and self._behind:
                heard, self._look_again = event, 0.0  # was it the end of the job in front, or of ours?
                continue
            return self._tell(event)

    def _too_late(self, found: object) -> TimeoutError:
        state = f" It is {found.state}." if isinstance(found, JobRecord) else ""
        return TimeoutError(f"{self._about} has not ended within {self._timeout:g} s.{state}")

    def _tell(self, event: Event) -> Event:
        self._told = event
        if event.kind in _RUNNING:
            self._progress = event.progress
        return event

    def _is_known(self, event: Event) -> bool:
        """A look may have told it before its message came: no event but progress comes twice in a row."""
        told = self._told
        return told is not None and event.kind is told.kind and event.kind is not EventKind.PROGRESS

    def _news(self, present: Event) -> Event | None:
        """What a look tells that was not told before."""
        told = self._told
        runs, ran = present.kind is EventKind.STARTED, told is not None and told.kind in _RUNNING
        if told is None or present.last or runs is not ran:
            return present
        if not runs or present.progress is None or present.progress == self._progress:
            return None
        return Event(EventKind.PROGRESS, present.progress)

    # -- listening and looking -------------------------------------------------------------------

    def _attend(self, session: Session) -> Flow[bool]:
        """Be subscribed, and known as one who watches: from now on nothing happens unheard. Or is it too late?"""
        if monotonic() >= self._deadline:
            return True
        if self._listener is None:
            self._listener = yield from self._listen(session)
        if monotonic() >= self._watch_again:
            try:
                yield from self._ask(session, self._layout.watch(self._id, WATCH_FOR))
                self._watch_again = monotonic() + WATCH_AGAIN
            except OutcomeUnknown:
                pass  # harmless if it happened; whether the server can be reached the look behind it will tell
        return False

    def _listen(self, session: Session) -> Flow[Listener | None]:
        """A listener; none while the server cannot be reached, then looking has to do."""
        try:
            keys = self._layout.get(self._id).keys
            return (yield from session.subscribe(keys, [self._layout.event_channel(self._id)]))
        except AccessDenied:
            raise  # looking would hide that this user may not subscribe
        except (ConnectFailed, WireLost, NotApplied):
            return None

    def _hear(self, session: Session) -> Flow[Event | None]:
        """The next event; `None` when it is time to look, or the connection was lost."""
        while (pause := min(self._deadline, self._look_again) - monotonic()) > 0:
            if self._listener is None:
                yield Sleep(min(pause, RECONNECT))
                self._look_again = 0.0
                return None
            event = yield from self._hear_one(session, self._listener, pause)
            if event is not None:
                return event
        return None

    def _hear_one(self, session: Session, listener: Listener, seconds: float) -> Flow[Event | None]:
        """One message; `None` when none came, or one that we do not know, or the connection was lost."""
        try:
            message = yield from session.hear(listener, seconds)
        except WireLost:
            self.close()
            return None
        return None if message is None else _read_event(message[1])

    def _look(self, session: Session, heard: Event | None) -> Flow[JobRecord | _Ending]:
        """The job while it waits or runs, else how it ended: first the job, then its result; both change at once."""
        record: JobRecord | None = None
        if heard is None or heard.kind in _FAILURES or self._behind:
            record = yield from self._ask(session, self._layout.get(self._id))
            here = record is not None and record.state not in (State.DEAD, State.BROKEN)
            if record is not None and here and (heard is None or self._behind):
                self._look_again = monotonic() + LOOK_AGAIN
                return record
        result = yield from self._ask(session, self._layout.result(self._id))
        if heard is None and record is None and result is None:
            heard = yield from self._last_words(session)
        return _Ending(heard, record, result)

    def _last_words(self, session: Session) -> Flow[Event | None]:
        """The job is gone without a trace. If that was just now, the message that says how it ended is on its way."""
        until = min(self._deadline, monotonic() + LAST_WORDS)
        while self._listener is not None and (pause := until - monotonic()) > 0:
            event = yield from self._hear_one(session, self._listener, pause)
            if event is not None and event.last:
                return event
        return None

    def _ask(self, session: Session, call: Call[T]) -> Flow[T]:
        left = max(0.0, self._deadline - monotonic())
        return (yield from session.perform(call, min(session.options.retry_for, left)))


def _present(found: JobRecord | _Ending) -> Event:
    """How a job is found, as an event."""
    if isinstance(found, _Ending):
        return found.heard or Event(found.kind)
    return Event(_FOUND[found.state], found.progress)


def _read_event(message: bytes) -> Event | None:
    """An event as the server told it; none for one that only a later version knows."""
    word, _, more = message.decode(errors="replace").partition(" ")
    try:
        kind = EventKind(word)
        if more and kind is EventKind.DEAD:
            reason, _, text = more.partition(" ")
            return Event(kind, reason=reason, message=text)
        return Event(kind, float(more) if more else None)
    except ValueError:
        return None
