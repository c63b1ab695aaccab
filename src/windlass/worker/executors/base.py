"""The base of all executors: slots, jobs that wait for a slot, and the end of an attempt.

An executor drives each attempt on the runner's event loop: it awaits a coroutine, a thread, or the answer of a child
process. `task_starters.py` starts the jobs that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from enum import Enum, auto
from time import monotonic
from typing import Any

from windlass.tasks.context import Job, JobServices
from windlass.tasks.log_fields import running_job
from windlass.values.job import Lease
from windlass.values.outcome import Failed, Outcome, Released, Retried
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors.task_starters import Driving, make_starter
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.tracebacks import describe


class Stop(Enum):
    """Why the worker stops a running attempt."""

    TIMEOUT = auto()
    CANCELLED = auto()
    SHUTDOWN = auto()
    ABANDONED = auto()  # its lease was lost, or it does not stop when the worker ends: another worker may have the job


class Attempt:
    """A running attempt."""

    __slots__ = ("alarm", "began", "job", "key", "plan", "slot", "stop", "task")

    def __init__(self, plan: Plan, slot: int, services: JobServices, began: float) -> None:
        self.plan = plan
        self.key = key_of(plan.lease)
        self.slot = slot
        self.job = Job(plan.lease, plan.task, services)
        self.stop: Stop | None = None
        self.task: asyncio.Task[Any] | None = None  # set when the attempt takes its first step
        self.alarm: asyncio.TimerHandle | None = None
        self.began = began


Key = tuple[str, int]  # queue and fence: two servers of a cluster may give out the same fence


def key_of(lease: Lease) -> Key:
    """Return the key under which a running attempt is found."""
    return (lease.queue, lease.fence)


log = logging.getLogger("windlass.worker")
Finished = Callable[[Attempt, Outcome | None], None]
LEASE_AHEAD_S = 0.02  # work leased ahead: covers a few round trips to the server
MAX_AHEAD_PER_SLOT = 64  # jobs leased ahead, however short: other workers need some too
MAX_AHEAD = 1600  # the same for all slots together: a dead worker must not hold thousands of jobs
STUCK_AFTER_S = 0.5  # without a free slot for this long, queued jobs go back: another worker may have a slot
MAX_TYPICAL_S = 1.0  # longer jobs count as this, so that one very long job does not hide many short ones


class Executor:
    """Runs jobs in one way, in its slots. Calls `finished` with each attempt and its outcome, None for a lost lease."""

    def __init__(self, slots: range, slot_table: SlotTable, services: JobServices, finished: Finished) -> None:
        self.capacity = self.limit = len(slots)
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # a clean context: a job must not see context variables of an earlier job
        self._context.run(running_job.set, None)  # as each attempt leaves it
        self._slot_table = slot_table
        self._services = services
        self._finished = finished
        self._free = list(reversed(slots))
        self._standby: deque[Plan] = deque()
        self._prefetched = 0  # jobs that wait in the prefetch of a child
        self.running: dict[Key, Attempt] = {}
        self._typical = MAX_TYPICAL_S  # moving average of a job's duration, in seconds
        self._changed_at = 0.0  # when a job last began or ended here
        self._was_full = False
        self._starter = make_starter(self._loop, self._context, self._startable, self._start_next)

    # -- how much it can take --------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more jobs to lease: one for each free slot, and some to wait ahead if jobs are very short."""
        return self.limit + self._max_ahead() - len(self.running) - self.waiting

    @property
    def waiting(self) -> int:
        """How many jobs wait for a slot."""
        return len(self._standby) + self._prefetched

    def has_work_for(self, seconds: float) -> bool:
        """Return whether the waiting jobs keep all slots busy for so many seconds."""
        return self.waiting * self._typical > self.limit * seconds

    def _max_ahead(self) -> int:
        return min(MAX_AHEAD, self.limit * min(MAX_AHEAD_PER_SLOT, int(LEASE_AHEAD_S / max(self._typical, 1e-6))))

    @property
    def idle(self) -> bool:
        """Nothing runs here and nothing waits."""
        return not self.running and not self.waiting

    # -- running ---------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> None:
        """Run the job as soon as a slot is free."""
        self._standby.append(plan)
        self._starter.wake()

    def was_full(self) -> bool:
        """Return whether all slots were in use at any time since the last call."""
        was, self._was_full = self._was_full, len(self.running) >= self.limit
        return was

    def _startable(self) -> int:
        """How many waiting jobs can start now. More jobs than the limit may run: the limit can shrink."""
        return max(0, min(len(self._standby), self.limit - len(self.running)))

    def _start_next(self) -> Driving | None:
        """Take a slot for the next waiting job. Returns the coroutine that drives it; None if no job can start."""
        if self._standby and self._free and len(self.running) < self.limit:
            return self._drive(self._start(self._standby.popleft()))
        return None

    def _start(self, plan: Plan) -> Attempt:
        slot = self._free.pop()  # the most recently used slot: its child process is warm
        began = self._changed_at = monotonic()
        one = Attempt(plan, slot, self._services, began)
        started, timeout, running = int(began * 1000), plan.timeout, self.running
        self._slot_table.begin(slot, plan.lease.fence, started + round(timeout * 1000) if timeout else 0, started)
        running[one.key] = one
        if len(running) >= self.limit:
            self._was_full = True
        return one

    async def _drive(self, one: Attempt) -> None:
        one.task = asyncio.current_task()
        try:
            outcome = await self._run(one)
        except asyncio.CancelledError:
            outcome = self._stop_outcome(one)
        except BaseException as error:  # a bug in the executor: errors of the job are outcomes already
            log.exception("%s: could not be run", one.plan.title)
            outcome = attempt.retry_or_fail(one.plan, describe(error))
        if one.stop is Stop.SHUTDOWN and isinstance(outcome, Retried | Failed):
            outcome = Released(one.plan.lease)  # the shutdown caused the failure, so the job is not charged
        self._end(one, outcome)

    def _run(self, one: Attempt) -> Awaitable[Outcome | None]:
        raise NotImplementedError

    def _stop_outcome(self, one: Attempt) -> Outcome | None:
        """Return the outcome of an attempt that was stopped."""
        plan = one.plan
        match one.stop:
            case Stop.TIMEOUT:
                return attempt.retry_or_fail(plan, f"timed out after {plan.timeout:g} s")
            case Stop.CANCELLED | Stop.SHUTDOWN:
                return Released(plan.lease)  # the server drops a cancelled job whatever its outcome
            case Stop.ABANDONED:
                return None
        return attempt.retry_or_fail(plan, "CancelledError: the job cancelled itself")

    def _end(self, one: Attempt, outcome: Outcome | None) -> None:
        if one.alarm is not None:
            self._after_timed_attempt(one.alarm, one, outcome)
        self._slot_table.end(one.slot)
        del self.running[one.key]
        self._free.append(one.slot)
        now = self._changed_at = monotonic()
        self._typical += 0.1 * (min(MAX_TYPICAL_S, now - one.began) - self._typical)
        self._finished(one, outcome)
        if self._standby:
            self._starter.wake()

    def _after_timed_attempt(self, alarm: asyncio.TimerHandle, one: Attempt, outcome: Outcome | None) -> None:
        """Called when an attempt with a time limit has ended."""
        alarm.cancel()

    def set_limit(self, limit: int) -> None:
        """Change how many jobs may run at a time."""
        self.limit = limit
        self._starter.wake()

    # -- stopping --------------------------------------------------------------------------------

    def stop(self, key: Key, why: Stop) -> bool:
        """Stop one attempt. Returns False if it does not run here."""
        one = self.running.get(key)
        if one is None:
            return False
        one.stop = one.stop or why
        self._interrupt(one)
        return True

    def _interrupt(self, one: Attempt) -> None:
        if one.task is not None:
            one.task.cancel()

    def running_keys(self, queue: str, id: str | None = None) -> list[Key]:
        """Return the keys of the running attempts at jobs of a queue, or at one job."""
        leases = [one.plan.lease for one in self.running.values()]
        return [key_of(lease) for lease in leases if lease.queue == queue and id in (None, lease.id)]

    def withdraw(self, queue: str, id: str) -> Plan | None:
        """Remove and return one waiting job; None if it does not wait here."""
        for plan in self._standby:
            if plan.lease.queue == queue and plan.lease.id == id:
                self._standby.remove(plan)
                return plan
        return None

    def withdraw_standby(self, queue: str | None = None, fence: int | None = None) -> list[Plan]:
        """Remove and return the waiting jobs, all or those of one queue or fence."""
        waiting = [
            plan for plan in self._standby if queue in (None, plan.lease.queue) and fence in (None, plan.lease.fence)
        ]
        for plan in waiting:
            self._standby.remove(plan)
        return waiting

    def withdraw_surplus(self) -> list[Plan]:
        """Remove and return the newest waiting jobs beyond `room`, except one."""
        return [self._standby.pop() for _ in range(min(len(self._standby), -self.room - 1))]

    def withdraw_stuck(self) -> list[Plan]:
        """Remove and return waiting jobs if no slot has freed up for STUCK_AFTER_S: another worker may have a slot.

        The average duration rises too, so no more jobs are leased ahead until jobs are short again.
        """
        quiet_s = monotonic() - self._changed_at
        if not self._standby or len(self.running) < self.limit or quiet_s < STUCK_AFTER_S:
            return []
        self._typical = max(self._typical, min(MAX_TYPICAL_S, quiet_s))
        return [self._standby.pop() for _ in range(min(len(self._standby), -self.room))]

    def close(self) -> None:
        """Release the threads or processes. No job may be submitted after this."""
