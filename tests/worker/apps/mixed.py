"""One queue with jobs of two kinds."""

from __future__ import annotations

import time

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="mixed")
async def quick(n: int) -> None:
    pass


@app.task(queue="mixed", run="process", max_stalls=1000)
def slow(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds)
    note("end", job)
