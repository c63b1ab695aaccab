"""The job that is running, as its own function sees it."""

from __future__ import annotations

from typing import Protocol

from windlass.errors import InvalidOption
from windlass.tasks.call import TaskCall
from windlass.values.job import Lease
from windlass.values.outcome import Child
from windlass.values.validation import check_progress

MOST_CHILDREN = 1000  # of one job: they arrive in one step, which must be a short one
MOST_BYTES = 8 * 1024 * 1024


class JobServices(Protocol):
    """How running jobs reach the world outside: one for all jobs of a process."""

    def is_cancelled(self, lease: Lease) -> bool:
        """Whether a job was told to stop, or has lost its lease."""
        ...

    def progress(self, lease: Lease, value: float) -> None:
        """Pass on how far it is, without waiting."""
        ...

    async def aprogress(self, lease: Lease, value: float) -> bool:
        """Pass on how far it is, and learn whether the job is still ours."""
        ...

    def prepare(self, lease: Lease, call: TaskCall) -> Child:
        """Check a call that the job wants to hand over."""
        ...


class Job:
    """A running job: what it is, how often it was tried, and what it may do.

    Without `services` it stands alone, for tests that call a task's function directly.
    """

    __slots__ = ("__weakref__", "_handed_over", "_lease", "_services", "_task", "children")

    def __init__(self, lease: Lease, task: str | None = None, services: JobServices | None = None) -> None:
        self._lease = lease
        self._task = task
        self._services = services
        self.children: tuple[Child, ...] = ()
        self._handed_over = 0

    def progress(self, value: float) -> bool:
        """Say how far the job is, 0 to 1, without waiting for the server. False when it was cancelled: stop then.

        The last value counts; many in a short time are sent as one.
        """
        check_progress(value)
        if self._services is not None:
            self._services.progress(self._lease, float(value))
        return not self.cancelled

    async def aprogress(self, value: float) -> bool:
        """Say how far the job is, and wait until the server knows. False when it was cancelled or lost: stop then."""
        check_progress(value)
        return await self._services.aprogress(self._lease, float(value)) if self._services is not None else True

    def enqueue(self, call: TaskCall) -> str:
        """Hand a job over, `job.enqueue(other.call(…))`: it is added in the step that completes this one, or never.

        Returns its id. If this attempt fails or is lost, nothing was added, and the next attempt begins anew.
        """
        if self._services is None:
            raise InvalidOption("this job stands alone, without a worker: nothing can be handed over")
        child = self._services.prepare(self._lease, call)
        size = self._handed_over + len(child.job.data)
        if len(self.children) >= MOST_CHILDREN or size > MOST_BYTES:
            raise InvalidOption(
                f"a job can hand over {MOST_CHILDREN:,} jobs and {MOST_BYTES:,} bytes at most: hand over jobs that do "
                "the rest, or use app.enqueue_many, which does not wait for the end of this one"
            )
        self._handed_over = size
        self.children += (child,)
        return child.job.id

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, or has lost its lease. A thread cannot be stopped: look here now and then."""
        return self._services is not None and self._services.is_cancelled(self._lease)

    def __repr__(self) -> str:
        return f"<Job {self.id!r} of queue {self.queue!r}, attempt {self.attempt}>"

    @property
    def lease(self) -> Lease:
        """The lease under which it runs."""
        return self._lease

    @property
    def task(self) -> str | None:
        """The name of its task; `None` for a raw job."""
        return self._task

    @property
    def id(self) -> str:
        """Its id."""
        return self._lease.id

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._lease.queue

    @property
    def data(self) -> bytes:
        """Its payload, as it lies in the server."""
        return self._lease.data

    @property
    def attempt(self) -> int:
        """1 for the first try."""
        return self._lease.attempt

    @property
    def failures(self) -> int:
        """How often it failed before."""
        return self._lease.failures

    @property
    def stalls(self) -> int:
        """How often its worker was lost before."""
        return self._lease.stalls

    @property
    def priority(self) -> int:
        """0 first, 9 last."""
        return self._lease.priority

    @property
    def fence(self) -> int:
        """A number that only rises: give it to whatever the job writes to."""
        return self._lease.fence
