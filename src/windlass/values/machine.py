"""This machine, and how long it has been up: so two programs on it agree on time, whatever its clock does."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from time import monotonic


def _machine() -> str:
    """One name for each boot of a machine; "-" where there is none. Only then is uptime comparable."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # A time namespace has an uptime of its own.
        named = f"{boot}/{os.readlink('/proc/self/ns/time')}"
        # It lies in the state of every queue: short, so that a small state stays small in the server.
        return sha256(named.encode()).hexdigest()[:16]
    except OSError:
        return "-"


MACHINE = _machine()


def uptime_ms() -> int:
    """Milliseconds since the machine came up, the same for all programs on it."""
    return int(monotonic() * 1000)


def awake() -> float:
    """Seconds that have passed by, also while the machine was asleep: what a lease must be measured with."""
    return time.clock_gettime(_EVER) if _EVER is not None else monotonic()


_EVER: int | None = getattr(time, "CLOCK_BOOTTIME", None)
