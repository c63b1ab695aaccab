"""How many jobs at a time, when that is left to the worker: as many as its CPU has room for.

Jobs that wait for others cost little, and more of them fit; jobs that compute fill a core, and more of them only make
each other slower. So the limit grows while all slots are in use and the process is not busy, and shrinks when it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic, process_time

from windlass.worker.executor import Executor

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


async def adapt_forever(executors: Sequence[Executor]) -> None:
    """Adapt executors of this process once a second. It shares one interpreter, so one core is all there is."""
    most = [executor.limit for executor in executors]
    for executor in executors:
        executor.limit = min(START, executor.limit)
    at, used = monotonic(), process_time()
    while True:
        await asyncio.sleep(EVERY)
        then, before = at, used
        at, used = monotonic(), process_time()
        usage = (used - before) / (at - then)
        for executor, top in zip(executors, most, strict=True):
            executor.limit = adapt(executor.limit, usage, full=executor.was_full(), most=top)
