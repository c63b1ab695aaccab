"""Schedules whose jobs run until a file is there: longer than from one tick to the next."""

from __future__ import annotations

import asyncio
import os

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="turns")
async def run_on(job: Job = current()) -> None:
    note("start", job)
    try:
        while not os.path.exists(os.environ["WINDLASS_TEST_GATE"]):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("stopped", job)
        raise
    note("end", job)


app.schedule("skipping", run_on.call(), every="1s", overlap="skip")
app.schedule("waiting", run_on.call(), every="1s", overlap="wait")
