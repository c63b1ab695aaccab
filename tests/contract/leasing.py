"""Two ways to take jobs that these tests use all the time."""

from __future__ import annotations

from typing import Any

from windlass import Lease, Queue


def take(queue: Queue, **how: Any) -> Lease:
    """The lease on the next job; there must be one."""
    lease = queue.lease(**how)
    assert lease is not None, "there is no job to lease"
    return lease


def drain(queue: Queue) -> list[str]:
    """Works off all that is ready; the ids in the order in which they came."""
    ids = []
    while leases := queue.lease_many(100):
        assert queue.complete_many(leases) == [True] * len(leases)
        ids += [lease.id for lease in leases]
    return ids
