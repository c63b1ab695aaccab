"""A program's last reading of a queue's clock, which its next call sends as evidence (see lua/shared/clock.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from windlass.storage.formats import EVIDENCE
from windlass.values.boot_clock import MACHINE, uptime_ms


class _Reading(NamedTuple):
    """A reading of the queue's clock, and its time on our own clock. Immutable, because threads share it."""

    now: int = 0
    frame: int = 0
    due: int = 0
    belief: int = 0
    at: float = 0.0

    def elapsed_ms(self, at: float) -> int:
        """Milliseconds since the reading; 0 without one."""
        return int((at - self.at) * 1000) if self.at else 0


class ClockView:
    """The last reading of the clock: `now frame due belief epoch step`, of which the first four matter here."""

    __slots__ = ("_reading",)

    def __init__(self) -> None:
        self._reading = _Reading()

    def record(self, reading: Sequence[int], *, new_epoch: bool) -> None:
        """Store a reading. `new_epoch`: the queue was deleted and created again since the last one.

        A slow reply may carry an older reading than the last one, so within a frame and belief the later value stays.
        """
        at = monotonic()
        now, frame, due, belief = reading[:4]
        if not new_epoch:
            known = self._reading
            elapsed = known.elapsed_ms(at)
            if frame == known.frame:
                now = max(now, known.now + elapsed)
            if belief == known.belief:
                due = max(due, known.due + elapsed)
        self._reading = _Reading(now, frame, due, belief, at)

    def times(self) -> tuple[int, int]:
        """Lower bounds of the queue's `due` (run times) and `now` (leases)."""
        known = self._reading
        elapsed = known.elapsed_ms(monotonic())
        return known.due + elapsed, known.now + elapsed

    def evidence(self) -> bytes:
        """Pack the lower bounds of the clock and this machine's uptime for the script."""
        now, frame, due, belief, _ = known = self._reading
        elapsed = known.elapsed_ms(monotonic())
        return EVIDENCE.pack(now + elapsed, frame, due + elapsed, belief, uptime_ms()) + MACHINE.encode()
