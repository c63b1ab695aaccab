"""The values that go into and come out of a queue: jobs, leases, receipts, counts.

They are msgspec structs, which are created ten times as fast as frozen dataclasses: one reply may hold a thousand.
`gc=False` keeps the most frequent ones from the garbage collector. That is safe because they never form cycles.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from windlass.errors import CrashError, InvalidPayload, JobFailed, StallError
from windlass.values import defaults
from windlass.values.durability import Durability
from windlass.values.redacted import Redacted

_ERRORS: dict[str | None, type[JobFailed]] = {"stalled": StallError, "crashed": CrashError}


def write_json(value: Any) -> bytes:
    """Encode a payload as JSON. Refuses NaN and infinity, which JSON does not have."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidPayload(
            f"the value cannot be written as JSON ({error}): pass plain values, or bytes to enqueue"
        ) from None


def read_json(data: bytes) -> Any:
    """Decode a JSON payload."""
    try:
        return json.loads(data)
    except RecursionError:
        raise InvalidPayload("the payload is nested too deeply for JSON: use .data for the bytes") from None
    except ValueError as error:
        raise InvalidPayload(f"the payload is not JSON ({error}): use .data for the bytes") from None


def failure(queue: str, id: str, reason: str | None, message: str) -> JobFailed:
    """The error for a job that failed for good."""
    return _ERRORS.get(reason, JobFailed)(queue, id, message)


# Bits of Lease.marks, as in the server.
SUSPECT = 1  # the job ran in a process that died, and may have killed it
FAILURE_JOB = 2  # a job for the failure handler; its data is the record of the failed job
LIMITED = 4  # the job has limits of its own, which override those of its task
EXPIRES = 8  # the job has an expiry, and no attempt has counted yet


class State(StrEnum):
    """The state of a job."""

    READY = "ready"
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    RUNNING = "running"
    DEAD = "dead"
    BROKEN = "broken"


class Status(StrEnum):
    """What an enqueue did."""

    ADDED = "added"
    UPDATED = "updated"
    KEPT = "kept"
    BLOCKED = "blocked"


class Ending(StrEnum):
    """How a job ended. `UNKNOWN`: it is not on the queue, and nothing tells how it ended, or that it ever was there."""

    COMPLETED = "completed"
    DEAD = "dead"
    BROKEN = "broken"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


class Extras(Struct, frozen=True, omit_defaults=True):
    """The options that few jobs have. They cost nothing while none is given."""

    tags: tuple[str, ...] = ()
    expires: int = 0  # ms since 1970; 0 is never
    lasts: int = 0  # ms from the run time to `expires`, if it was given as a duration: it moves with the run time
    snoozes: int = 0  # attempts that put the job off; only the server writes it
    max_snoozes: int | None = None


NO_EXTRAS = Extras()


class Change(Struct, frozen=True):
    """The options of a job, and how to treat an existing job of the same id. Times are in milliseconds.

    `extras` has the given fields of `Extras`; with `replace_extras` they replace those of an existing job, with
    `keep_extras` they are for a new job only.
    `when` is `None` (now), ("at", ms since 1970) or ("in", ms from the server's now). `update_run_at` is "never",
    "always", "later" or "earlier". With `limits_given` the job's limits override those of its task, even if they equal
    the defaults.
    """

    when: tuple[str, int] | None = None
    priority: int = defaults.PRIORITY
    max_failures: int = defaults.MAX_FAILURES
    max_stalls: int = defaults.MAX_STALLS
    min_backoff: int = defaults.MIN_BACKOFF_MS
    max_backoff: int = defaults.MAX_BACKOFF_MS
    extras: dict[str, Any] = {}
    replace_extras: bool = True
    keep_extras: bool = False
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
    """One job to enqueue. A `fresh` id is newly generated, so no job has it yet.

    `has_update_options` says that the user set an update option, which not every layout supports.
    """

    id: str
    data: bytes
    change: Change = PLAIN
    fresh: bool = False
    has_update_options: bool = False
    durability: Durability | None = None


class Sighting(Struct, frozen=True, gc=False):
    """The server had a certain job at this moment. A later one tells whether the server can have forgotten its end.

    `epoch` and `step` order everything that happens to a queue. `data_losses` is how often this program had seen the
    server lose writes. `wall` is the server's clock, in seconds, if the job's id was given: an
    older dead job may have it, too.
    """

    epoch: int
    step: int
    data_losses: int
    at: float  # of the monotonic clock
    time: float  # of the wall clock, which goes on while the machine sleeps
    wall: float | None = None


class Receipt(Struct, frozen=True, gc=False, eq=False):
    """The server's answer to an enqueue: the job's id, what happened to it, and its durability (see durability.py)."""

    id: str
    status: Status
    durability: str = "memory"
    sighting: Sighting | None = None  # for a handle; no part of what the receipt says

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return (self.id, self.status, self.durability) == (other.id, other.status, other.durability)

    def __hash__(self) -> int:
        return hash((self.id, self.status, self.durability))

    def __repr__(self) -> str:
        return f"Receipt(id={self.id!r}, status={self.status!r}, durability={self.durability!r})"


