"""An app that is released twice: with task a, then with a and b."""

from __future__ import annotations

import os

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()
TASKS = os.environ.get("WINDLASS_TEST_TASKS", "ab")


@app.task
async def a(number: int, job: Job = current()) -> None:
    note("done", job, mark=TASKS)


async def b(number: int, job: Job = current()) -> None:
    note("done", job, mark=TASKS)


if "b" in TASKS:
    app.task(b)
