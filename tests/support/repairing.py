"""The outcome of an audit with repair, as the tests compare it."""

from __future__ import annotations

from windlass import Queue


def repaired(queue: Queue) -> tuple[int, int]:
    """Repair a queue. Returns how many jobs of lost holders were put back, and how many problems were repaired."""
    audit = queue.audit(repair=True)
    return audit.recovered, audit.repaired