class Limits(Struct, frozen=True):
    """How often a job may fail, stall or snooze, and how long it waits between attempts (seconds)."""

    max_failures: int = defaults.MAX_FAILURES
    max_stalls: int = defaults.MAX_STALLS
    min_backoff: float = defaults.MIN_BACKOFF_MS / 1000
    max_backoff: float = defaults.MAX_BACKOFF_MS / 1000
    max_snoozes: int = defaults.MAX_SNOOZES


class Lease(Redacted, frozen=True, gc=False):
    """The right to work on one job until it is settled or the lease ends.

    `fence` is a fencing token: a later lease on the same job has a greater one. Pass it on to the storage that the job
    writes to, so that a worker that wakes up late cannot overwrite a newer attempt.
    """

    queue: str
    id: str
    data: bytes
    fence: int
    priority: int = defaults.PRIORITY
    failures: int = 0
    stalls: int = 0
    limits: Limits = Limits()
    holder: str | None = None
    marks: int = 0
    extras: Extras = NO_EXTRAS

    def json(self) -> Any:
        """The payload, read as JSON."""
        return read_json(self.data)

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags."""
        return self.extras.tags

    @property
    def snoozes(self) -> int:
        """How many attempts have put the job off with `Snooze`."""
        return self.extras.snoozes

    @property
    def suspect(self) -> bool:
        """Whether the job ran in a process that died, and may have killed it: it is run alone."""
        return bool(self.marks & SUSPECT)

    @property
    def is_failure_job(self) -> bool:
        """Whether this is a failure job, for a failure handler: its data is the layout's record of the failed job."""
        return bool(self.marks & FAILURE_JOB)

    @property
    def limited(self) -> bool:
        """Whether the job has limits of its own."""
        return bool(self.marks & LIMITED)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. Attempts that were snoozed or released do not count."""
        return self.failures + self.stalls + 1


class JobRecord(Redacted, frozen=True):
    """Everything the server knows about one job. In a failure job, `failed` is the job that failed.

    `marks` are bits, as in `Lease`.
    """

    queue: str
    id: str
    state: State
    data: bytes
    priority: int = defaults.PRIORITY
    run_at: float | None = None
    failures: int = 0
    stalls: int = 0
    limits: Limits = Limits()
    extras: Extras = NO_EXTRAS
    progress: float | None = None
    holder: str | None = None
    fence: int | None = None
    cancelled: bool = False
    reason: str | None = None
    message: str | None = None
    died_at: float | None = None
    failed: JobRecord | None = None
    marks: int = 0

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags."""
        return self.extras.tags

    @property
    def snoozes(self) -> int:
        """How many attempts have put the job off with `Snooze`."""
        return self.extras.snoozes

    @property
    def expires_at(self) -> float | None:
        """When the job expires if no attempt has started by then, in seconds since 1970."""
        return self.extras.expires / 1000 if self.extras.expires else None

    def json(self) -> Any:
        """The payload, read as JSON."""
        return read_json(self.data)

    @property
    def task(self) -> str | None:
        """The name of the job's task. `None` for a payload that is not a task's."""
        call = _read_call(self.data)
        return None if call is None else call.task

    @property
    def arguments(self) -> dict[str, Any] | list[Any] | None:
        """The arguments of the task, by name, or by position if another program wrote them so. `None` as for `task`."""
        call = _read_call(self.data)
        return None if call is None else call.args

    def error(self) -> JobFailed:
        """The error of a dead job."""
        return failure(self.queue, self.id, self.reason, self.message or "")


class _Call(Struct):
    """What the payload of a task's job says (see tasks/envelope.py)."""

    task: str
    args: dict[str, Any] | list[Any] = {}


_decode_call = msgspec.json.Decoder(_Call).decode


def _read_call(data: bytes) -> _Call | None:
    try:
        return _decode_call(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


class Page(Struct, frozen=True):
    """One page of jobs, and the cursor for the next page (`None` after the last)."""

    jobs: tuple[JobRecord, ...]
    cursor: str | None


class TagCounts(Struct, frozen=True):
    """How many waiting and running jobs have each tag. Not `complete` if the queue has more jobs than were searched."""

    jobs: dict[str, int]
    complete: bool


class Counts(Struct, frozen=True):
    """How many jobs there are in each state, at one moment.

    `inbox` counts payloads pushed by other programs and not yet taken in. `parked` counts the scheduled jobs that wait
    for a worker that knows their task. `outbox` counts jobs to be sent to other queues. `dropped` counts the dead jobs
    dropped because of `max_dead` since the last purge of dead jobs.
    """

    ready: int
    scheduled: int
    blocked: int
    running: int
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
        """How many jobs are still to be run."""
        return self.ready + self.scheduled + self.blocked + self.inbox


class Result(Redacted, frozen=True):
    """The kept result of a finished job: its return value as JSON, or its error message. `reason` as in `JobRecord`."""

    succeeded: bool
    data: bytes
    reason: str | None = None


class Cleaned(Struct, frozen=True):
    """The result of a clean: how many jobs were put back from lost holders."""

    recovered: int
