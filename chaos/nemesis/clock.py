"""Jumps of a server's wall clock; all other clocks run normally. See `chaos/clock.py`."""

from __future__ import annotations

from chaos.clock import ServerClock, shim
from chaos.nemesis.fault import Detail, Fault

HOUR = 3600.0
DAY = 24 * HOUR
JUMPS = (HOUR, -HOUR, DAY, -DAY)


class JumpClock(Fault):
    """One jump, and the jump back at the end."""

    name = "clock jump"
    summary = "The server's wall clock jumps ahead or back; at the end the jump is undone."

    def __init__(self, clock: ServerClock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self._jumped = False

    @classmethod
    def available(cls) -> str | None:
        return None if shim() is not None else "needs Linux and a C compiler"

    def begin(self) -> Detail:
        self.clock.jump(self.seconds)
        self._jumped = True
        return {"seconds": self.seconds}

    def end(self) -> Detail:
        jumped, self._jumped = self._jumped, False
        if jumped:
            self.clock.jump(-self.seconds)
        return {}
