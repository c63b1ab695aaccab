"""Jobs that run until a file is there, so that a test decides when they end; those that are stopped say so."""

from __future__ import annotations

import asyncio
import os
import time

from tests.support.workers import note
from windlass import Job, Windlass, current

PATIENCE = float(os.environ.get("WINDLASS_TEST_PATIENCE", "10"))

app = Windlass(retry_for=PATIENCE, call_timeout=PATIENCE)


@app.task(queue="gated", max_stalls=1000)
async def loop_gate(gate: str, job: Job = current()) -> None:
    note("start", job, queue=job.queue)
    try:
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("stopped", job)
        raise
    note("end", job, queue=job.queue)


@app.task(queue="gated-processes", run="process", max_stalls=1000)
def process_gate(gate: str, job: Job = current()) -> None:
    note("start", job, queue=job.queue)
    while not os.path.exists(gate):
        time.sleep(0.01)
    note("end", job, queue=job.queue)
