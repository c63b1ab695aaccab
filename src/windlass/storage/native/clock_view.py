"""What a program has heard of a queue's clock, and so can vouch for in its next call (see lua/shared/clock.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from time import monotonic
from typing import NamedTuple

from windlass.values.machine import MACHINE, uptime_ms

_WITNESS = Struct(">QIQIQ")  # as in clock.lua


class _Reading(NamedTuple):
    """What was heard, and when by our own clock. Never changed, only replaced: threads share it."""

    now: int = 0
    frame: int = 0
    due: int = 0
    belief: int = 0
    at: float = 0.0

    def passed(self, at: float) -> int:
        """Milliseconds from then until now."""
        return int((at - self.at) * 1000) if self.at else 0


class ClockView:
    """The clock as last heard. Its reading says `now frame due belief epoch step`; the first four matter here."""

    __slots__ = ("_reading",)

    def __init__(self) -> None:
        self._reading = _Reading()

    def hear(self, reading: Sequence[int], *, anew: bool) -> None:
        """Take a reading; `anew`: it is of another queue than before.

        An answer that was long under way says less than an earlier one: what we know better is kept, while it counts.
        """
        at = monotonic()
        now, frame, due, belief = reading[:4]
        if not anew:
            known = self._reading
            passed = known.passed(at)
            if frame == known.frame:
                now = max(now, known.now + passed)
            if belief == known.belief:
                due = max(due, known.due + passed)
        self._reading = _Reading(now, frame, due, belief, at)

    def times(self) -> tuple[int, int]:
        """What it must read by now at least: for run times, and for leases."""
        known = self._reading
        passed = known.passed(monotonic())
        return known.due + passed, known.now + passed

    def evidence(self) -> bytes:
        """What the clock must read by now at least, and this machine's own uptime."""
        now, frame, due, belief, _ = known = self._reading
        passed = known.passed(monotonic())
        return _WITNESS.pack(now + passed, frame, due + passed, belief, uptime_ms()) + MACHINE.encode()
