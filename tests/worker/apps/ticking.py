"""An app with a schedule."""

from __future__ import annotations

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="ticks")
async def tick(name: str, job: Job = current()) -> None:
    note("tick", job, name=name)


app.schedule("declared", tick.call("declared"), every="1s", overlap="allow")
