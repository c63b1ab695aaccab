"""Jobs for queues of any layout: they are known by a number that they carry, for not every layout has ids."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from tests.support.workers import note
from windlass import Job, Snooze, Windlass, current

app = Windlass()


def _is_first_try(number: int) -> bool:
    """Not every layout counts tries."""
    flag = Path(f"{os.environ['WINDLASS_TEST_JOURNAL']}.{number}")
    found = flag.exists()
    flag.touch()
    return not found


@app.task(queue="loops")
async def loop_work(number: int, seconds: float = 0.02, job: Job = current()) -> None:
    note("start", job, number=number)
    await asyncio.sleep(seconds)
    note("end", job, number=number)


@app.task(queue="threads")
def thread_work(number: int, seconds: float = 0.02, job: Job = current()) -> None:
    note("start", job, number=number)
    time.sleep(seconds)
    note("end", job, number=number)


@app.task(queue="processes", run="process")
def process_work(number: int, seconds: float = 0.02, job: Job = current()) -> None:
    note("start", job, number=number)
    time.sleep(seconds)
    note("end", job, number=number)


@app.task(queue="processes", run="process", timeout="300ms")
def process_hang(number: int, job: Job = current()) -> None:
    """Too slow, at its first try."""
    note("start", job, number=number)
    if _is_first_try(number):
        time.sleep(60)
    note("end", job, number=number)


@app.task(queue="loops")
async def loop_stumble(number: int, job: Job = current()) -> None:
    """Fails, at its first try."""
    note("start", job, number=number)
    if _is_first_try(number):
        raise ValueError("the first try is in vain")
    note("end", job, number=number)


@app.task(queue="loops")
async def loop_snooze(number: int, job: Job = current()) -> None:
    """Puts itself off, at its first try."""
    note("start", job, number=number)
    if _is_first_try(number):
        raise Snooze("rate limit", delay=0.3)
    note("end", job, number=number, failures=job.failures)
