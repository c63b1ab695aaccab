"""How quiet the machine is: a loop of fixed work, timed again and again, and the CPU that others take meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_LOOPS = 25_000
SLOW = 1.35  # times the usual duration of the loop
BUSY = 0.15  # of all cores, taken by others


class Calm:
    """Remembers how long the loop takes on this machine, and so can tell when it takes too long."""

    def __init__(self) -> None:
        self.durations = [self._spin() for _ in range(5)]

    @property
    def usual(self) -> float:
        """The fastest quarter's edge: a usual that a busy minute does not move."""
        return statistics.quantiles(self.durations, n=4)[0]

    @property
    def spread(self) -> float:
        """How much longer than usual the loop took in the middle case; 1.0 is a quiet machine."""
        return statistics.median(self.durations) / self.usual

    def is_slow(self) -> bool:
        """Run the loop once; true if something else had the core, or slowed it."""
        self.durations.append(self._spin())
        return self.durations[-1] > SLOW * self.usual

    @staticmethod
    def _spin() -> float:
        began = time.perf_counter()
        total = 0
        for i in range(_LOOPS):
            total += i & 7
        return time.perf_counter() - began


def wait_for_calm(calm: Calm, pause: float) -> bool:
    """True if the machine was still not calm after a while."""
    for _ in range(3):
        if not calm.is_slow():
            return False
        time.sleep(pause)
    return True


def busy_seconds() -> float | None:
    """CPU seconds that all processes have used since boot; `None` where the system does not say."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
            int, _STAT.read_text().split("\n")[0].split()[1:]
        )
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
