"""Thousands of tasks, each on a queue of its own."""

from __future__ import annotations

from tests.support.workers import note
from windlass import Job, Windlass, current

QUEUES = 2000

app = Windlass()


async def work(job: Job = current()) -> None:
    note("done", job)


for number in range(QUEUES):
    app.task(name=f"task-{number}", queue=f"own-{number}")(work)
