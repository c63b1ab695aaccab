"""How an attempt at a job ended. Plain values: a layout records them, a worker only returns them.

They are tagged, so that a child process can send one to its runner as JSON.
"""

from __future__ import annotations

from msgspec import Struct

from windlass.values.job import Lease, NewJob
from windlass.values.redacted import Redacted


class Kept(Redacted, frozen=True):
    """What is to be kept of a finished job, and for how many milliseconds."""

    data: bytes
    ms: int


class Child(Struct, frozen=True):
    """A job that a finished job hands over to a queue."""

    queue: str
    job: NewJob


class Completed(Struct, frozen=True, tag=True, gc=False):
    """Done: the job leaves the queue. Nothing stays behind but what it hands over, and a result if one is asked for."""

    lease: Lease
    result: Kept | None = None
    children: tuple[Child, ...] = ()


class Released(Struct, frozen=True, tag=True):
    """Not started, or given up without fault: back to the front of the queue, nothing is charged."""

    lease: Lease


class Retried(Struct, frozen=True, tag=True):
    """Failed, and to be tried again: behind its equals, at once or at a time (as in `NewJob.when`)."""

    lease: Lease
    when: tuple[str, int] | None = None
    message: str = ""


class Failed(Struct, frozen=True, tag=True):
    """Failed for good: the job is kept among the dead."""

    lease: Lease
    message: str = ""
    keep_ms: int = 0


class Crashed(Struct, frozen=True, tag=True):
    """The process died. `alone`: this job did it and is charged; else it is one of several suspects, run alone next."""

    lease: Lease
    message: str
    alone: bool
    allowed: int = -1  # crashes that the task allows, for a job that has no limits of its own
    keep_ms: int = 0


class Broken(Struct, frozen=True, tag=True):
    """The payload cannot be decoded: kept, with the reason, among the broken.

    `worker_specific`: another worker, with other code or keys, may be able to decode it.
    """

    lease: Lease
    message: str
    worker_specific: bool = False


class Unknown(Struct, frozen=True, tag=True):
    """Nobody here knows the task: put aside, uncharged, for a worker that does."""

    lease: Lease
    task: str


class Unhandled(Struct, frozen=True, tag=True):
    """A caught failure that no handler here wants: the job it tells of lands among the dead."""

    lease: Lease


Outcome = Completed | Released | Retried | Failed | Crashed | Broken | Unknown | Unhandled
