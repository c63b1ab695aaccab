"""The plain values that go in and out of a queue: jobs, leases, receipts, counts.

They are msgspec structs: as frozen as dataclasses can be, and made ten times as fast, which counts when a
thousand come with one reply. Those that come by the thousand are kept from the garbage collector (`gc=False`): nothing
that they hold can hold them.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from msgspec import Struct

from windlass.errors import CrashError, InvalidPayload, JobFailed, StallError
from windlass.values.durability import Durability
from windlass.values.redacted import Redacted

_ERRORS: dict[str | None, type[JobFailed]] = {"stalled": StallError, "crashed": CrashError}


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
    except RecursionError:
        raise InvalidPayload("this payload is nested too deep for JSON: use .data for the bytes") from None
    except ValueError as error:
        raise InvalidPayload(f"this payload is not JSON ({error}): use .data for the bytes") from None


def failure(queue: str, id: str, reason: str | None, message: str) -> JobFailed:
    """The error that tells why a job failed for good."""
    return _ERRORS.get(reason, JobFailed)(queue, id, message)


SUSPECT, FAILURE_JOB, LIMITED = 1, 2, 4


class State(StrEnum):
    """Where a job is."""

    READY = "ready"
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    LEASED = "leased"
    DEAD = "dead"
    BROKEN = "broken"


class Status(StrEnum):
    """What an enqueue did."""

    ADDED = "added"
    UPDATED = "updated"
    KEPT = "kept"
    BLOCKED = "blocked"


class Change(Struct, frozen=True):
    """What is asked for a job beside its data, and how to treat a job of the same id. Times are in milliseconds.

    `when` is `None` for now, or ("at", ms since 1970), or ("in", ms from the server's now). `update_run_at`
    is one of "never", "always", "later", "earlier". `limits_given`: they are the job's own, and count for more than
    those of its task, also where they are the plain ones.
    """

    when: tuple[str, int] | None = None
    priority: int = 5
    max_failures: int = 10
    max_stalls: int = 3
    min_backoff: int = 2_000
    max_backoff: int = 300_000
    update_data: bool = True
    update_run_at: str = "always"
    update_priority: bool = True
    update_max_failures: bool = True
    update_max_stalls: bool = True
    update_min_backoff: bool = True
    update_max_backoff: bool = True
    reset_counts: bool = True
    keep: bool = False
    must_exist: bool = False
    limits_given: bool = False


PLAIN = Change()


class NewJob(Redacted, frozen=True, gc=False):
    """One job to be put on a queue. A `fresh` id was just made up, so no job can have it yet.

    `updates`: it was said how to change a job of the same id, which not every layout can.
    """

    id: str
    data: bytes
    change: Change = PLAIN
    fresh: bool = False
    updates: bool = False
    durability: Durability | None = None


class Receipt(Struct, frozen=True, gc=False):
    """The server has the job: under which id, what became of the request, and how safe it is (see durability.py)."""

    id: str
    status: Status
    durability: str = "memory"


class Limits(Struct, frozen=True):
    """How often a job may fail or stall, and how long it waits between tries (seconds)."""

    max_failures: int = 10
    max_stalls: int = 3
    min_backoff: float = 2.0
    max_backoff: float = 300.0


class Lease(Redacted, frozen=True, gc=False):
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
    marks: int = 0

    def json(self) -> Any:
        """The payload, read as JSON."""
        return read_json(self.data)

    @property
    def suspect(self) -> bool:
        """It ran in a process that died and may have killed it: run it alone."""
        return bool(self.marks & SUSPECT)

    @property
    def is_failure_job(self) -> bool:
        """It is not the job itself but its failure, for a failure handler; the data is a record of the layout."""
        return bool(self.marks & FAILURE_JOB)

    @property
    def limited(self) -> bool:
        """Its limits were given with the job."""
        return bool(self.marks & LIMITED)

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self.failures + self.stalls + 1


class JobRecord(Redacted, frozen=True):
    """What the server knows of one job. `failed` is the job whose failure this one is to tell a failure handler."""

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
    failed: JobRecord | None = None

    def json(self) -> Any:
        """The payload, read as JSON."""
        return read_json(self.data)

    def error(self) -> JobFailed:
        """The error that tells why a dead job failed."""
        return failure(self.queue, self.id, self.reason, self.message or "")


class Page(Struct, frozen=True):
    """Some jobs, and the cursor with which to ask for the next ones (`None` at the end)."""

    jobs: tuple[JobRecord, ...]
    cursor: str | None


class Counts(Struct, frozen=True):
    """How many jobs there are in each state, all at one moment.

    `inbox` counts what was pushed by hand and is not yet taken in; `parked` those of the scheduled jobs that were put
    aside because no worker that saw them knew their task; `outbox` what is on its way to other queues. `dropped` counts
    the dead jobs that were dropped because there were more than `max_dead`, since the dead were last purged.
    """

    ready: int
    scheduled: int
    blocked: int
    leased: int
    dead: int
    inbox: int = 0
    holders: int = 0
    paused: bool = False
    broken: int = 0
    parked: int = 0
    outbox: int = 0
    schedules: int = 0
    dropped: int = 0

    @property
    def waiting(self) -> int:
        """What is still to be run."""
        return self.ready + self.scheduled + self.blocked + self.inbox


class Result(Redacted, frozen=True):
    """What a finished job left behind: its return value as JSON, or why it failed. `reason` as in `JobRecord`."""

    succeeded: bool
    data: bytes
    reason: str | None = None


class Cleaned(Struct, frozen=True):
    """What a clean found: jobs taken back from lost holders, and things mended by a deep clean."""

    recovered: int
    mended: int = 0
