"""The port: the methods that every layout implements, and the calls they return.

A layout does no I/O. It turns a request into a `Call`: a script, its keys and arguments, and a function that reads the
reply. A transport sends the call, so blocking and asyncio programs share one layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha1
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from msgspec import Struct

from windlass.values.ending import Remains
from windlass.values.job import Change, Counts, JobRecord, Lease, Limits, NewJob, Page, Sighting, State, Status
from windlass.values.outcome import Broken, Outcome, UnknownTask
from windlass.values.redacted import Redacted
from windlass.values.schedule import Fired, StoredSchedule, StoredSchedules

T = TypeVar("T")
Argument = bytes | str | int


@dataclass(frozen=True)
class Script:
    """One Lua script with a constant text."""

    name: str
    text: str = field(repr=False)
    keys: tuple[str, ...] = field(default=(), repr=False)  # names of the queue's keys that it uses, in order
    sha: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The server identifies scripts by SHA-1; security does not depend on it.
        object.__setattr__(self, "sha", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


class Call(Redacted, Generic[T], frozen=True):
    """One request to the server: one script, run atomically, on the keys of one queue.

    A call that `writes` is an operation: the transport puts a caller and a number in front of its arguments, so that
    the server recognises a retry. `undo` returns the call that reverts the result if its caller was cancelled:
    otherwise a lease would stay with a holder that never received it.
    """

    hidden: ClassVar[tuple[str, ...]] = ("args",)

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    read: Callable[[Any], T]
    writes: bool
    about: str
    undo: Callable[[T], Call[Any] | None] | None = None
    operation: tuple[str, int] | None = None  # caller and number, if they are not those of the connection
    when_repeated: tuple[Argument, ...] = ()  # appended to the arguments of every try but the first
    when_in_order: tuple[Argument, ...] = ()  # appended if no earlier request of the caller may still arrive
    meanwhile: Callable[[], object] | None = None  # runs at each try while the server executes the script


class Capability(StrEnum):
    """A feature that not every layout supports, in words for error messages and `windlass layouts`."""

    BYTES = "payloads of any bytes"
    ORDER = "first in, first out"
    FRONT = "returning an abandoned job to the front"
    PLACE = "keeping a returned job's position"
    IDS = "job ids of your own"
    UPDATE = "updating a job by its id"
    SINGLETON = "one job per id at a time"
    PRIORITY = "priorities"
    RUN_TIME = "run times and delays"
    LIMITS = "limits for failures and stalls"
    CANCEL = "cancelling a waiting job"
    CANCEL_RUNNING = "cancelling a running job"
    PROGRESS = "progress"
    DEAD = "keeping jobs that failed for good"
    BROKEN = "keeping jobs that cannot be decoded"
    FAILURE_HANDLERS = "failure handlers"
    RESULTS = "results and events"
    TAGS = "tags"
    EXPIRES = "expiring jobs"
    MAX_SNOOZES = "counting snoozes"
    HAND_OVER = "jobs handed over on completion"
    SCHEDULES = "schedules"
    PAUSE = "pausing"
    PIPELINE = "adding a job with the commands of a program's own pipeline"
    CLUSTER = "Redis Cluster"


class Enqueued(NamedTuple):
    """The result of an enqueue: a status for each job, `None` for a job that must exist but does not."""

    statuses: list[Status | None]
    sighting: Sighting | None  # None: the layout cannot tell later how a job ended


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """What a turn leases: up to `want` jobs, for `seconds`, to `holder`. The default leases nothing.

    `waiter` is registered to be woken if there is no job. With `only_if_registered`, nothing is leased to a holder that
    the server does not know (any more). Parked jobs of the tasks `claims` are leased first.
    """

    want: int = 0
    seconds: float = 0
    holder: str | None = None
    waiter: str | None = None
    only_if_registered: bool = False
    claims: tuple[str, ...] = ()


NO_LEASES = LeaseRequest()


class Turn(Struct, frozen=True):
    """The result of one turn (settle + lease in one step): which outcomes were accepted, and the new leases.

    `next_work_in` is the time in seconds until the next run time or end of a lease, `tick_in` until the next tick of a
    schedule. `swept` counts the jobs that the sweep took back from lost holders, `outbox` jobs to be sent to other
    queues. `lost`: the holder is not known (any more), so nothing was leased. `waiting` counts the registered waiters
    when the turn began, as far as the layout knows. `undecodable` are leases with a damaged payload or a wrong seal:
    they must not run, and are settled as they are. `broken_over_limit` counts the broken jobs that were released
    because the queue already has `max_broken`. `dropped` counts the oldest dead jobs that were dropped because there
    were more than `max_dead`. `expired` has the ids of the jobs that were dropped because they expired before their
    first attempt. `more`: the turn stopped at one of its limits, so the next one may find jobs at once. `claimed_all`:
    no parked job of the claimed tasks is left. `parked` counts the parked jobs when the turn began.
    """

    settled: tuple[bool, ...]
    leases: tuple[Lease, ...]
    next_work_in: float | None
    swept: int
    outbox: int = 0
    tick_in: float | None = None
    lost: bool = False
    waiting: int = 0
    undecodable: tuple[Broken | UnknownTask, ...] = ()
    broken_over_limit: int = 0
    dropped: int = 0
    expired: tuple[str, ...] = ()
    more: bool = False
    claimed_all: bool = False
    parked: int = 0


class Beat(Struct, frozen=True):
    """The answer to a heartbeat: whether the holder is (still) known, and the number of parked jobs."""

    known: bool
    parked: int


class AuditBatch(NamedTuple):
    """The result of one audit call: where to continue, the problems and repairs, and some problems by name."""

    cursor: bytes | None
    repaired: int
    problems: int
    jobs: int  # checked in this batch
    examples: tuple[tuple[str, str], ...]  # kind of the problem, id

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Self:
        """Read the reply of a script: next cursor or "0", jobs, problems, repaired, kind and id of each example."""
        cursor, jobs, problems, repaired, named = reply
        words = [word.decode(errors="replace") for word in named]
        return cls(
            None if cursor == b"0" else cursor,
            int(repaired),
            int(problems),
            int(jobs),
            tuple(zip(words[::2], words[1::2], strict=True)),
        )


class Parcel(Redacted, frozen=True):
    """A job in the outbox of a queue, to be sent to another queue."""

    seq: int
    queue: str
    id: str
    data: bytes
    change: bytes


class ScheduleBook(Protocol):
    """The stored schedules of a queue."""

    def named(self, names: Sequence[str]) -> Call[StoredSchedules]:
        """Read the schedules with these names, as far as they exist."""
        ...

    def page(self, cursor: str | None) -> Call[StoredSchedules]:
        """Read one page of all schedules."""
        ...

    def due(self, declared: Sequence[str], cursor: str | None) -> Call[StoredSchedules]:
        """Read one page of the due schedules: added ones, and declared ones only with these names."""
        ...

    def put(
        self, name: str, present: bytes | None, record: bytes, next_tick: int | None, *, keep_tick: bool
    ) -> Call[bool]:
        """Write a schedule, if `present` is still its record. `keep_tick` keeps a next tick that is already set."""
        ...

    def delete(self, name: str) -> Call[bool]:
        """Delete a schedule."""
        ...

    def fire(
        self,
        row: StoredSchedule,
        now: int,
        next_tick: int,
        jobs: Sequence[tuple[str, Change]],
        data: bytes,
        *,
        last_tick: int | None,
        missed: int,
        dropped: int,
    ) -> Call[Fired]:
        """Enqueue the jobs of a schedule's ticks and set the next tick, if nothing changed since the read at `now`."""
        ...


