"""One wait for one job: for its end, or for its next event.

A wait subscribes, and checks the state every 5 s as a fallback. On the server it leaves one entry in `watched`, which
expires within a minute.

The order matters: the wait subscribes to the job's events, asks the server to publish them (`watch`), reads the job's
state, and only then sleeps. So it misses no event, unless a message is lost with its connection.
"""

from __future__ import annotations

import math
from time import monotonic, time
from typing import TypeVar

from msgspec import Struct, structs

from windlass.errors import AccessDenied, NotApplied, OutcomeUnknown
from windlass.storage.formats import MARK_TTL_MS
from windlass.storage.port import Call, Layout
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.io_steps import Flow, Sleep
from windlass.transport.listeners import Listener
from windlass.transport.session import Session
from windlass.values.durations import Duration, milliseconds
from windlass.values.ending import Remains, conclude, own_record
from windlass.values.events import LAST_EVENTS, Event, EventKind, read_event
from windlass.values.job import Ending, JobRecord, Result, Sighting, State

T = TypeVar("T")

WATCH_FOR_S = 60.0  # how long the server publishes a job's events after `watch`
REWATCH_AFTER_S = 30.0  # half of it: one lost `watch` call does no harm
RECHECK_AFTER_S = 5.0  # a lost message delays a wait by no more
RECONNECT_AFTER_S = 1.0  # between two tries to subscribe
FINAL_EVENT_TIMEOUT_S = 0.1  # a job has just gone: the message with its end arrives within a round trip
MAX_LOOKS = 5  # at a job whose id is enqueued again between two reads; in a damaged queue it only seems so
MARKS_LAST_S = MARK_TTL_MS / 1000 - 3600  # an hour less, because two clocks measure it

FAILURES = (EventKind.DEAD, EventKind.BROKEN)
_RUNNING = (EventKind.STARTED, EventKind.PROGRESS)
_LAST_KINDS = {ending: kind for kind, ending in LAST_EVENTS.items()}
_MESSAGE_TELLS_MORE = (Ending.UNKNOWN, Ending.DEAD)  # the last message may say how it ended, or why it died
_FOUND = {
    State.READY: EventKind.READY,
    State.SCHEDULED: EventKind.SCHEDULED,
    State.RUNNING: EventKind.STARTED,
}


class End(Struct, frozen=True):
    """What is known of a job that has ended: its last event if one was received, its dead record, its result."""

    event: Event | None
    record: JobRecord | None
    result: Result | None
    concluded: Ending  # from what is left of it

    @property
    def ending(self) -> Ending:
        """How it ended. The last event decides: what is left may be of an earlier job with this id."""
        return self.concluded if self.event is None else LAST_EVENTS[self.event.kind]


class JobWatch:
    """One wait for one job. It survives lost connections, and lasts over several flows.

    If the enqueue was `blocked`, a job of the same id ran first: the end of that one is not the end of this one.
    """

    def __init__(
        self,
        layout: Layout,
        id: str,
        timeout: Duration | None,
        *,
        was_blocked: bool = False,
        sighting: Sighting | None = None,
    ) -> None:
        """`sighting` is when the caller last knew the job on the queue. A later one takes its place."""
        self._timeout = math.inf if timeout is None else milliseconds(timeout, "timeout") / 1000
        self._deadline = monotonic() + self._timeout
        self.sighting = sighting
        self._title = f"job {id!r} of queue {layout.queue!r}"
        self._layout = layout
        self._id = id
        self._blocked = was_blocked
        self._listener: Listener | None = None
        self._watched: Sighting | None = None
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

    def until_ended(self, session: Session) -> Flow[End]:
        """Wait until the job has ended."""
        last: Event | None = None
        while True:
            timed_out = yield from self._ensure_watching(session)
            found = yield from self._read_state(session, last)
            if isinstance(found, End):
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
                self._watched = yield from self._perform(session, self._layout.watch(self._id, WATCH_FOR_S))
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
        return None if message is None else read_event(message[1])

    def read_state(self, session: Session) -> Flow[State | Ending]:
        """The job's state, or how it ended, without a wait."""
        found = yield from self._read_state(session, None)
        return found.ending if isinstance(found, End) else found.state

    def _read_state(self, session: Session, last: Event | None) -> Flow[JobRecord | End]:
        """The record of a waiting or running job, else how it ended. `last` is its last event, if one was received.

        It reads the job first and then what is left of it: the server writes both in one step.
        """
        record: JobRecord | None = None
        for _ in range(MAX_LOOKS):
            if last is None or last.kind in FAILURES or self._blocked:
                record = yield from self._perform(session, self._layout.get(self._id))
                alive = record is not None and record.state not in (State.DEAD, State.BROKEN)
                if record is not None and alive and (last is None or self._blocked):
                    self._seen_alive()
                    return record
            remains = yield from self._perform(session, self._layout.remains(self._id))
            enqueued_again = remains.on_queue or (record is None and remains.has_record)  # between the two calls
            if not enqueued_again or not (last is None or self._blocked):
                break
        ending = self._ending(last, record, remains)
        if last is None and ending.record is None and ending.result is None and ending.ending in _MESSAGE_TELLS_MORE:
            last = yield from self._final_event(session)
            ending = structs.replace(ending, event=last)
        return ending

    def _ending(self, last: Event | None, record: JobRecord | None, remains: Remains) -> End:
        sighting = self.sighting
        record = own_record(record, remains, sighting, was_blocked=self._blocked)
        age_s = max(monotonic() - sighting.at, time() - sighting.time) if sighting else 0.0
        ended = conclude(record, remains, sighting, was_blocked=self._blocked, marks_last=age_s < MARKS_LAST_S)
        return End(last, record, remains.result, ended)

    def _seen_alive(self) -> None:
        """The job was there after the server said that it publishes its events."""
        self._recheck_at = monotonic() + RECHECK_AFTER_S
        known, new = self.sighting, self._watched
        if new is not None:
            self.sighting = new if known is None else structs.replace(new, wall=known.wall)

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


def _present(found: JobRecord | End) -> Event:
    """The event for a job's present state."""
    if isinstance(found, End):
        return found.event or Event(_LAST_KINDS[found.ending])
    return Event(_FOUND[found.state], found.progress)
