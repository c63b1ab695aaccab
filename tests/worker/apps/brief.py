"""Jobs in processes that are over in a moment, but for those that end their process."""

from __future__ import annotations

import os

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="brief", run="process", max_stalls=0)
def brief(fatal: bool, job: Job = current()) -> None:
    note("ran", job)
    if fatal:
        os._exit(3)
