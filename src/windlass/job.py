"""The plain values that go in and out of a queue: jobs, leases, receipts, counts.

They are msgspec structs: as frozen as dataclasses can be, and made ten times as fast, which counts when a
thousand come with one reply.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from windlass.errors import InvalidPayload


def write_json(value: Any) -> bytes:
    """A payload from anything that JSON can say. NaN and infinity it cannot."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidPayload(
            f"this cannot be written as JSON ({error}): pass plain values, or bytes to enqueue"
        ) from None


def read_json(data: bytes) -> Any:
    """What a payload says as JSON."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise InvalidPayload(f"this payload is not JSON ({error}): use .data for the bytes") from None


def _repr_without_data(value: Struct) -> str:
    """Payloads may be long, and may be secret."""
    fields = ", ".join(f"{name}={field!r}" for name, field in structs.asdict(value).items() if name != "data")
    return f"{type(value).__name__}({fields})"


class State(StrEnum):
    """Where a job is."""

    READY = "ready"
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    LEASED = "leased"
    DEAD = "dead"


class Status(StrEnum):
    """What an enqueue did."""

    ADDED = "added"
    UPDATED = "updated"
    KEPT = "kept"
    BLOCKED = "blocked"


class Receipt(Struct, frozen=True):
    """The server has the job: under which id, and what became of the request."""

    id: str
    status: Status


class Limits(Struct, frozen=True):
    """How often a job may fail or stall, and how long it waits between tries (seconds)."""

    max_failures: int = 10
    max_stalls: int = 3
    min_backoff: float = 2.0
    max_backoff: float = 300.0


class Lease(Struct, frozen=True):
    """The right to work on one job until it is settled or the lease ends.

    `fence` only rises: of two leases on the same job the later has the greater number. Give it to
    whatever the job writes to, so that a worker that was long asleep cannot overwrite its successor.
    """

    queue: str
    id: str
    data: bytes
    fence: int
    priority: int = 5
    failures: int = 0
    stalls: int = 0
    limits: Limits = Limits()
    holder: str | None = None

    def json(self) -> Any:
        """The payload, read as JSON."""
        return read_json(self.data)

    def __repr__(self) -> str:
        return _repr_without_data(self)

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self.failures + self.stalls + 1


class JobRecord(Struct, frozen=True):
    """What the server knows of one job."""

    queue: str
    id: str
    state: State
    data: bytes
    priority: int = 5
    run_at: float | None = None
    failures: int = 0
    stalls: int = 0
    limits: Limits = Limits()
    progress: float | None = None
    holder: str | None = None
    fence: int | None = None
    cancelled: bool = False
    reason: str | None = None
    message: str | None = None
    died_at: float | None = None

    def json(self) -> Any:
        """The payload, read as JSON."""
        return read_json(self.data)

    def __repr__(self) -> str:
        return _repr_without_data(self)


class Page(Struct, frozen=True):
    """Some jobs, and the cursor with which to ask for the next ones (`None` at the end)."""

    jobs: tuple[JobRecord, ...]
    cursor: str | None


class Counts(Struct, frozen=True):
    """How many jobs there are in each state, all at one moment.

    `inbox` counts what was pushed by hand and is not yet taken in.
    """

    ready: int
    scheduled: int
    blocked: int
    leased: int
    dead: int
    inbox: int = 0
    holders: int = 0
    paused: bool = False

    @property
    def waiting(self) -> int:
        """What is still to be run."""
        return self.ready + self.scheduled + self.blocked + self.inbox


class Cleaned(Struct, frozen=True):
    """What a clean found: jobs taken back from lost holders, and things mended by a deep clean."""

    recovered: int
    mended: int = 0
