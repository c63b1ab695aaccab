"""The kills: a child, then the runner, then the whole worker, each with its hands full; and how the work went on.

A victim is stopped first (SIGSTOP), then the ledger tells what it is at, and only then it is killed: so every kill hits
jobs in the middle of their work, and it is known which.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from windlass.ops.demo.tally import STEPS, Attempt, Tally
from windlass.ops.demo.worker_process import WorkerProcess, await_gone, send

CHILD, RUNNER, WORKER = "a child", "the runner", "the whole worker"
MOMENTS = {CHILD: 0.15, RUNNER: 0.4, WORKER: 0.65}  # part of all that is to be done which is done by then
PATIENCE = 1.0  # seconds to wait for a moment in which both the runner and a child are at something
SETTLE = 0.005  # seconds until a process has certainly stopped


@dataclass(frozen=True, slots=True)
class Kill:
    """Who was killed, when, and what was being done there."""

    whom: str
    pids: tuple[int, ...]
    """All processes that ended by it."""
    at: float
    under_way: tuple[Attempt, ...]

    def rerun(self, tally: Tally) -> list[float]:
        """Seconds until each of the jobs that it cut short was begun again; shorter than `under_way` until all are."""
        waits = []
        for cut in self.under_way:
            again = [one.began for one in tally.by_job[cut.id] if one.began > self.at and one.what is cut.what]
            waits += [again[0] - self.at] if again else []
        return sorted(waits)

    def is_mended(self, tally: Tally) -> bool:
        """Whether all that it cut short was begun again."""
        return len(self.rerun(tally)) == len(self.under_way)


class Killer:
    """Kills when the time has come: `attempt()` is called again and again."""

    def __init__(self, worker_process: WorkerProcess, tally: Tally, orders: int) -> None:
        self.done: list[Kill] = []
        self._worker_process = worker_process
        self._tally = tally
        self._orders = orders
        self._to_come = list(MOMENTS)
        self._due_since: float | None = None

    def attempt(self) -> Kill | None:
        """Kill if it is time to, and somebody is in the middle of something."""
        if not self._to_come or not self._is_time(self._to_come[0]):
            return None
        self._due_since = self._due_since or time.monotonic()
        whom = self._to_come[0]
        kill = {CHILD: self._kill_child, RUNNER: self._kill_runner, WORKER: self._kill_worker}[whom]()
        if kill is not None:
            if whom == WORKER:
                self._worker_process.bury()
            await_gone(kill.pids)
            self.done.append(kill)
            self._to_come.pop(0)
            self._due_since = None
        return kill

    def _is_time(self, whom: str) -> bool:
        """One after the other: what the last kill cut short is at work again."""
        if self._tally.steps_done < MOMENTS[whom] * len(STEPS) * self._orders:
            return False
        return all(kill.is_mended(self._tally) for kill in self.done)

    def _kill_child(self) -> Kill | None:
        for pid in self._worker_process.forked[1:]:
            with _stopped([pid]):
                if under_way := self._under_way([pid]):
                    return _kill(CHILD, [pid], under_way)
        return None

    def _kill_runner(self) -> Kill | None:
        forked = self._worker_process.forked
        with _stopped(forked[:1]):
            if not self._is_worth_it(forked):
                return None
            # Its children end with it: nobody is left to whom they could tell what they have done.
            return _kill(RUNNER, forked[:1], self._under_way(forked), with_it=forked[1:])

    def _kill_worker(self) -> Kill | None:
        with (
            _stopped(self._worker_process.all[:2]),
            _stopped(everybody := self._worker_process.all),
        ):  # first those that start others
            if not self._is_worth_it(everybody[2:]):
                return None
            return _kill(WORKER, everybody, self._under_way(everybody))

    def _is_worth_it(self, forked: list[int]) -> bool:
        runner, children = self._under_way(forked[:1]), self._under_way(forked[1:])
        waited = time.monotonic() - (self._due_since or 0.0)
        return bool(runner and children) or (waited > PATIENCE and bool(runner or children))

    def _under_way(self, pids: list[int]) -> list[Attempt]:
        self._tally.read()
        return self._tally.open_in(pids)


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    send(signal.SIGSTOP, pids)
    try:
        time.sleep(SETTLE)
        yield
    finally:
        send(signal.SIGCONT, pids)  # without effect on those that were killed


def _kill(whom: str, pids: list[int], under_way: list[Attempt], *, with_it: list[int] | None = None) -> Kill:
    at = time.monotonic()
    send(signal.SIGKILL, pids)
    return Kill(whom, (*pids, *(with_it or ())), at, tuple(under_way))
