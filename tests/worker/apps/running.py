"""Jobs that run for a while, in each way, and say when they begin and end. And jobs that do harm on purpose."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


def _length(seconds: float) -> float:
    """What this worker is told counts: its jobs are to be still there when it is killed."""
    return float(os.environ.get("WINDLASS_TEST_SECONDS", seconds))


@app.task(queue="loops")
async def loop_wait(seconds: float, job: Job = current()) -> None:
    note("start", job)
    await asyncio.sleep(_length(seconds))
    note("end", job)


@app.task(queue="threads")
def thread_wait(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(_length(seconds))
    note("end", job)


@app.task(queue="processes", run="process")
def process_wait(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(_length(seconds))
    note("end", job)


@app.task(queue="loops")
async def loop_until(gate: str, job: Job = current()) -> None:
    note("start", job)
    while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240  # another process opens it
        await asyncio.sleep(0.01)
    note("end", job)


@app.task(queue="loops")
async def loop_die_once(job: Job = current()) -> None:
    """Kills its runner at the first try, and only then."""
    note("start", job)
    if os.environ["WINDLASS_ROLE"] == "runner" and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("end", job)


@app.task(queue="processes", run="process")
def process_die_once(job: Job = current()) -> None:
    note("start", job)
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("end", job)


@app.task(queue="loops", max_stalls=0)
async def loop_die_for_good(job: Job = current()) -> None:
    note("start", job)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(queue="processes", run="process", max_stalls=0)
def process_die_for_good(job: Job = current()) -> None:
    note("start", job)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(queue="loops")
async def loop_longer_each_time(first: float, later: float, job: Job = current()) -> None:
    note("start", job)
    await asyncio.sleep(first if job.attempt == 1 else later)
    note("end", job)


@app.task(queue="threads")
def thread_longer_each_time(first: float, later: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(first if job.attempt == 1 else later)
    note("end", job)


@app.task(queue="processes", run="process")
def process_longer_each_time(first: float, later: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(first if job.attempt == 1 else later)
    note("end", job)
