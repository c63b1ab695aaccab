"""The kills: a child, then the runner, then the whole worker, each while it runs jobs; and the recovery after each.

The demo stops a process first (SIGSTOP), reads in the ledger which jobs it runs, and only then kills it. So every kill
hits running jobs, and the demo knows which.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from windlass.ops.attached_worker import send_signal
from windlass.ops.demo.tally import STEPS, Attempt, Tally
from windlass.ops.demo.worker_process import WorkerProcess, await_gone

CHILD, RUNNER, WORKER = "a child", "the runner", "the whole worker"
KILL_AT = {CHILD: 0.15, RUNNER: 0.4, WORKER: 0.65}  # the share of all steps that is done then
BUSY_TIMEOUT_S = 1.0  # after which a kill no longer waits until runner and child both run jobs
STOP_DELAY_S = 0.005  # until SIGSTOP has certainly stopped a process


@dataclass(frozen=True, slots=True)
class Kill:
    """Which processes were killed, when, and which jobs they ran."""

    whom: str
    pids: tuple[int, ...]
    """All processes that ended with it."""
    at: float
    under_way: tuple[Attempt, ...]

    def rerun(self, tally: Tally) -> list[float]:
        """Seconds until each interrupted job began again, for those that have begun."""
        waits = []
        for cut in self.under_way:
            again = [one.began for one in tally.by_job[cut.id] if one.began > self.at and one.kind is cut.kind]
            waits += [again[0] - self.at] if again else []
        return sorted(waits)

    def has_recovered(self, tally: Tally) -> bool:
        """Whether all interrupted jobs have begun again."""
        return len(self.rerun(tally)) == len(self.under_way)


class Killer:
    """Kills at the right moments: call `kill_if_due()` again and again."""

    def __init__(self, worker_process: WorkerProcess, tally: Tally, orders: int) -> None:
        self.done: list[Kill] = []
        self._worker_process = worker_process
        self._tally = tally
        self._orders = orders
        self._to_come = list(KILL_AT)
        self._due_since: float | None = None

    def kill_if_due(self) -> Kill | None:
        """Kill if it is time and the processes run jobs."""
        if not self._to_come or not self._is_due(self._to_come[0]):
            return None
        self._due_since = self._due_since or time.monotonic()
        whom = self._to_come[0]
        kill = {CHILD: self._kill_child, RUNNER: self._kill_runner, WORKER: self._kill_worker}[whom]()
        if kill is not None:
            if whom == WORKER:
                self._worker_process.reap()
            await_gone(kill.pids)
            self.done.append(kill)
            self._to_come.pop(0)
            self._due_since = None
        return kill

    def _is_due(self, whom: str) -> bool:
        """Not before the worker has recovered from the last kill."""
        if self._tally.steps_done < KILL_AT[whom] * len(STEPS) * self._orders:
            return False
        return all(kill.has_recovered(self._tally) for kill in self.done)

    def _kill_child(self) -> Kill | None:
        for pid in self._worker_process.forked[1:]:
            with _stopped([pid]):
                if under_way := self._under_way([pid]):
                    return _kill(CHILD, [pid], under_way)
        return None

    def _kill_runner(self) -> Kill | None:
        forked = self._worker_process.forked
        with _stopped(forked[:1]):
            if not self._are_busy(forked):
                return None
            # Its children end with it.
            return _kill(RUNNER, forked[:1], self._under_way(forked), with_it=forked[1:])

    def _kill_worker(self) -> Kill | None:
        with (
            _stopped(self._worker_process.all[:2]),
            _stopped(processes := self._worker_process.all),
        ):  # supervisor and forkserver first: they start processes
            if not self._are_busy(processes[2:]):
                return None
            return _kill(WORKER, processes, self._under_way(processes))

    def _are_busy(self, forked: list[int]) -> bool:
        runner, children = self._under_way(forked[:1]), self._under_way(forked[1:])
        waited = time.monotonic() - (self._due_since or 0.0)
        return bool(runner and children) or (waited > BUSY_TIMEOUT_S and bool(runner or children))

    def _under_way(self, pids: list[int]) -> list[Attempt]:
        self._tally.read()
        return self._tally.open_in(pids)


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    send_signal(signal.SIGSTOP, pids)
    try:
        time.sleep(STOP_DELAY_S)
        yield
    finally:
        send_signal(signal.SIGCONT, pids)  # has no effect on killed processes


def _kill(whom: str, pids: list[int], under_way: list[Attempt], *, with_it: list[int] | None = None) -> Kill:
    at = time.monotonic()
    send_signal(signal.SIGKILL, pids)
    return Kill(whom, (*pids, *(with_it or ())), at, tuple(under_way))
