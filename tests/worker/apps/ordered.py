"""One task on a queue of its own: which job runs when."""

from __future__ import annotations

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="urgent")
async def in_order(job: Job = current()) -> None:
    note("done", job)
