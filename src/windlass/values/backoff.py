"""The retry policy: a pure function from a job's lease to an outcome."""

from __future__ import annotations

import random

from windlass.values.job import Lease
from windlass.values.outcome import Failed, Retried


def backoff(failures: int, minimum: float, maximum: float, spread: float | None = None) -> float:
    """Seconds to wait after this many failures. Doubles from the minimum to the maximum.

    It adds up to a quarter at random, so that jobs that failed together are not retried together.
    """
    full = minimum * float(2 ** min(max(failures - 1, 0), 60))
    return min(maximum, full * (1 + 0.25 * (random.random() if spread is None else spread)))


def after_failure(lease: Lease, when: tuple[str, int] | None, message: str) -> Retried | Failed:
    """The outcome of a failed attempt: a retry, or `Failed` if `max_failures` earlier attempts have failed already."""
    if lease.failures >= lease.limits.max_failures:
        return Failed(lease, message)
    if when is None:
        wait = backoff(lease.failures + 1, lease.limits.min_backoff, lease.limits.max_backoff)
        when = ("in", round(wait * 1000))
    return Retried(lease, when, message)
