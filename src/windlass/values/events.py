"""`Event`: something that happened to a job, as the server publishes it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from windlass.values.job import Ending


class EventKind(StrEnum):
    """The kind of an event.

    `ready` and `scheduled` are the state at the start. `gone` means that nothing tells how the job ended.
    """

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


LAST_EVENTS = {
    EventKind.COMPLETED: Ending.COMPLETED,
    EventKind.DEAD: Ending.DEAD,
    EventKind.BROKEN: Ending.BROKEN,
    EventKind.CANCELLED: Ending.CANCELLED,
    EventKind.EXPIRED: Ending.EXPIRED,
    EventKind.GONE: Ending.UNKNOWN,
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
        return self.kind in LAST_EVENTS


def read_event(message: bytes) -> Event | None:
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
