"""Queues of their own for each way of running; jobs that can be stopped, counted and weighed."""

from __future__ import annotations

import asyncio
import os
import time

from tests.support.workers import note
from windlass import Job, Windlass, current
from windlass.worker.runner import poll_timer

app = Windlass()
# The runners are forked from the process that imports this module.
poll_timer.MIN_POLL_S = float(os.environ.get("WINDLASS_TEST_POLL_S", poll_timer.MIN_POLL_S))


@app.task(queue="loops")
async def loop_wait(seconds: float, job: Job = current()) -> None:
    note("start", job)
    await asyncio.sleep(seconds)
    note("end", job)


@app.task(queue="threads")
def thread_wait(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds)
    note("end", job)


@app.task(queue="processes", run="process")
def process_wait(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds)
    note("end", job)


@app.task(queue="threads")
def thread_listen(seconds: float, job: Job = current()) -> None:
    """Looks now and then whether it was cancelled."""
    note("start", job)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if job.cancelled:
            note("cancelled", job)
            return
        time.sleep(0.01)
    note("end", job)


@app.task(queue="loops")
async def loop_listen(seconds: float, job: Job = current()) -> None:
    note("start", job)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled", job)
        raise
    note("end", job)


@app.task(queue="processes", run="process")
def process_listen(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds)
    note("end", job)


_fat: list[bytes] = []


@app.task(queue="processes", run="process")
def grow(megabytes: int, job: Job = current()) -> None:
    note("start", job)
    _fat.append(os.urandom(1 << 20) * megabytes)
    note("end", job)


@app.task(queue="heavy")
async def heavy(job: Job = current()) -> None:
    note("done", job)
    await asyncio.sleep(0.002)


@app.task(queue="light")
async def light(job: Job = current()) -> None:
    note("done", job)
    await asyncio.sleep(0.002)
