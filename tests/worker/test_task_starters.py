"""The starters of waiting jobs: they start what can start, and cost nothing while nothing can."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from tests.support.conditions import until
from tests.support.internals import executor_of, on_each_start, startable
from windlass import Windlass
from windlass.worker.executors.task_starters import Driving, make_starter


async def test_a_starter_does_not_spin_while_more_jobs_run_than_may() -> None:
    """The limit can shrink below what runs: then no job can start, and the event loop must be left alone."""
    asked = 0

    def start_next() -> Driving | None:
        nonlocal asked
        asked += 1
        return None

    starter = make_starter(asyncio.get_running_loop(), copy_context(), lambda: 0, start_next)
    for _ in range(50):
        starter.wake()
        await asyncio.sleep(0)
    assert asked == 0


async def test_a_limit_below_what_runs_leaves_the_event_loop_idle(app: Windlass) -> None:
    release, running = asyncio.Event(), 0

    @app.task(queue="starters")
    async def wait() -> None:
        nonlocal running
        running += 1
        await release.wait()

    worker = app.worker(queues=["starters"])
    working = asyncio.create_task(worker.run())
    await app.aenqueue_many([wait.call() for _ in range(4)])
    await until(lambda: running == 4)
    executor = executor_of(worker, "loop")
    executor.set_limit(1)
    assert startable(executor) == 0
    await wait.aenqueue()
    calls: list[None] = []
    on_each_start(executor, lambda: calls.append(None))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(calls) <= 2
    release.set()
    await until(lambda: running == 5)
    await worker.stop()
    await working


async def test_a_starter_recovers_from_an_error() -> None:
    started: list[str] = []
    waiting = ["broken", "sound"]

    async def drive(name: str) -> None:
        started.append(name)

    def start_next() -> Driving | None:
        if not waiting:
            return None
        name = waiting.pop(0)
        if name == "broken":
            raise ValueError(name)
        return drive(name)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: None)
    starter = make_starter(loop, copy_context(), lambda: len(waiting), start_next)
    starter.wake()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starter.wake()
    await until(lambda: started == ["sound"])


@pytest.mark.parametrize("count", [1, 7, 300])
async def test_each_job_is_started_once(count: int) -> None:
    waiting, started = list(range(count)), []

    async def drive(number: int) -> None:
        if number % 3 == 0:
            await asyncio.sleep(0)
        started.append(number)

    def start_next() -> Driving | None:
        return drive(waiting.pop(0)) if waiting else None

    starter = make_starter(asyncio.get_running_loop(), copy_context(), lambda: len(waiting), start_next)
    starter.wake()
    await until(lambda: len(started) == count)
    assert sorted(started) == list(range(count))
