"""How quiet the machine is: times a loop of fixed work, and measures the CPU use of other processes."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_LOOPS = 25_000
SLOW = 1.35  # times the usual duration of the loop
BUSY = 0.15  # share of all cores used by other processes


class Calm:
    """Knows the usual duration of the loop on this machine, and so detects a slow one."""

    def __init__(self) -> None:
        self.durations = [self._spin() for _ in range(5)]

    @property
    def usual(self) -> float:
        """The lower quartile: robust against a busy minute."""
        return statistics.quantiles(self.durations, n=4)[0]

    @property
    def spread(self) -> float:
        """The median duration divided by the usual one; 1.0 is a quiet machine."""
        return statistics.median(self.durations) / self.usual

    def is_slow(self) -> bool:
        """Run the loop once; returns whether another process slowed it."""
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
    """Wait until the machine is calm; returns True if it still is not after a while."""
    for _ in range(3):
        if not calm.is_slow():
            return False
        time.sleep(pause)
    return True


def busy_seconds() -> float | None:
    """CPU seconds of all processes since boot; None if the system does not report it."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
            int, _STAT.read_text().split("\n")[0].split()[1:]
        )
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
