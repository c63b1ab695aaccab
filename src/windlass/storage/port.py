"""The port: what a queue can ask of a layout, and the calls that a layout answers with.

A layout does no I/O. It turns a request into a `Call` (a script, its keys and arguments, and how to read the
reply); a transport sends it. So the same text serves blocking and asyncio programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha1
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from msgspec import Struct

from windlass.values.job import Change, Counts, JobRecord, Lease, Limits, NewJob, Page, Result, State, Status
from windlass.values.outcome import Broken, Outcome, Unknown
from windlass.values.redacted import Redacted
from windlass.values.schedule import Fired, StoredSchedule, StoredSchedules

T = TypeVar("T")
Argument = bytes | str | int


@dataclass(frozen=True)
class Script:
    """One constant Lua text."""

    name: str
    text: str = field(repr=False)
    keys: tuple[str, ...] = field(default=(), repr=False)  # names of the queue's keys that it gets, in order
    sha: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The server names scripts by SHA-1; nothing here depends on its strength.
        object.__setattr__(self, "sha", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


class Call(Redacted, Generic[T], frozen=True):
    """One request to the server: one script, run atomically, on the keys of one queue.

    A call that `writes` is an operation: the transport puts a caller and a number in front of its arguments, by
    which the server recognises a repeat. `undo` gives the call that takes back what nobody waited for any more: a lease
    whose caller was cancelled must not stay with a holder that never heard of it.
    """

    hidden: ClassVar[tuple[str, ...]] = ("args",)

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    read: Callable[[Any], T]
    writes: bool
    about: str
    undo: Callable[[T], Call[Any] | None] | None = None
    operation: tuple[str, int] | None = None  # a caller and number of its own, instead of its connection's
    when_repeated: tuple[Argument, ...] = ()  # put behind the arguments of every try but the first
    meanwhile: Callable[[], object] | None = None  # done while the server is at work on it, at each try


class Capability(StrEnum):
    """What a layout may be able to do, in words for people."""

    BYTES = "payloads of any bytes"
    ORDER = "first in, first out"
    FRONT = "the front for what was abandoned"
    PLACE = "its old place for what comes back"
    IDS = "ids of your own"
    UPDATE = "changing a job by its id"
    SINGLETON = "one job of an id at a time"
    PRIORITY = "priorities"
    RUN_TIME = "run times and delays"
    LIMITS = "limits of failures and stalls"
    CANCEL = "cancelling a job that waits"
    CANCEL_RUNNING = "cancelling a job that runs"
    PROGRESS = "progress"
    DEAD = "keeping jobs that failed for good"
    BROKEN = "keeping jobs that cannot be decoded"
    FAILURE_HANDLERS = "failure handlers"
    RESULTS = "results and events"
    HAND_OVER = "jobs handed over on completion"
    SCHEDULES = "schedules"
    PAUSE = "pausing"
    CLUSTER = "Redis Cluster"


class Turn(Struct, frozen=True):
    """What one turn brought: which outcomes were still ours to settle, the new leases, and when to look again.

    `idle_for` is the time in seconds after which something happens by itself (a run time, the end of a lease), and
    `tick_in` the same for a schedule. `outbox` counts the jobs that wait to be sent to other queues. `lost` says that
    nothing was leased, because the holder is not known (any more). `waiting` counts those who were registered to be
    woken when the turn began, as far as the layout knows. `refused` are leases whose payload was damaged, or does not
    bear the seal that it should: they must not be run, and are settled as they stand here. `returned` counts the broken
    jobs that went back to the queue because it keeps `max_broken` already; `dropped` counts the oldest dead jobs that
    were dropped because there were more than `max_dead`.
    """

    settled: tuple[bool, ...]
    leases: tuple[Lease, ...]
    idle_for: float | None
    recovered: int
    outbox: int = 0
    tick_in: float | None = None
    lost: bool = False
    waiting: int = 0
    refused: tuple[Broken | Unknown, ...] = ()
    returned: int = 0
    dropped: int = 0


class Beat(Struct, frozen=True):
    """The answer to a sign of life: whether the holder is (still) known, and how many jobs of unknown tasks wait."""

    known: bool
    parked: int


class AuditStep(NamedTuple):
    """What one step of an audit found: where to go on, how much is amiss and was mended, and some of that by name."""

    cursor: bytes | None
    mended: int
    amiss: int
    jobs: int  # that were looked at
    examples: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Self:
        """From the reply of a script: next cursor or "0", jobs, amiss, mended, kinds and ids in turn."""
        cursor, jobs, amiss, mended, named = reply
        words = [word.decode(errors="replace") for word in named]
        return cls(
            None if cursor == b"0" else cursor,
            int(mended),
            int(amiss),
            int(jobs),
            tuple(zip(words[::2], words[1::2], strict=True)),
        )


class Parcel(Redacted, frozen=True):
    """A job in the outbox of a queue, on its way to another."""

    seq: int
    queue: str
    id: str
    data: bytes
    change: bytes


class ScheduleBook(Protocol):
    """Where a queue keeps its schedules."""

    def named(self, names: Sequence[str]) -> Call[StoredSchedules]:
        """Those of these names that there are."""
        ...

    def page(self, cursor: str | None) -> Call[StoredSchedules]:
        """Some of all schedules."""
        ...

    def due(self, declared: Sequence[str], cursor: str | None) -> Call[StoredSchedules]:
        """Some of those that are due: added ones, and of the declared ones these."""
        ...

    def put(
        self, name: str, present: bytes | None, record: bytes, next_tick: int | None, *, keep_tick: bool
    ) -> Call[bool]:
        """Write one, if `present` is still its record; with `keep_tick` a next tick that is known stays."""
        ...

    def delete(self, name: str) -> Call[bool]:
        """Take one away."""
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
        """Enqueue the jobs of a schedule's ticks and set the next tick, if all is still as it was read at `now`."""
        ...


