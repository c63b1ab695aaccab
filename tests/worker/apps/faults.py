"""Jobs for a server that comes and goes. The app gives up on a call soon: a worker must go on all the same."""

from __future__ import annotations

import asyncio
import time

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass(retry_for=0.5, call_timeout=0.5)


@app.task(queue="loops", max_stalls=1000)
async def loop_wait(seconds: float, again: float | None = None, job: Job = current()) -> None:
    note("start", job)
    try:
        await asyncio.sleep(seconds if again is None or job.attempt == 1 else again)
    except asyncio.CancelledError:
        note("stopped", job)
        raise
    note("end", job)


@app.task(queue="threads", max_stalls=1000)
def thread_wait(seconds: float, again: float | None = None, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds if again is None or job.attempt == 1 else again)
    note("end", job)


@app.task(queue="processes", run="process", max_stalls=1000)
def process_wait(seconds: float, again: float | None = None, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds if again is None or job.attempt == 1 else again)
    note("end", job)
