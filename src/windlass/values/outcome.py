"""The outcomes of an attempt. A worker returns one, and the layout records it.

They are tagged, so that a child process can send one to its runner as JSON.
"""

from __future__ import annotations

from msgspec import Struct

from windlass.values.job import Lease, NewJob
from windlass.values.redacted import Redacted


class Kept(Redacted, frozen=True, gc=False):
    """The result to keep of a finished job, and for how many milliseconds."""

    data: bytes
    ms: int


class HandOver(Struct, frozen=True):
    """A job that a completed job hands over to a queue."""

    queue: str
    job: NewJob


class Completed(Struct, frozen=True, tag=True, gc=False):
    """Done. The job leaves the queue; the jobs that it hands over are added, and its result is kept if there is one."""

    lease: Lease
    result: Kept | None = None
    hand_overs: tuple[HandOver, ...] = ()


class Released(Struct, frozen=True, tag=True):
    """Not run, or stopped early: back to the front of the queue, without counting a failure."""

    lease: Lease


class Retried(Struct, frozen=True, tag=True):
    """Failed, to be retried at once or at a time (as in `Change.when`), behind the jobs of its priority."""

    lease: Lease
    when: tuple[str, int] | None = None
    message: str = ""


class Snoozed(Struct, frozen=True, tag=True):
    """Put off by the job itself: it runs again at a time (as in `Change.when`). Counted, but not as a failure."""

    lease: Lease
    when: tuple[str, int]
    message: str = ""


class Failed(Struct, frozen=True, tag=True):
    """Failed for good: the job becomes dead."""

    lease: Lease
    message: str = ""
    keep_ms: int = 0


class Crashed(Struct, frozen=True, tag=True):
    """The process died. `is_cause`: this job is the cause, is charged, and runs again after `delay_ms`.

    Else it is a suspect, and runs alone next, at once.
    """

    lease: Lease
    message: str
    is_cause: bool
    task_max_stalls: int = -1  # max_stalls of the task, for a job without limits of its own
    keep_ms: int = 0
    delay_ms: int = 0


class Broken(Struct, frozen=True, tag=True):
    """The payload cannot be decoded: the job becomes broken, with the reason.

    `worker_specific`: a worker with other code or keys may be able to decode it.
    """

    lease: Lease
    message: str
    worker_specific: bool = False


class UnknownTask(Struct, frozen=True, tag="unknown"):
    """This worker does not know the task: the job is parked, without a failure, for a worker that does."""

    lease: Lease
    task: str


class NoFailureHandler(Struct, frozen=True, tag="unhandled"):
    """A failure job for which this worker has no failure handler: the failed job becomes dead."""

    lease: Lease


Outcome = Completed | Released | Retried | Snoozed | Failed | Crashed | Broken | UnknownTask | NoFailureHandler


def name_of(outcome: Outcome) -> str:
    """The word for an outcome in log lines: "completed", …, "unknown" (its task), "unhandled" (its failure)."""
    return str(outcome.__struct_config__.tag).lower()
