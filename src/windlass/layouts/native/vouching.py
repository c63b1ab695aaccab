"""What a program has heard of a queue's clock, and so can vouch for in its next call (see lua/shared/clock.lua)."""

from __future__ import annotations

from time import monotonic

from windlass.machine import MACHINE, uptime_ms


class Heard:
    """The clock as last heard. Its reading says `now frame due belief epoch step`; the first four matter here."""

    __slots__ = ("_at", "_belief", "_due", "_frame", "_now")

    def __init__(self) -> None:
        self._now = self._frame = self._due = self._belief = 0
        self._at = 0.0

    def hear(self, reading: list[bytes], *, anew: bool) -> None:
        """Take a reading; `anew`: it is of another queue than before.

        An answer that was long under way says less than an earlier one: what we know better is kept, while it counts.
        """
        at = monotonic()
        now, frame, due, belief = int(reading[0]), int(reading[1]), int(reading[2]), int(reading[3])
        if not anew:
            passed = self._passed(at)
            if frame == self._frame:
                now = max(now, self._now + passed)
            if belief == self._belief:
                due = max(due, self._due + passed)
        self._now, self._frame, self._due, self._belief, self._at = now, frame, due, belief, at

    def times(self) -> tuple[int, int]:
        """What it must read by now at least: for run times, and for leases."""
        passed = self._passed(monotonic())
        return self._due + passed, self._now + passed

    def vouch(self) -> str:
        """What the clock must read by now at least, and this machine's own uptime."""
        if not self._at:
            return f"0 0 0 0 {MACHINE} {uptime_ms()}"
        passed = self._passed(monotonic())
        return f"{self._now + passed} {self._frame} {self._due + passed} {self._belief} {MACHINE} {uptime_ms()}"

    def _passed(self, at: float) -> int:
        return int((at - self._at) * 1000) if self._at else 0
