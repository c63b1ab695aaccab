"""Jobs with payloads far above the default limit, in each way of running."""

from __future__ import annotations

import hashlib

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass(max_payload=512 * 1024 * 1024)


@app.task(queue="large")
async def loop_size(text: str, job: Job = current()) -> None:
    _note(text, job)


@app.task(queue="large")
def thread_size(text: str, job: Job = current()) -> None:
    _note(text, job)


@app.task(queue="large", run="process")
def process_size(text: str, job: Job = current()) -> None:
    _note(text, job)


def _note(text: str, job: Job) -> None:
    note("done", job, size=len(text), digest=hashlib.sha256(text.encode()).hexdigest())
