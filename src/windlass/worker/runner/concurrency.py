"""How many jobs at a time, when that is left to the worker: as many as its CPU has room for.

Jobs that wait for others cost little, and more of them fit; jobs that compute fill a core, and more of them only make
each other slower. So the limit grows while all slots are in use and the process is not busy, and shrinks when it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic, process_time

from windlass.worker.executors.base import Executor

EVERY = 1.0
START = 10
BUSY, ROOM = 0.9, 0.7  # parts of one core: above the first fewer jobs, below the second more


def adapt(limit: int, usage: float, *, full: bool, most: int) -> int:
    """The next limit, from the present one and what the process used of one core."""
    if usage > BUSY:
        return max(1, limit - max(1, limit // 10))
    if full and usage < ROOM:
        return min(most, limit + max(1, limit // 4))
    return limit


def begin_small(executors: Sequence[Executor]) -> None:
    """Nothing is known yet of the jobs that will come."""
    for executor in executors:
        executor.set_limit(min(START, executor.most))


async def adapt_forever(executors: Sequence[Executor], notify: Callable[[], None]) -> None:
    """Adapt executors of this process once a second, and have new room used.

    They share one interpreter, so one core is all there is.
    """
    at, used = monotonic(), process_time()
    while True:
        await asyncio.sleep(EVERY)
        then, before = at, used
        at, used = monotonic(), process_time()
        usage = (used - before) / (at - then)
        grown = False
        for executor in executors:
            limit = adapt(executor.limit, usage, full=executor.was_full(), most=executor.most)
            grown = grown or limit > executor.limit
            executor.set_limit(limit)
        if grown:
            notify()
