"""Windlass: a typed async task, and a real `windlass worker` with all its processes and guarantees."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from bench.peers.driving import NAP, URL, Driver, Numbers, began, handled, main, report
from windlass import Job, Windlass, current
from windlass.task import Task

LAYOUT = os.environ.get("BENCH_LAYOUT", "native")
KIND = os.environ.get("BENCH_KIND", "loop")
EXTRA = os.environ.get("BENCH_EXTRA", "")  # what is asked for beside the plain job
KEY = {"bench": bytes(range(32))}
app = Windlass(
    URL or None,
    layouts={"bench": LAYOUT},
    signing_keys=KEY if EXTRA == "signing" else None,
    encryption_keys=KEY if EXTRA == "encryption" else None,
)


# A worker finds out how jobs of several kinds are mixed before it asks for many: no peer has such a mixture.
if KIND == "loop":

    async def handle(n: int) -> None:
        handled(n)

    async def handle_and_tell(n: int, job: Job = current()) -> None:
        job.progress(1.0)
        handled(n)

    declare = app.task(queue="bench", name="noop", keep_result="1h" if EXTRA == "results" else 0)
    noop = declare(handle_and_tell if EXTRA == "progress" else handle)

    @app.task(queue="bench")
    async def nap(n: int) -> None:
        began()
        await asyncio.sleep(NAP)
        handled(n)


if KIND == "thread":

    @app.task(queue="bench", run="thread")
    def threaded(n: int) -> None:
        handled(n)


if KIND == "process":

    @app.task(queue="bench", run="process")
    def forked(n: int) -> None:
        handled(n)


def declared(name: str) -> Task[..., Any, Any]:
    """The task with this short name."""
    task = app.find_task(name)
    assert task is not None
    return task


class WindlassDriver(Driver):
    """Enqueues through the app and works by the command line."""

    def blocking(self, numbers: Numbers) -> None:
        task = declared(self.task)
        for n in numbers:
            task.enqueue(n)

    async def awaited(self, numbers: Numbers) -> None:
        task = declared(self.task)
        for n in numbers:
            await task.aenqueue(n)

    def bulk(self, numbers: Numbers) -> None:
        task = declared(self.task)
        for batch in numbers.batches():
            app.enqueue_many(task.call(n) for n in batch)

    def work(self, concurrency: int) -> None:
        command = [sys.executable, "-m", "windlass", "worker", "bench.peers.windlass_driver:app"]
        os.execv(sys.executable, [*command, "--concurrency", str(concurrency), "--allow-unsafe"])

    async def idle(self, workers: int) -> None:
        apps = [Windlass(URL) for _ in range(workers)]  # each with connections of its own
        running = [asyncio.create_task(each.worker(["bench"], allow_unsafe=True).run()) for each in apps]
        while len(await app.aworkers()) < workers:
            for task in running:
                if task.done():
                    task.result()
            await asyncio.sleep(0.2)
        report(event="ready")
        await asyncio.gather(*running)


if __name__ == "__main__":
    main(WindlassDriver())
