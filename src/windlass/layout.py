"""The port: what a queue can ask of a layout, and the calls that a layout answers with.

A layout does no I/O. It turns a request into a `Call` (a script, its keys and arguments, and how to read the
reply); a transport sends it. So the same text serves blocking and asyncio programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from windlass.job import Counts, JobRecord, Lease, Page, State, Status
from windlass.outcome import Outcome

T = TypeVar("T")
Argument = bytes | str | int


@dataclass(frozen=True)
class Script:
    """One constant Lua text."""

    name: str
    text: str = field(repr=False)
    sha: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The server names scripts by SHA-1; nothing here depends on its strength.
        object.__setattr__(self, "sha", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request to the server: one script, run atomically, on the keys of one queue.

    A call that `writes` is an operation: the transport puts a lane and a number in front of its arguments, by
    which the server recognises a repeat. `undo` gives the call that takes back what nobody waited for any more: a lease
    whose caller was cancelled must not stay with a holder that never heard of it.
    """

    script: Script
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    read: Callable[[Any], T]
    writes: bool
    about: str
    undo: Callable[[T], Call[Any] | None] | None = None


class Change(Struct, frozen=True):
    """What is asked for a job beside its data, and how to treat a job of the same id. Times are in milliseconds.

    `when` is `None` for now, or ("at", ms since 1970), or ("in", ms from the server's now). `update_run_at`
    is one of "never", "always", "later", "earlier".
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


PLAIN = Change()


class NewJob(Struct, frozen=True):
    """One job to be put on a queue. A `fresh` id was just made up, so no job can have it yet."""

    id: str
    data: bytes
    change: Change = PLAIN
    fresh: bool = False


class Turn(Struct, frozen=True):
    """What one turn brought: which outcomes were still ours to settle, the new leases, and when to look again.

    `idle_for` is the time in seconds after which something happens by itself (a run time, the end of a lease).
    """

    settled: tuple[bool, ...]
    leases: tuple[Lease, ...]
    idle_for: float | None
    recovered: int


class Layout(Protocol):
    """How one queue lies in the server, and the atomic steps on it."""

    name: str
    queue: str

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
    ) -> Call[Turn]:
        """Settle outcomes, sweep, promote and lease: one round trip."""
        ...

    def extend(self, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        """Give leases more time, counted from now."""
        ...

    def beat(self, holder: str, seconds: float, *, register: bool) -> Call[bool]:
        """A holder's sign of life; false when the holder is not known (any more)."""
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

    def audit(self, part: str, cursor: str) -> Call[tuple[str | None, int]]:
        """One step of a deep clean; (next cursor, things mended)."""
        ...

    audit_parts: tuple[str, ...]

    def leave(self, waiter: str) -> Call[bool]:
        """Take a waiter off the list of the idle."""
        ...

    def farewell(self, lanes: Sequence[str]) -> Call[bool] | None:
        """The program ends: forget its lanes, waiters and idle holders. `None` when there is nothing to say."""
        ...

    def forget_names(self) -> None:
        """After a fork: the waiters and holders of the parent are not ours to take back."""
        ...

    def counts(self) -> Call[Counts]:
        """How many jobs there are in each state."""
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
