"""Coroutines only, so that short ones are fetched ahead; each ends when a file is there. Calls are given up soon."""

from __future__ import annotations

import asyncio
import os

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass(retry_for=0.2, call_timeout=0.2)


@app.task(queue="first", max_stalls=1000)
async def wait_for(gate: str, job: Job = current()) -> None:
    note("start", job)
    try:
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("stopped", job)
        raise
    note("end", job)
