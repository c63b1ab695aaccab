"""Jobs for the ends of workers and attempts: they wait at a gate, block, grow, hand over too much, or know a secret."""

from __future__ import annotations

import asyncio
import os
import time
from enum import Enum

from tests.support.workers import note
from windlass import Job, Windlass, current
from windlass.tasks.envelope import write_envelope

PATIENCE = float(os.environ.get("WINDLASS_TEST_PATIENCE", "10"))  # with the server

app = Windlass(retry_for=PATIENCE, call_timeout=PATIENCE)


# -- jobs that go on until a gate is opened, which is a file ---------------------------------------


@app.task(queue="loops")
async def loop_wait(gate: str, job: Job = current()) -> None:
    note("start", job)
    try:
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("cancelled", job)
        raise
    note("end", job)


@app.task(queue="threads")
def thread_wait(gate: str, job: Job = current()) -> None:
    note("start", job)
    while not os.path.exists(gate):
        if job.cancelled:
            note("cancelled", job)
            return
        time.sleep(0.01)
    note("end", job)


@app.task(queue="processes", run="process")
def process_wait(gate: str, job: Job = current()) -> None:
    note("start", job)
    while not os.path.exists(gate):
        time.sleep(0.01)
    note("end", job)


# -- what a runner may suffer from ---------------------------------------------------------------


@app.task(queue="loops")
async def quick(job: Job = current()) -> None:
    note("end", job)


@app.task(queue="loops")
async def block(seconds: float, job: Job = current()) -> None:
    """Holds up the event loop, as nobody should."""
    note("start", job)
    time.sleep(seconds)  # noqa: ASYNC251
    note("end", job)


_fat: list[bytes] = []


@app.task(queue="threads")
def grow(megabytes: int, job: Job = current()) -> None:
    _fat.append(os.urandom(1 << 20) * megabytes)
    note("end", job)


# -- hand-over -----------------------------------------------------------------------------------


@app.task(queue="children")
async def child(text: str) -> None: ...


def _hand_over(count: int, size: int, job: Job) -> None:
    """So many children, each with a payload of so many bytes."""
    note("try", job)
    text = "x" * (size - len(write_envelope(child.name, b'{"text":""}')))
    for _ in range(count):
        job.enqueue(child.call(text))


@app.task(queue="parents")
async def loop_parent(count: int, size: int, job: Job = current()) -> None:
    _hand_over(count, size, job)


@app.task(queue="parents")
def thread_parent(count: int, size: int, job: Job = current()) -> None:
    _hand_over(count, size, job)


@app.task(queue="parents", run="process")
def process_parent(count: int, size: int, job: Job = current()) -> None:
    _hand_over(count, size, job)


@app.task(queue="parents", on_exception="fail")
async def strict_parent(count: int, size: int, job: Job = current()) -> None:
    _hand_over(count, size, job)


# -- secrets -------------------------------------------------------------------------------------


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@app.task(queue="secrets")
async def keep_secret(secret: str, mood: Mood = Mood.GOOD) -> None: ...


@app.task(queue="secrets", max_failures=1, min_backoff=0.02, max_backoff=0.1)
async def loop_lose_secret(secret: str) -> None:
    raise ValueError("it is gone")


@app.task(queue="secrets", run="process", max_failures=1, min_backoff=0.02, max_backoff=0.1)
def process_lose_secret(secret: str) -> None:
    raise ValueError("it is gone")
