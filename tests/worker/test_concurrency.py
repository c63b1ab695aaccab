"""Automatic concurrency: the rule, and a runner that follows it."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.conditions import until
from windlass import Windlass
from windlass.worker.in_process import NoChildren
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.runner import concurrency
from windlass.worker.runner.concurrency import adapt
from windlass.worker.runner.runner import Runner
from windlass.worker.settings import Settings


@pytest.mark.serves("Q12")
@pytest.mark.parametrize(
    ("limit", "usage", "full", "then"),
    [
        (10, 0.1, True, 12),  # all slots in use and the CPU idle: more
        (10, 0.1, False, 10),  # not all of these are used
        (10, 0.8, True, 10),  # busy enough
        (10, 0.95, True, 9),  # too busy: fewer
        (1, 1.0, True, 1),  # one at least
        (100, 0.0, True, 100),  # no more than there are slots
        (2, 0.3, True, 3),
    ],
)
def test_the_limit_follows_the_cpu(limit: int, usage: float, full: bool, then: int) -> None:
    assert adapt(limit, usage, full=full, maximum=100) == then


@pytest.mark.serves("Q12")
async def test_a_runner_takes_more_jobs_that_wait_and_fewer_that_compute(
    app: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "ADAPT_EVERY_S", 0.1)
    # Low thresholds, because other programs may use the CPU too.
    monkeypatch.setattr(concurrency, "SHRINK_ABOVE", 0.12)
    monkeypatch.setattr(concurrency, "GROW_BELOW", 0.08)
    done = asyncio.Event()

    @app.task(queue="waiting")
    async def wait() -> None:
        await done.wait()

    @app.task(queue="computing")
    async def compute() -> None:
        end = time.thread_time() + 0.003
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0)

    settings = Settings(name="auto", queues={"waiting": 1}, concurrency=60, auto=True, processes=0, threads=1)
    await app.queue("waiting").abeat("auto", 60, register=True)
    runner = Runner(app, settings, "auto", SlotTable.create(settings.entries), NoChildren(), lambda queue: None)
    working = asyncio.create_task(runner.run())
    loop_executor = runner.executors["loop"]
    async with asyncio.timeout(30):
        await app.aenqueue_many(wait.call() for _ in range(200))
        await until(lambda: len(loop_executor.running) == 60)  # from ten, step by step
        assert loop_executor.limit == 60
        await app.queue("waiting").apurge("ready")
        await app.aenqueue_many(compute.using(queue="waiting").call() for _ in range(4000))
        done.set()
        await until(lambda: loop_executor.limit < 30)  # computing fills the core
        await app.queue("waiting").apurge("ready")
        await runner.drain(5)
        await working
    await app.queue("waiting").apurge()
