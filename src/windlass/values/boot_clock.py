"""This machine's boot id and uptime: programs on one machine agree on them, whatever its wall clock does."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from time import monotonic


def _machine() -> str:
    """A name for this boot of the machine. Uptimes are comparable only within it. "-" if the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # A time namespace has an uptime of its own.
        named = f"{boot}/{os.readlink('/proc/self/ns/time')}"
        # Short, because each queue stores it: a small hash takes less memory in the server.
        return sha256(named.encode()).hexdigest()[:16]
    except OSError:
        return "-"


MACHINE = _machine()


def uptime_ms() -> int:
    """Milliseconds since boot, the same for all programs on this machine."""
    return int(monotonic() * 1000)


def awake() -> float:
    """Monotonic seconds that also count while the machine sleeps: the clock for leases."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else monotonic()


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
