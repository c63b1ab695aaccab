"""The outcomes of one queue that wait for the next turn.

If the layout has no run times, an outcome with a delay waits here first, and its lease is kept alive meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import time

from windlass.storage.port import Capability, Layout
from windlass.values.outcome import Broken, Completed, Crashed, Outcome, Retried, Snoozed, UnknownTask

MAX_HAND_OVERS_PER_TURN = 1000  # keeps the script of one turn at a few milliseconds
MAX_TURN_BYTES = (
    8 * 1024 * 1024
)  # hand-overs and results in one turn: larger requests delay other clients of the server
MAX_DELAYED = 1000  # leased jobs that wait here for their retry: bounds memory, and what a dead worker leaves behind
FOREIGN_DELAY_S = 30.0  # a job that this program cannot run waits, so that a worker that can run it may take it


class PendingOutcomes:
    """Outcomes to settle, in the order of their arrival. Calls `notify` when a turn has something to send."""

    def __init__(self, layout: Layout, notify: Callable[[], None]) -> None:
        self._can = layout.can
        self._largest_turn = layout.largest_turn
        self._notify = notify
        self._ready: list[Outcome] = []
        self._delays_here = Capability.RUN_TIME not in layout.can
        self._draining = False
        self._delayed: dict[asyncio.TimerHandle, Outcome] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, outcome: Outcome) -> None:
        """Send an outcome with the next turn, or after its delay."""
        if self._delays_here:
            wait_s = 0.0 if self._draining else _delay_of(outcome, self._can)
            outcome = Retried(outcome.lease, None, outcome.message) if isinstance(outcome, Retried) else outcome
            if wait_s > 0:
                self._delay(outcome, wait_s)
                return
        self._ready.append(outcome)
        self._notify()

    def _delay(self, outcome: Outcome, wait_s: float) -> None:
        def send_now() -> None:
            self._ready.append(self._delayed.pop(timer))
            self._notify()

        timer = asyncio.get_running_loop().call_later(wait_s, send_now)
        self._delayed[timer] = outcome

    def end_delays(self) -> None:
        """Send delayed outcomes at once, now and from now on: the worker is stopping, and its peers take the jobs."""
        self._draining = True
        for timer in list(self._delayed):
            timer.cancel()
            self._ready.append(self._delayed.pop(timer))

    @property
    def too_many_delayed(self) -> bool:
        """Whether too many outcomes are delayed here to lease more jobs."""
        return len(self._delayed) >= MAX_DELAYED

    def take(self) -> list[Outcome]:
        """Remove and return as many outcomes as fit into one turn."""
        count = _count_that_fits(self._ready, self._largest_turn)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def send_again(self, sent: Sequence[Outcome]) -> None:
        """Send outcomes again, because their turn failed. Fences make a repeat harmless if the turn was applied."""
        self._ready = [*sent, *self._ready]


def _delay_of(outcome: Outcome, can: frozenset[Capability]) -> float:
    """Return for how many seconds an outcome must wait here before it is sent."""
    match outcome:
        case Retried(when=(kind, ms)) | Snoozed(when=(kind, ms)):
            return ms / 1000 - (time() if kind == "at" else 0)
        case Crashed(delay_ms=ms):
            return ms / 1000
        case UnknownTask() | Broken():
            return 0.0 if Capability.BROKEN in can else FOREIGN_DELAY_S
    return 0.0


def _count_that_fits(outcomes: list[Outcome], most: int) -> int:
    """Return how many outcomes fit into one turn, by their number, their hand-overs and their bytes."""
    hand_overs = size = 0
    for count, outcome in enumerate(outcomes[:most]):
        if not isinstance(outcome, Completed) or not (outcome.hand_overs or outcome.result):
            continue
        if outcome.hand_overs:
            hand_overs += len(outcome.hand_overs)
            size += sum(len(each.job.data) for each in outcome.hand_overs)
        size += len(outcome.result.data) if outcome.result else 0
        if count and (hand_overs > MAX_HAND_OVERS_PER_TURN or size > MAX_TURN_BYTES):
            return count
    return min(len(outcomes), most)
