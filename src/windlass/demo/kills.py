"""The kills: a child, then the runner, then the whole worker, each with its hands full; and how the work went on.

A victim is stopped first (SIGSTOP), then it is seen in the ledger what it is at, and only then it is killed: so every kill
hits jobs in the middle of their work, and it is known which.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from windlass.demo.crew import Crew, await_gone, send
from windlass.demo.ledger import What
from windlass.demo.tally import Attempt, Tally

CHILD, RUNNER, WORKER = "a child", "the runner", "the whole worker"
MOMENTS = {CHILD: 0.15, RUNNER: 0.4, WORKER: 0.65}  # parts of all thumbnails that are done by then
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

    def __init__(self, crew: Crew, tally: Tally, orders: int) -> None:
        self.done: list[Kill] = []
        self._crew = crew
        self._tally = tally
        self._orders = orders
        self._to_come = list(MOMENTS)

    def attempt(self) -> Kill | None:
        """Kill if it is time to, and somebody is in the middle of something."""
        if not self._to_come or not self._is_time(self._to_come[0]):
            return None
        kill = {CHILD: self._kill_child, RUNNER: self._kill_runner, WORKER: self._kill_worker}[self._to_come[0]]()
        if kill is not None:
            self.done.append(kill)
            self._to_come.pop(0)
        return kill

    def _is_time(self, whom: str) -> bool:
        """One after the other: what the last kill cut short is at work again."""
        if len(self._tally.done[What.THUMBNAIL]) < MOMENTS[whom] * self._orders:
            return False
        return all(kill.is_mended(self._tally) for kill in self.done)

    def _kill_child(self) -> Kill | None:
        for pid in self._crew.offspring[1:]:
            with _stopped([pid]):
                if under_way := self._under_way([pid]):
                    return _kill(CHILD, [pid], [pid], under_way)
        return None

    def _kill_runner(self) -> Kill | None:
        offspring = self._crew.offspring
        with _stopped(offspring[:1]):
            if under_way := self._under_way(offspring[:1]):
                # Its children end with it: nobody is left to whom they could tell what they have done.
                return _kill(RUNNER, offspring[:1], offspring, under_way + self._under_way(offspring[1:]))
        return None

    def _kill_worker(self) -> Kill | None:
        with _stopped(self._crew.all[:2]), _stopped(everybody := self._crew.all):  # first those that start others
            offspring = everybody[2:]
            if self._under_way(offspring[:1]) and self._under_way(offspring[1:]):
                kill = _kill(WORKER, everybody, everybody, self._under_way(offspring))
            else:
                return None
        self._crew.bury()
        return kill

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


def _kill(whom: str, pids: list[int], ended: list[int], under_way: list[Attempt]) -> Kill:
    at = time.monotonic()
    send(signal.SIGKILL, pids)
    await_gone(pids)
    return Kill(whom, tuple(ended), at, tuple(under_way))
