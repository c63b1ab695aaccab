"""What all executors have in common: slots, jobs that wait for one, and the end of an attempt.

An executor drives each attempt on the runner's loop: awaits a coroutine, a thread, or the answer of a child process. To
make a task costs more than a short job does, so jobs that never wait share one; any other has its task for itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from enum import Enum, auto
from time import monotonic
from types import coroutine
from typing import Any

from windlass.tasks.context import Job, JobServices
from windlass.values.job import Lease
from windlass.values.outcome import Failed, Outcome, Released, Retried
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.ipc.slot_table import SlotTable


class Stop(Enum):
    """Why a running attempt is stopped from outside."""

    TIMEOUT = auto()
    CANCELLED = auto()
    SHUTDOWN = auto()
    LOST = auto()


class Attempt:
    """One attempt that is being made."""

    __slots__ = ("alarm", "began", "job", "key", "plan", "slot", "stop", "task")

    def __init__(self, plan: Plan, slot: int, services: JobServices, began: float, task: asyncio.Task[None]) -> None:
        self.plan = plan
        self.key = key_of(plan.lease)
        self.slot = slot
        self.job = Job(plan.lease, plan.task, services)
        self.stop: Stop | None = None
        self.task = task
        self.alarm: asyncio.TimerHandle | None = None
        self.began = began


Key = tuple[str, int]  # queue and fence: two servers of a cluster may give out the same fence


def key_of(lease: Lease) -> Key:
    """By what a running attempt is found."""
    return (lease.queue, lease.fence)


log = logging.getLogger("windlass.worker")
Finished = Callable[[Attempt, Outcome | None], None]
WORTH = 0.02  # seconds of work that are fetched ahead
MOST_EACH, MOST_AHEAD = 64, 1600  # jobs that are, however short: for each slot, and for all of them
STUCK = 0.5  # seconds without a free slot after which nothing is kept waiting for one
LONG = 1.0  # seconds: how much longer a job takes says nothing about the next
LONGEST_ROW = 0.001  # seconds for which jobs that never wait may keep the loop from others
MOST_ROWS = 8  # that are about to begin, in one turn of the loop


class Executor:
    """Slots for one way of running. `finished` gets each attempt with its outcome, None if there is nothing to say."""

    def __init__(self, slots: range, slot_table: SlotTable, services: JobServices, finished: Finished) -> None:
        self.most = self.limit = len(slots)
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # a job must not see what an earlier one has set
        self._slot_table = slot_table
        self._services = services
        self._finished = finished
        self._free = list(reversed(slots))
        self._standby: deque[Plan] = deque()
        self._handed = 0  # jobs that wait as well, already where they will be run
        self.running: dict[Key, Attempt] = {}
        self._typical = LONG  # seconds that a job takes, as of late
        self._moved_at = 0.0  # when a job last began or ended here
        self._was_full = False
        self._rows = 0  # tasks that are about to start what waits

    # -- how much it can take --------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more jobs are worth having here: free slots, and for very short jobs some that wait their turn."""
        return self.limit + self._ahead() - len(self.running) - self.waiting

    @property
    def waiting(self) -> int:
        """How many jobs wait for their turn."""
        return len(self._standby) + self._handed

    def has_work_for(self, seconds: float) -> bool:
        """Whether so many jobs wait here that no slot will be idle before."""
        return self.waiting * self._typical > self.limit * seconds

    def _ahead(self) -> int:
        return min(MOST_AHEAD, self.limit * min(MOST_EACH, int(WORTH / max(self._typical, 1e-6))))

    @property
    def idle(self) -> bool:
        """Nothing runs here and nothing waits."""
        return not self.running and not self.waiting

    # -- running ---------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> None:
        """Run it as soon as a slot is free."""
        self._standby.append(plan)
        if not self._rows:
            self._start_row()

    def was_full(self) -> bool:
        """Whether all slots were in use at some time since this was last asked."""
        was, self._was_full = self._was_full, len(self.running) >= self.limit
        return was

    def _start_row(self) -> None:
        if self._rows < min(MOST_ROWS, len(self._standby), self.limit - len(self.running)):
            self._rows += 1
            # Not by the loop's own factory: one that begins tasks at once would begin the next job within this one.
            asyncio.Task(self._run_row(), loop=self._loop, context=self._context.copy())

    async def _run_row(self) -> None:
        """Start what waits, one after the other, in this one task for as long as each ends in its first step.

        The first that has to wait keeps the task for itself, as a job does that began alone. Two more rows go on then,
        so that a hundred such are under way within a few turns of the loop.
        """
        waiting = None
        try:
            waiting = await self._first_steps()
        finally:
            self._rows -= 1
            self._start_row()
            self._start_row()
        if waiting is not None:
            await _rest_of(*waiting)

    async def _first_steps(self) -> tuple[Coroutine[Any, Any, None], Any] | None:
        """The first of those that wait that did not end in its first step, and what it waits for."""
        task = asyncio.current_task()
        assert task is not None
        pause_at = monotonic() + LONGEST_ROW
        while self._standby and self._free and len(self.running) < self.limit:
            one = self._start(self._standby.popleft(), task)
            driving = self._drive(one)
            try:
                return driving, driving.send(None)
            except StopIteration:
                pass
            if task.cancelling() or self._is_marked():
                return None  # it left something behind that is not for the next
            if monotonic() > pause_at:
                await asyncio.sleep(0)  # others want the loop as well
                pause_at = monotonic() + LONGEST_ROW
        return None

    def _is_marked(self) -> bool:
        """Whether a job has changed the context of this task."""
        try:
            return copy_context() != self._context
        except Exception:  # values that will not be compared
            return True

    def _start(self, plan: Plan, task: asyncio.Task[None]) -> Attempt:
        slot = self._free.pop()  # the one that was used last: its child is warm
        began = self._moved_at = monotonic()
        one = Attempt(plan, slot, self._services, began, task)
        started, timeout, running = int(began * 1000), plan.timeout, self.running
        self._slot_table.begin(slot, plan.lease.fence, started + round(timeout * 1000) if timeout else 0, started)
        running[one.key] = one
        if len(running) >= self.limit:
            self._was_full = True
        return one

    async def _drive(self, one: Attempt) -> None:
        try:
            outcome = await self._run(one)
        except asyncio.CancelledError:
            outcome = self._stopped(one)
        except BaseException as error:  # not the job's own: those are outcomes already
            log.exception("%s: it could not be run", one.plan.title)
            outcome = attempt.fall_back(one.plan, attempt.describe(error))
        if one.stop is Stop.SHUTDOWN and isinstance(outcome, Retried | Failed):
            outcome = Released(one.plan.lease)  # whatever it made of being stopped, it was not its fault
        self._end(one, outcome)

    def _run(self, one: Attempt) -> Awaitable[Outcome | None]:
        raise NotImplementedError

    def _stopped(self, one: Attempt) -> Outcome | None:
        """What an attempt that was stopped comes to."""
        plan = one.plan
        match one.stop:
            case Stop.TIMEOUT:
                return attempt.fall_back(plan, f"timed out after {plan.timeout:g} s")
            case Stop.CANCELLED | Stop.SHUTDOWN:
                return Released(plan.lease)  # a cancelled job does not come back, however it ends
            case Stop.LOST:
                return None
        return attempt.fall_back(plan, "CancelledError: the job cancelled itself")

    def _end(self, one: Attempt, outcome: Outcome | None) -> None:
        if one.alarm is not None:
            self._disarm(one.alarm, one, outcome)
        self._slot_table.end(one.slot)
        del self.running[one.key]
        self._free.append(one.slot)
        now = self._moved_at = monotonic()
        self._typical += 0.1 * (min(LONG, now - one.began) - self._typical)
        self._finished(one, outcome)
        if self._standby and not self._rows:
            self._start_row()

    def _disarm(self, alarm: asyncio.TimerHandle, one: Attempt, outcome: Outcome | None) -> None:
        """One that had a time limit has ended."""
        alarm.cancel()

    def set_limit(self, limit: int) -> None:
        """How many may run at a time, from now on."""
        self.limit = limit
        self._start_row()

    # -- stopping --------------------------------------------------------------------------------

    def stop(self, key: Key, why: Stop) -> bool:
        """Stop one attempt; false if it is not here."""
        one = self.running.get(key)
        if one is None:
            return False
        one.stop = one.stop or why
        self._interrupt(one)
        return True

    def _interrupt(self, one: Attempt) -> None:
        one.task.cancel()

    def begun(self, queue: str, id: str | None = None) -> list[Key]:
        """The attempts that are being made at jobs of a queue, or at one job."""
        leases = [one.plan.lease for one in self.running.values()]
        return [key_of(lease) for lease in leases if lease.queue == queue and id in (None, lease.id)]

    def give_up(self, queue: str, id: str) -> Plan | None:
        """Take one job off those that wait; None if it is not among them."""
        for plan in self._standby:
            if plan.lease.queue == queue and plan.lease.id == id:
                self._standby.remove(plan)
                return plan
        return None

    def give_up_standby(self, queue: str | None = None, fence: int | None = None) -> list[Plan]:
        """What was not started yet, all of it or of one queue or fence, to be given back."""
        waiting = [
            plan for plan in self._standby if queue in (None, plan.lease.queue) and fence in (None, plan.lease.fence)
        ]
        for plan in waiting:
            self._standby.remove(plan)
        return waiting

    def give_up_surplus(self) -> list[Plan]:
        """What was not started yet and is more than there is room for, but for one; the last that came."""
        return [self._standby.pop() for _ in range(min(len(self._standby), -self.room - 1))]

    def give_up_stuck(self) -> list[Plan]:
        """What waits for a slot though none has become free for long: others may have a place for it.

        It was fetched because jobs were short; until they are again, nothing is.
        """
        silence = monotonic() - self._moved_at
        if not self._standby or len(self.running) < self.limit or silence < STUCK:
            return []
        self._typical = max(self._typical, min(LONG, silence))
        return [self._standby.pop() for _ in range(min(len(self._standby), -self.room))]

    def close(self) -> None:
        """Let go of what runs the jobs; nothing more will come."""


@coroutine
def _rest_of(driving: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Await a coroutine that has taken its first step, and waits for something."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = driving.throw(error)
            else:
                waits_for = driving.send(sent)
    except StopIteration:
        pass
