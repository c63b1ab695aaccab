"""The apps of two projects on one queue: `odd` and `even` are tasks of one of them each, or of both."""

from __future__ import annotations

import os

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


async def odd(number: int, job: Job = current()) -> None:
    note("done", job, number=number)


async def even(number: int, job: Job = current()) -> None:
    note("done", job, number=number)


for task in (odd, even):
    if task.__name__ in os.environ["WINDLASS_TEST_TASKS"].split():
        app.task(task)
