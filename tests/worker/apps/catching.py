"""A failure handler that ends its worker the first time."""

from __future__ import annotations

import os
import time

from tests.support.workers import note
from windlass import Job, JobRecord, Windlass, current

app = Windlass()


@app.task(queue="catching")
async def fail_and_die(job: Job = current()) -> None:
    note("try", job)
    raise ValueError("no good")


@fail_and_die.on_failure
def on_failure(job: JobRecord) -> None:
    if os.environ["WINDLASS_TEST_DIE"] == "1":
        note("dying")
        time.sleep(60)
    note("told", id=job.id)
