from __future__ import annotations
import asyncio, os, signal, time
from tests.support.workers import note
from windlass import Job, Windlass, current
app = Windlass()

@app.task(queue="p", run="process", timeout=0.1, max_failures=1000, min_backoff=0, max_backoff=0)
def edge(seconds: float, job: Job = current()) -> None:
    time.sleep(seconds)

@app.task(queue="p", run="process")
def plain(job: Job = current()) -> None:
    note("start", job)
    time.sleep(0.03)
    note("end", job)

@app.task(queue="l")
async def poison(bad: bool, job: Job = current()) -> None:
    note("start", job)
    await asyncio.sleep(0.05)
    if bad: os.kill(os.getpid(), signal.SIGKILL)
    note("end", job)
