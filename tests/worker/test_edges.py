"""Odd ends of attempts: what jobs raise, what they make of being stopped, and when they are stopped."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from tests.support.conditions import until
from windlass import Job, Windlass, current
from windlass.outcome import Outcome, Released
from windlass.worker.board import Board
from windlass.worker.executor import Attempt, Stop
from windlass.worker.local import _NoChildren
from windlass.worker.loop import LoopExecutor
from windlass.worker.runner import Runner
from windlass.worker.settings import Settings


class Unusual(BaseException):
    """Not an Exception, as some libraries have them."""


async def test_whatever_a_coroutine_raises_ends_its_attempt(app: Windlass) -> None:
    tries: list[int] = []

    @app.task(queue="odd", max_failures=1, min_backoff=0.001, max_backoff=0.001)
    async def odd(job: Job = current()) -> None:
        tries.append(job.attempt)
        raise Unusual("as it were")

    await odd.aenqueue()
    worker = app.worker()
    working = asyncio.create_task(worker.run())
    await until(lambda: app.queue("odd").counts().dead == 1)
    await worker.stop()
    await working
    assert tries == [1, 2]
    (record,) = (await app.queue("odd").ajobs("dead")).jobs
    assert "Unusual" in (record.message or "")
    await app.queue("odd").apurge()


async def test_a_job_that_is_stopped_is_not_charged_whatever_it_makes_of_it(app: Windlass) -> None:
    began = asyncio.Event()

    @app.task(queue="odd")
    async def sulk() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RuntimeError("how dare you") from None

    await sulk.aenqueue()
    worker = app.worker()
    working = asyncio.create_task(worker.run())
    await began.wait()
    await worker.stop(grace=0)
    await working
    (lease,) = await app.queue("odd").alease_many(5)
    assert (lease.failures, lease.stalls) == (0, 0)
    await app.queue("odd").acomplete(lease)


async def test_a_worker_that_is_stopped_before_it_began_does_not_begin(app: Windlass) -> None:
    @app.task(queue="odd")
    async def never() -> None: ...

    worker = app.worker()
    await worker.stop()
    async with asyncio.timeout(5):
        await worker.run()


@pytest.fixture
def runner_settings() -> Settings:
    return Settings(name="odd", queues={"odd": 1}, concurrency=1, threads=1, processes=0)


async def test_an_attempt_that_is_stopped_before_its_first_step_ends_too(app: Windlass) -> None:
    ended: list[Outcome | None] = []

    @app.task(queue="odd")
    async def wait() -> None:
        await asyncio.sleep(60)

    await wait.aenqueue()
    settings = Settings(name="odd", queues={"odd": 1}, concurrency=1, threads=1, processes=0)
    runner = Runner(app, settings, "odd", Board.create(settings.entries), _NoChildren(), lambda queue: None)
    (lease,) = await app.queue("odd").alease_many(1)
    executor = runner.executors["loop"]
    assert isinstance(executor, LoopExecutor)

    def finished(one: Attempt, outcome: Outcome | None) -> None:
        ended.append(outcome)

    executor._finished = finished
    runner._admit(lease)
    assert executor.stop(lease.fence, Stop.SHUTDOWN)  # the task has not begun yet
    await until(lambda: ended)
    assert ended == [Released(lease)]
    assert executor.idle
    await app.queue("odd").acomplete(lease)


async def test_a_job_that_waits_for_a_slot_can_be_cancelled(app: Windlass, runner_settings: Settings) -> None:
    ran: list[int] = []
    done = asyncio.Event()

    @app.task(queue="odd")
    async def wait(n: int) -> None:
        ran.append(n)
        await done.wait()

    await app.aenqueue_many(wait.using(id=str(n)).call(n) for n in (1, 2))
    await app.queue("odd").abeat("odd", 60, register=True)
    board = Board.create(runner_settings.entries)
    runner = Runner(app, runner_settings, "odd", board, _NoChildren(), lambda queue: None)
    for lease in await app.queue("odd").alease_many(2, holder="odd"):
        runner._admit(lease)
    assert await app.queue("odd").acancel("2", running=True)
    runner.cancel("odd", "2")
    working = asyncio.create_task(runner.run())
    done.set()
    await until(lambda: app.queue("odd").counts().leased == 0)
    await runner.drain(1)
    await working
    assert ran == [1]


async def test_less_patience_counts_though_the_drain_has_not_begun(app: Windlass, runner_settings: Settings) -> None:
    """Two signals in one moment: the second must not be forgotten when the first is heeded."""
    began = asyncio.Event()

    @app.task(queue="odd")
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    await wait.aenqueue()
    await app.queue("odd").abeat("odd", 60, register=True)
    board = Board.create(runner_settings.entries)
    runner = Runner(app, runner_settings, "odd", board, _NoChildren(), lambda queue: None)
    working = asyncio.create_task(runner.run())
    await began.wait()
    draining = asyncio.create_task(runner.drain(60))
    runner.shorten(0)
    async with asyncio.timeout(10):
        await draining
        await working
    assert app.queue("odd").counts().ready == 1
    await app.queue("odd").apurge()


async def test_a_job_does_not_see_the_context_of_another(app: Windlass) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    @app.task(queue="odd")
    async def serve(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)
        await asyncio.sleep(0)

    await app.aenqueue_many(serve.call(str(number)) for number in range(60))
    worker = app.worker(concurrency=2)
    working = asyncio.create_task(worker.run())
    await until(lambda: len(seen) == 60)
    await worker.stop()
    await working
    assert set(seen) == {"nobody"}
