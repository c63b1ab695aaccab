"""When a failed job is tried again: a pure function from its record to an outcome."""

from __future__ import annotations

import random

from windlass.values.job import Lease
from windlass.values.outcome import Failed, Retried


def backoff(failures: int, minimum: float, maximum: float, spread: float | None = None) -> float:
    """Seconds to wait after so many failures: doubling from the minimum to the maximum.

    Up to a quarter is added, so that jobs that failed together do not come back together.
    """
    full = minimum * float(2 ** min(max(failures - 1, 0), 60))
    return min(maximum, full * (1 + 0.25 * (random.random() if spread is None else spread)))


def after_failure(lease: Lease, when: tuple[str, int] | None, message: str) -> Retried | Failed:
    """What becomes of a job whose attempt failed: another try while failures are forgiven, else the end."""
    if lease.failures >= lease.limits.max_failures:
        return Failed(lease, message)
    if when is None:
        wait = backoff(lease.failures + 1, lease.limits.min_backoff, lease.limits.max_backoff)
        when = ("in", round(wait * 1000))
    return Retried(lease, when, message)
