"""The policy of attempts: pure functions from a job's lease to the outcome of an attempt that did not succeed."""

from __future__ import annotations

import random

from windlass.values.job import Lease, Limits
from windlass.values.outcome import Crashed, Failed, Retried, Snoozed
from windlass.values.validation import shortened

JITTER = 0.25  # the part of a wait that is random, so that jobs that failed together are not retried together
MIN_CRASH_BACKOFF_S = 0.5  # so that the job of a killed process runs again within a second
CRASH_BACKOFF_DOUBLINGS = 2  # with each crash: few are forgiven, and what kills a process may last some seconds
MAX_CRASH_BACKOFF_S = 60.0  # there is no need for longer pauses


def backoff(count: int, minimum: float, maximum: float, spread: float | None = None) -> float:
    """Seconds to wait after this many failures. Doubles from the minimum to the maximum.

    Up to a quarter is added at random; at the maximum, up to a fifth is taken off instead.
    """
    full = minimum * float(2 ** min(max(count - 1, 0), 60))
    base = max(minimum, min(full, maximum / (1 + JITTER)))
    return min(maximum, base * (1 + JITTER * (random.random() if spread is None else spread)))


def after_failure(lease: Lease, when: tuple[str, int] | None, message: str) -> Retried | Failed:
    """The outcome of a failed attempt: a retry, or `Failed` if `max_failures` earlier attempts have failed already."""
    if lease.failures >= lease.limits.max_failures:
        return Failed(lease, message)
    if when is None:
        wait = backoff(lease.failures + 1, lease.limits.min_backoff, lease.limits.max_backoff)
        when = ("in", round(wait * 1000))
    return Retried(lease, when, message)


def after_crash(lease: Lease, message: str, keep_ms: int = 0) -> Crashed:
    """The outcome of a crash that this job caused. If it is forgiven, the job waits before its next attempt."""
    wait = crash_backoff(lease.stalls + 1, lease.limits)
    return Crashed(lease, message, True, lease.limits.max_stalls, keep_ms, round(wait * 1000))


def crash_backoff(count: int, limits: Limits, spread: float | None = None) -> float:
    """Seconds to wait after this many crashes: four times longer each, and never longer than after as many failures."""
    shortest = min(MIN_CRASH_BACKOFF_S, limits.min_backoff)
    pause = backoff(CRASH_BACKOFF_DOUBLINGS * (count - 1) + 1, shortest, MAX_CRASH_BACKOFF_S, spread)
    return min(pause, backoff(count, limits.min_backoff, limits.max_backoff, spread))


def after_snooze(lease: Lease, when: tuple[str, int], message: str) -> Snoozed | Failed:
    """The outcome of an attempt that put its job off: uncharged, or `Failed` after `max_snoozes` earlier ones."""
    if lease.snoozes < lease.limits.max_snoozes:
        return Snoozed(lease, when, message)
    text = f"it snoozed once more, after max_snoozes ({lease.limits.max_snoozes})"
    return Failed(lease, shortened(f"{text}: {message}" if message else text))