class Layout(Protocol):
    """The keys of one queue in the server, and the atomic steps on them."""

    name: str
    queue: str
    can: frozenset[Capability]
    heartbeat: float | None  # seconds after which peers of another system declare a silent worker lost, if they do
    largest_turn: int  # maximum of jobs that one turn settles, and leases: the server does nothing else meanwhile
    data_losses: int  # how often the server had lost writes that it had confirmed before
    schedules: ScheduleBook | None  # None if the layout has no schedules

    @property
    def peek(self) -> tuple[str, ...] | None:
        """A command that blocks until there may be work and takes nothing; the caller appends the seconds.

        For layouts whose peers push jobs without an announcement.
        """
        ...

    def check(self, job: NewJob) -> None:
        """Raise `UnsupportedByLayout` for a job with options that the layout does not support."""
        ...

    def id_of(self, job: NewJob) -> str:
        """The id of a job in the queue: its own id, or the one that this layout derives from the data."""
        ...

    def enqueue(self, jobs: Sequence[NewJob]) -> Call[Enqueued]:
        """Put jobs on the queue."""
        ...

    def push(self, job: NewJob) -> list[tuple[Argument, ...]]:
        """The plain commands that add a job, for a pipeline that a program sends itself."""
        ...

    def turn(self, outcomes: Sequence[Outcome] = (), request: LeaseRequest = NO_LEASES) -> Call[Turn]:
        """Settle outcomes, sweep, promote and lease in one step."""
        ...

    def extend(self, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        """Extend leases, counted from now. Returns for each whether it is still valid."""
        ...

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        """Extend all leases of a holder. `failure_handler` has the limits of failure jobs, if the holder runs them."""
        ...

    def held(self, holder: str, after: str | None, limit: int) -> Call[Page]:
        """Read one page of the jobs that a holder has."""
        ...

    def unpark(self, tasks: Sequence[str]) -> Call[int]:
        """Make the parked jobs of these tasks ready. Returns how many."""
        ...

    def outbox(self, limit: int, sent: Sequence[int] = (), after: int = 0) -> Call[list[Parcel]]:
        """Remove the sent jobs from the outbox and read the next ones, after a sequence."""
        ...

    def forward(self, source: str, parcels: Sequence[Parcel]) -> Call[int]:
        """Take in jobs from the outbox of another queue, each once. Returns how many were new."""
        ...

    def revive(self, ids: Sequence[str]) -> Call[list[bool]]:
        """Make dead or broken jobs ready again."""
        ...

    def watch(self, id: str, seconds: float) -> Call[Sighting | None]:
        """Publish the events of a job for a while. They are published from the sighting on."""
        ...

    def remains(self, id: str) -> Call[Remains]:
        """Read what a finished job left: its result if it was kept, and what tells how it ended."""
        ...

    def progress(self, lease: Lease, value: float) -> Call[bool]:
        """Record the progress of a job. Returns whether the lease is still valid."""
        ...

    def cancel(self, ids: Sequence[str], *, running: bool) -> Call[list[bool]]:
        """Remove waiting jobs and, with `running`, cancel running ones."""
        ...

    def pause(self, paused: bool) -> Call[bool]:
        """Pause or resume the queue. Returns whether that changed it."""
        ...

    def purge(self, state: State | None) -> Call[tuple[int, int]]:
        """Delete jobs of a state, or of the whole queue. Returns (deleted, remaining)."""
        ...

    def audit(self, part: str, cursor: str | bytes, *, repair: bool = True) -> Call[AuditBatch]:
        """Check a bounded number of entries of one part, and repair or only report the problems."""
        ...

    audit_parts: tuple[str, ...]  # in the order in which they must be repaired
    leftover_parts: tuple[str, ...]  # parts without inconsistencies, in which a repair drops expired entries

    def probe(self) -> Call[float | None] | None:
        """Ask cheaply in how many seconds a turn may find work: 0 now, `None` unknown.

        Returns no call if only a turn can tell.
        """
        ...

    def unregister_waiter(self, waiter: str) -> Call[bool]:
        """Remove a registered waiter."""
        ...

    def unregister(self, callers: Sequence[str], may_arrive_late: Sequence[str] = ()) -> Call[bool] | None:
        """Delete the callers, waiters and idle holders of a program that ends. `None` if it has none.

        A call of a `may_arrive_late` caller may still arrive, so the server remembers that caller for a while.
        """
        ...

    def unregister_holder(self, holder: str) -> Call[bool]:
        """Delete a registered holder that holds nothing any more."""
        ...

    def forget_names(self) -> None:
        """Forget the waiters and holders after a fork: they belong to the parent."""
        ...

    def counts(self) -> Call[Counts]:
        """Count the jobs of each state."""
        ...

    def failure(self, lease: Lease) -> JobRecord:
        """The job that failed, from the lease of a failure job."""
        ...

    def get(self, id: str) -> Call[JobRecord | None]:
        """Read everything about one job."""
        ...

    def page(self, state: State, cursor: str | None, limit: int, tag: str | None = None) -> Call[Page]:
        """Read one page of the jobs of a state, in their order; with a tag, those that have it among the next ones."""
        ...

    def tags(self, cursor: bytes) -> Call[tuple[bytes, dict[str, int]]]:
        """Count the tags of some jobs. Returns the cursor of the next step, `b"0"` after the last."""
        ...

    def wake_channel(self, waiter: str) -> str:
        """The channel on which an idle waiter is woken."""
        ...

    @property
    def parked_channel(self) -> str | None:
        """The channel with the tasks of jobs that workers park, if the layout parks jobs."""
        ...

    def cancel_channel(self, holder: str) -> str:
        """The channel with the cancelled running jobs of a holder: the queue, a space, the id."""
        ...

    @property
    def peer_cancel_channel(self) -> str | None:
        """The channel on which peers of another system publish cancellations, if they do."""
        ...

    def obey_cancel(self, holder: str, message: bytes) -> Call[bool]:
        """Cancel the runs of this holder that a message on `peer_cancel_channel` names."""
        ...

    def event_channel(self, id: str) -> str:
        """The channel with the events of a watched job."""
        ...
