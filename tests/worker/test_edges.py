"""Edge cases of attempts: unusual exceptions, reactions to a stop, and stops at unusual times."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from msgspec import structs

from tests.support.conditions import until
from tests.support.internals import admit, is_work_of_a_thread
from windlass import Job, Windlass, current
from windlass.tasks.call import TaskCall
from windlass.worker.executors import threads
from windlass.worker.in_process import NoChildren
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.runner.runner import Runner
from windlass.worker.settings import Settings


class Unusual(BaseException):
    """Not an Exception, as in some libraries."""


async def test_any_exception_of_a_coroutine_ends_its_attempt(app: Windlass) -> None:
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


async def test_a_job_stopped_by_shutdown_is_not_charged(app: Windlass) -> None:
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


async def test_a_worker_stopped_before_its_start_does_not_start(app: Windlass) -> None:
    @app.task(queue="odd")
    async def never() -> None: ...

    worker = app.worker()
    await worker.stop()
    async with asyncio.timeout(5):
        await worker.run()


@pytest.fixture
def runner_settings() -> Settings:
    return Settings(name="odd", queues={"odd": 1}, concurrency=1, threads=1, processes=0)


async def test_a_job_waiting_for_a_slot_can_be_cancelled(app: Windlass, runner_settings: Settings) -> None:
    ran: list[int] = []
    done = asyncio.Event()

    @app.task(queue="odd")
    async def wait(n: int) -> None:
        ran.append(n)
        await done.wait()

    await app.aenqueue_many(wait.using(id=str(n)).call(n) for n in (1, 2))
    await app.queue("odd").abeat("odd", 60, register=True)
    slot_table = SlotTable.create(runner_settings.entries)
    runner = Runner(app, runner_settings, "odd", slot_table, NoChildren(), lambda queue: None)
    for lease in await app.queue("odd").alease_many(2, holder="odd"):
        admit(runner, lease)
    assert await app.queue("odd").acancel("2", running=True)
    runner.cancel("odd", "2")
    working = asyncio.create_task(runner.run())
    done.set()
    await until(lambda: app.queue("odd").counts().running == 0)
    await runner.drain(1)
    await working
    assert ran == [1]


async def test_a_shorter_grace_applies_before_the_drain_starts(app: Windlass, runner_settings: Settings) -> None:
    """Two signals at once: handling the first must not forget the second."""
    began = asyncio.Event()

    @app.task(queue="odd")
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    await wait.aenqueue()
    await app.queue("odd").abeat("odd", 60, register=True)
    slot_table = SlotTable.create(runner_settings.entries)
    runner = Runner(app, runner_settings, "odd", slot_table, NoChildren(), lambda queue: None)
    working = asyncio.create_task(runner.run())
    await began.wait()
    draining = asyncio.create_task(runner.drain(60))
    runner.shorten_drain(0)
    async with asyncio.timeout(10):
        await draining
        await working
    assert app.queue("odd").counts().ready == 1
    await app.queue("odd").apurge()


async def test_a_job_in_a_thread_does_not_see_the_context_of_another(app: Windlass) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    @app.task(queue="odd", run="thread")
    def serve(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    await work_off(app, [serve.call(str(number)) for number in range(60)], lambda: len(seen) == 60)
    assert set(seen) == {"nobody"}


async def test_all_threads_run_jobs_at_the_same_time(app: Windlass) -> None:
    together = threading.Barrier(8)
    met: list[int] = []

    @app.task(queue="odd", run="thread")
    def meet(number: int) -> None:
        together.wait(10)
        met.append(number)

    await work_off(app, [meet.call(number) for number in range(24)], lambda: len(met) == 24)
    assert sorted(met) == list(range(24))


async def test_short_jobs_share_a_few_threads(app: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    @app.task(queue="odd", run="thread")
    def note(number: int) -> None:
        ran.append(number)

    submit, woken = ThreadPoolExecutor.submit, []

    def count(self: ThreadPoolExecutor, *given: Any) -> Any:
        if is_work_of_a_thread(given[0]):
            woken.append(1)
        return submit(self, *given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", count)
    # A busy machine makes any job long, so this test raises the thresholds.
    monkeypatch.setattr(threads, "SHORT_BACKLOG_S", 0.5)
    monkeypatch.setattr(threads, "RECHECK_AFTER_S", 30.0)
    await work_off(app, [note.call(number) for number in range(1000)], lambda: len(ran) == 1000)
    assert len(woken) < 700, "one for each until it is known how short they are"


async def test_a_long_job_in_a_thread_does_not_delay_others(app: Windlass) -> None:
    ran: list[int] = []
    met: list[bool] = []
    last_ran = threading.Event()

    @app.task(queue="odd", run="thread")
    def note(number: int) -> None:
        ran.append(number)
        if number == 500:
            met.append(last_ran.wait(10))
        elif number == 503:
            last_ran.set()

    await work_off(app, [note.call(number) for number in range(504)], lambda: len(ran) == 504)
    assert met == [True]


@pytest.mark.parametrize("run", ["loop", "thread"])
async def test_jobs_leased_ahead_are_returned_when_a_job_takes_long(app: Windlass, run: str) -> None:
    ran: list[int] = []
    enough = threading.Event()

    async def wait(number: int) -> None:
        ran.append(number)
        if number == 300:
            await asyncio.to_thread(enough.wait, 20)

    def block(number: int) -> None:
        ran.append(number)
        if number == 300:
            enough.wait(20)

    task = app.task(queue="odd", run="thread")(block) if run == "thread" else app.task(queue="odd")(wait)
    await app.aenqueue_many(task.call(number) for number in range(600))
    worker = app.worker(concurrency=1, threads=1)
    working = asyncio.create_task(worker.run())
    await until(lambda: len(ran) == 301)
    await until(lambda: app.queue("odd").counts().running == 1, 5)
    assert app.queue("odd").counts().ready == 299
    enough.set()
    await until(lambda: len(ran) == 600 and app.queue("odd").counts().running == 0)
    assert sorted(ran) == list(range(600)), "each of them once"
    await worker.stop()
    await working


@pytest.mark.parametrize("waits", [False, True])
async def test_a_job_does_not_see_the_context_of_another(app: Windlass, waits: bool) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    @app.task(queue="odd")
    async def serve(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)
        if waits:
            await asyncio.sleep(0)

    await work_off(app, [serve.call(str(number)) for number in range(60)], lambda: len(seen) == 60)
    assert set(seen) == {"nobody"}


async def test_jobs_share_an_asyncio_task_only_until_one_waits(app: Windlass) -> None:
    tasks: dict[str, list[int]] = {"waits": [], "does not": []}
    alive: list[asyncio.Task[None] | None] = []  # keeps the tasks alive, so that no id() is reused

    @app.task(queue="odd")
    async def serve(waits: bool) -> None:
        alive.append(asyncio.current_task())
        tasks["waits" if waits else "does not"].append(id(alive[-1]))
        if waits:
            await asyncio.sleep(0)

    await work_off(app, [serve.call(False) for _ in range(60)], lambda: len(alive) == 60)
    assert (len(set(tasks["does not"])) < 60) == (sys.version_info < (3, 12)), "since 3.12 each has a task of its own"
    await work_off(app, [serve.call(True) for _ in range(60)], lambda: len(alive) == 120)
    assert len(set(tasks["waits"])) == 60


@pytest.mark.parametrize("waits", [False, True])
async def test_a_job_that_cancels_itself_does_not_cancel_the_next(app: Windlass, waits: bool) -> None:
    done: list[int] = []

    @app.task(queue="odd", max_failures=0)
    async def serve(number: int) -> None:
        if number % 3 == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if waits:
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(0)
        done.append(number)

    good = [number for number in range(30) if number % 3]
    await work_off(app, [serve.call(number) for number in range(30)], lambda: set(good) <= set(done))
    assert app.queue("odd").counts().dead == (10 if waits else 0)
    await app.queue("odd").apurge()


async def test_jobs_that_never_wait_yield_to_the_event_loop(app: Windlass) -> None:
    turns = [0]
    at: list[int] = []

    @app.task(queue="odd")
    async def compute() -> None:
        ends = time.monotonic() + 0.002
        while time.monotonic() < ends:
            pass
        at.append(turns[0])

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await work_off(app, [compute.call() for _ in range(20)], lambda: len(at) == 20)
    counting.cancel()
    assert len(set(at)) == 20, "each was in a turn of its own"


async def test_a_worker_with_one_slot_keeps_the_queue_order(app: Windlass) -> None:
    began: list[int] = []

    @app.task(queue="odd")
    async def serve(number: int) -> None:
        began.append(number)
        if number % 7 == 0:
            await asyncio.sleep(0)

    await work_off(app, [serve.call(number) for number in range(2000)], lambda: len(began) == 2000, slots=1)
    assert began == list(range(2000))


async def test_two_queues_may_use_the_same_fence(app: Windlass, runner_settings: Settings) -> None:
    """Two servers of a cluster can do so."""
    ran: list[str] = []

    @app.task(queue="odd")
    async def serve(name: str) -> None:
        ran.append(name)
        await asyncio.sleep(0)

    settings = structs.replace(runner_settings, queues={"odd": 1, "even": 1}, concurrency=5)
    runner = Runner(app, settings, "odd", SlotTable.create(settings.entries), NoChildren(), lambda queue: None)
    await serve.aenqueue("odd")
    await serve.using(queue="even").aenqueue("even")
    leases = [*await app.queue("odd").alease_many(1), *await app.queue("even").alease_many(1)]
    for lease in leases:
        admit(runner, structs.replace(lease, fence=7))
    executor = runner.executors["loop"]
    await until(lambda: executor.idle)
    assert sorted(ran) == ["even", "odd"]
    assert executor.room >= 5
    assert [len(consumer.outcomes) for consumer in runner.consumers.values()] == [1, 1]
    for lease in leases:
        await app.queue(lease.queue).acomplete(lease)


async def test_a_job_is_retried_when_no_thread_can_start(app: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    @app.task(queue="odd", run="thread", min_backoff=0.001, max_backoff=0.001)
    def serve(number: int, job: Job = current()) -> None:
        ran.append(job.failures)

    submit, refusals = ThreadPoolExecutor.submit, iter(range(3))

    def refuse(self: ThreadPoolExecutor, *given: Any) -> Any:
        if is_work_of_a_thread(given[0]) and next(refusals, None) is not None:
            raise RuntimeError("can't start new thread")
        return submit(self, *given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    await work_off(app, [serve.call(1)], lambda: len(ran) == 1, slots=1)
    assert ran == [3]


async def work_off(app: Windlass, calls: list[TaskCall], done: Callable[[], bool], slots: int = 2) -> None:
    """Have a worker run them."""
    await app.aenqueue_many(calls)
    worker = app.worker(concurrency=slots)
    working = asyncio.create_task(worker.run())
    await until(lambda: done() and app.queue("odd").counts().running == 0)
    await worker.stop()
    await working
