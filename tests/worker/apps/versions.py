"""An app that is released twice: `greet` takes one argument, then two. Its keys come from the environment."""

from __future__ import annotations

import os

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass(max_broken=int(os.environ.get("WINDLASS_TEST_MAX_BROKEN", "1000")))


async def old_greet(number: int, job: Job = current()) -> None:
    note("done", job)


async def new_greet(number: int, name: str = "", job: Job = current()) -> None:
    note("done", job)


app.task(name="greet")(old_greet if os.environ.get("WINDLASS_TEST_RELEASE") == "old" else new_greet)
