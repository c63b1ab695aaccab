"""`Job`: the running job, as its task's function sees it."""

from __future__ import annotations

from typing import Protocol

from windlass.errors import InvalidOption
from windlass.tasks.call import TaskCall
from windlass.values.job import Lease
from windlass.values.outcome import HandOver
from windlass.values.validation import check_progress

MAX_HAND_OVERS = 1000  # handed over by one job: they are added in one atomic step, which must be short
MAX_HAND_OVER_BYTES = 8 * 1024 * 1024  # the same, for large payloads


class JobServices(Protocol):
    """What running jobs use of their worker. All jobs of a process share one."""

    def is_cancelled(self, lease: Lease) -> bool:
        """Whether a job was cancelled or has lost its lease."""
        ...

    def progress(self, lease: Lease, value: float) -> None:
        """Send the job's progress, without waiting."""
        ...

    async def aprogress(self, lease: Lease, value: float) -> bool:
        """Send the job's progress. False if it was cancelled or has lost its lease."""
        ...

    def prepare(self, lease: Lease, call: TaskCall) -> HandOver:
        """Check a call that the job hands over."""
        ...


class Job:
    """The running job. A task's function gets it through a parameter `job: Job = current()`.

    Without `services` it has no worker: for tests that call a task's function directly.
    """

    __slots__ = ("__weakref__", "_handed_over", "_lease", "_services", "_task", "hand_overs", "raised")

    raised: BaseException | None  # the error that ended the attempt, for the log of this process; else not set

    def __init__(self, lease: Lease, task: str | None = None, services: JobServices | None = None) -> None:
        self._lease = lease
        self._task = task
        self._services = services
        self.hand_overs: tuple[HandOver, ...] = ()
        self._handed_over = 0

    def progress(self, value: float) -> bool:
        """Report progress, from 0 to 1, without waiting for the server. False if the job was cancelled: then stop.

        Values reported in quick succession are sent as one, the last.
        """
        check_progress(value)
        if self._services is not None:
            self._services.progress(self._lease, float(value))
        return not self.cancelled

    async def aprogress(self, value: float) -> bool:
        """Report progress and wait for the server. False if the job was cancelled or lost its lease: then stop."""
        check_progress(value)
        return await self._services.aprogress(self._lease, float(value)) if self._services is not None else True

    def enqueue(self, call: TaskCall) -> str:
        """Hand over a job: `job.enqueue(other.call(…))`. It is added in the atomic step that completes this job.

        Returns its id. If this attempt fails or is lost, nothing is added. Raises `InvalidOption` beyond 1,000 jobs or
        8 MiB, and `UnsupportedByLayout`.
        """
        if self._services is None:
            raise InvalidOption("this job has no worker, so it cannot hand over a job: run it in a worker")
        handed = self._services.prepare(self._lease, call)
        size = self._handed_over + len(handed.job.data)
        if len(self.hand_overs) >= MAX_HAND_OVERS or size > MAX_HAND_OVER_BYTES:
            raise InvalidOption(
                f"a job can hand over {MAX_HAND_OVERS:,} jobs and {MAX_HAND_OVER_BYTES:,} bytes at most: hand over "
                "jobs that add the rest, or use app.enqueue_many, which adds jobs at once"
            )
        self._handed_over = size
        self.hand_overs += (handed,)
        return handed.job.id

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or has lost its lease. In a thread, check this now and then and return."""
        return self._services is not None and self._services.is_cancelled(self._lease)

    def __repr__(self) -> str:
        return f"<Job {self.id!r} of queue {self.queue!r}, attempt {self.attempt}>"

    @property
    def lease(self) -> Lease:
        """The lease of this attempt."""
        return self._lease

    @property
    def task(self) -> str | None:
        """The name of the task; `None` for a handler's job."""
        return self._task

    @property
    def id(self) -> str:
        """The job's id."""
        return self._lease.id

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._lease.queue

    @property
    def data(self) -> bytes:
        """The raw payload."""
        return self._lease.data

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. Attempts that were snoozed or released do not count."""
        return self._lease.attempt

    @property
    def failures(self) -> int:
        """How many attempts have failed."""
        return self._lease.failures

    @property
    def stalls(self) -> int:
        """How many attempts crashed or lost their lease."""
        return self._lease.stalls

    @property
    def snoozes(self) -> int:
        """How many attempts have put the job off with `Snooze`."""
        return self._lease.snoozes

    @property
    def priority(self) -> int:
        """The priority, from 0 (first) to 9 (last)."""
        return self._lease.priority

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags."""
        return self._lease.tags

    @property
    def fence(self) -> int:
        """A fencing token. It rises with each lease: pass it on to the storage that the job writes to."""
        return self._lease.fence
