"""Automatic concurrency: as many jobs at a time as the runner's CPU core can run.

Jobs that wait for I/O cost little CPU, so more of them fit. Jobs that compute fill a core, and more of them only slow
each other down. So the limit grows while all slots are in use and the core is not, and shrinks while the core is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic, process_time

from windlass.worker.executors.base import Executor

ADAPT_EVERY_S = 1.0  # long enough to measure CPU use, short enough to follow a changed load
INITIAL_LIMIT = 10  # safe for jobs that compute; jobs that wait grow it by a quarter each second
SHRINK_ABOVE, GROW_BELOW = 0.9, 0.7  # shares of one core; the gap between them keeps the limit from swinging


def adapt(limit: int, usage: float, *, full: bool, maximum: int) -> int:
    """Return the next limit, from the present one and the share of one core that the process used."""
    if usage > SHRINK_ABOVE:
        return max(1, limit - max(1, limit // 10))
    if full and usage < GROW_BELOW:
        return min(maximum, limit + max(1, limit // 4))
    return limit


def set_initial_limits(executors: Sequence[Executor]) -> None:
    """Start with a small limit, because the kind of jobs is not known yet."""
    for executor in executors:
        executor.set_limit(min(INITIAL_LIMIT, executor.capacity))


async def adapt_forever(executors: Sequence[Executor], notify: Callable[[], None]) -> None:
    """Adapt the limits of executors that share this interpreter, and so one core. Calls `notify` when a limit grows."""
    at, used = monotonic(), process_time()
    while True:
        await asyncio.sleep(ADAPT_EVERY_S)
        then, before = at, used
        at, used = monotonic(), process_time()
        usage = (used - before) / (at - then)
        grown = False
        for executor in executors:
            limit = adapt(executor.limit, usage, full=executor.was_full(), maximum=executor.capacity)
            grown = grown or limit > executor.limit
            executor.set_limit(limit)
        if grown:
            notify()
