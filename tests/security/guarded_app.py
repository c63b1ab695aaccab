"""An app that makes a worker use all that it can: each way of running, failures, hand-over, progress, results."""

from __future__ import annotations

import asyncio

from windlass import Job, Windlass, current

app = Windlass()
QUEUE = "guarded-tasks"


@app.task(queue=QUEUE)
async def on_the_loop() -> str:
    """The usual."""
    return "loop"


@app.task(queue=QUEUE)
def in_a_thread() -> str:
    """What blocks."""
    return "thread"


@app.task(queue=QUEUE, run="process")
def in_a_process(job: Job = current()) -> str:
    """What computes."""
    job.progress(0.5)
    return "process"


@app.task(queue=QUEUE)
async def hand_on(job: Job = current()) -> str:
    """Two more jobs come with its end, one of them on another queue of the same app's."""
    job.enqueue(on_the_loop.call())
    job.enqueue(on_the_loop.using(queue="guarded-others").call())
    return "parent"


@app.task(queue=QUEUE, max_failures=0)
async def fall() -> None:
    """Fails for good."""
    raise RuntimeError("it cannot be")


@fall.on_failure
async def pick_up() -> None:
    """Is told of it."""


@app.task(queue=QUEUE)
async def hold(job: Job = current()) -> None:
    """Runs until it is cancelled."""
    while await job.aprogress(0.5):  # noqa: ASYNC110  # it asks the server each time
        await asyncio.sleep(0.02)
