"""Parents that hand children over, to their own queue and to another."""

from __future__ import annotations

import asyncio
import time

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="children")
async def child(parent: str, fence: int, number: int, job: Job = current()) -> None:
    note("child", job, parent=parent, fence=fence, number=number, queue=job.queue)


def _hand_over(job: Job, count: int, way: str) -> None:
    note("parent", job, way=way)
    for number in range(count):
        for queue in ("parents", "children"):
            job.enqueue(child.using(queue=queue, max_stalls=1000).call(job.id, job.fence, number))


@app.task(queue="parents")
async def loop_parent(count: int, bad: bool, job: Job = current()) -> None:
    _hand_over(job, count, "loop")
    await asyncio.sleep(0.02)
    if bad:
        raise ValueError("no children of mine")


@app.task(queue="parents")
def thread_parent(count: int, bad: bool, job: Job = current()) -> None:
    _hand_over(job, count, "thread")
    time.sleep(0.02)
    if bad:
        raise ValueError("no children of mine")


@app.task(queue="parents", run="process")
def process_parent(count: int, bad: bool, job: Job = current()) -> None:
    _hand_over(job, count, "process")
    time.sleep(0.02)
    if bad:
        raise ValueError("no children of mine")