class Layout(Protocol):
    """How one queue lies in the server, and the atomic steps on it."""

    name: str
    queue: str
    can: frozenset[Capability]
    heartbeat: float | None  # seconds after which its peers call a silent worker lost, where they say so
    largest_turn: int  # jobs that one turn settles, and that it leases, at most: the server does nothing else meanwhile
    rewinds: int  # how often the server was found to have forgotten something that it had said before
    schedules: ScheduleBook | None

    @property
    def peek(self) -> tuple[str, ...] | None:
        """A command that blocks until there may be work and takes nothing; the seconds are put behind it.

        For layouts whose peers push jobs and tell nobody.
        """
        ...

    def check(self, job: NewJob) -> None:
        """Refuse a job that asks for what the layout cannot do."""
        ...

    def id_of(self, job: NewJob) -> str:
        """What a job is called once it is there: its id, or what stands for one in this layout."""
        ...

    def enqueue(self, jobs: Sequence[NewJob]) -> Call[list[Status | None]]:
        """Put jobs on the queue; a status for each, `None` where a job that must exist does not."""
        ...

    def turn(
        self,
        outcomes: Sequence[Outcome] = (),
        *,
        want: int = 0,
        seconds: float = 0,
        holder: str | None = None,
        waiter: str | None = None,
        registered: bool = False,
    ) -> Call[Turn]:
        """Settle outcomes, sweep, promote and lease: one round trip. `registered`: lease only to a known holder."""
        ...

    def extend(self, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        """Give leases more time, counted from now."""
        ...

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        """A holder's sign of life. With a `failure_handler`, jobs that fail for good become jobs for a failure
        handler."""
        ...

    def held(self, holder: str, after: str | None, limit: int) -> Call[Page]:
        """Some of the jobs that a holder has, behind a cursor."""
        ...

    def unpark(self, tasks: Sequence[str]) -> Call[int]:
        """Give out jobs of these tasks that were put aside; how many."""
        ...

    def outbox(self, limit: int, sent: Sequence[int] = (), after: int = 0) -> Call[list[Parcel]]:
        """Take off what was sent, and read what is still to be sent to other queues, behind a sequence."""
        ...

    def forward(self, source: str, parcels: Sequence[Parcel]) -> Call[int]:
        """Take in jobs from the outbox of another queue, each once."""
        ...

    def revive(self, ids: Sequence[str]) -> Call[list[bool]]:
        """Bring dead or broken jobs back."""
        ...

    def watch(self, id: str, seconds: float) -> Call[bool]:
        """Have the events of a job published."""
        ...

    def result(self, id: str) -> Call[Result | None]:
        """What a finished job left behind, if it was kept."""
        ...

    def progress(self, lease: Lease, value: float) -> Call[bool]:
        """Record how far a job has come."""
        ...

    def cancel(self, ids: Sequence[str], *, running: bool) -> Call[list[bool]]:
        """Take waiting jobs away, and tell those who run them if asked to."""
        ...

    def pause(self, paused: bool) -> Call[bool]:
        """Stop or resume giving out jobs."""
        ...

    def purge(self, state: State | None) -> Call[tuple[int, int]]:
        """Delete the jobs of a state, or the queue; (deleted, left)."""
        ...

    def audit(self, part: str, cursor: str | bytes, *, repair: bool = True) -> Call[AuditStep]:
        """One bounded step through one part: what does not fit is told, and mended or left alone."""
        ...

    audit_parts: tuple[str, ...]  # in the order in which they are to be mended
    leftover_parts: tuple[str, ...]  # where nothing can be amiss, but things gather that a deep clean takes away

    def probe(self) -> Call[float | None] | None:
        """In how many seconds a turn may find something to do, asked at little cost: 0 now, `None` if nothing is known.

        There is no such call where only a turn can tell.
        """
        ...

    def leave(self, waiter: str) -> Call[bool]:
        """Take a waiter off the list of the idle."""
        ...

    def farewell(self, callers: Sequence[str], lossy: Sequence[str] = ()) -> Call[bool] | None:
        """The program ends: forget its callers, waiters and idle holders. `None` when there is nothing to say.

        A try of a call on a `lossy` caller may still arrive, so that one is remembered for a while.
        """
        ...

    def retire(self, holder: str) -> Call[bool]:
        """Forget a holder that holds nothing any more."""
        ...

    def forget_names(self) -> None:
        """After a fork: the waiters and holders of the parent are not ours to take back."""
        ...

    def counts(self) -> Call[Counts]:
        """How many jobs there are in each state."""
        ...

    def failure(self, lease: Lease) -> JobRecord:
        """The job whose failure was caught, from a lease that is `caught`."""
        ...

    def get(self, id: str) -> Call[JobRecord | None]:
        """Everything about one job."""
        ...

    def page(self, state: State, cursor: str | None, limit: int) -> Call[Page]:
        """Some jobs of one state, in their order."""
        ...

    def wake_channel(self, waiter: str) -> str:
        """Where an idle waiter listens."""
        ...

    def cancel_channel(self, holder: str) -> str:
        """Where a holder hears of running jobs that were cancelled: the queue, a space, the id."""
        ...

    @property
    def peer_cancel_channel(self) -> str | None:
        """Where peers of another make say what they cancelled, if they do."""
        ...

    def obey_cancel(self, holder: str, message: bytes) -> Call[bool]:
        """What was said there: what this holder runs of it is cancelled."""
        ...

    def event_channel(self, id: str) -> str:
        """Where the events of a watched job are published."""
        ...
