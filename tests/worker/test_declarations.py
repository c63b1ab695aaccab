"""A task's declaration applies on any queue that a call is sent to, and to any wrapped function."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from tests.support.conditions import until
from tests.support.internals import perform_call
from windlass import Failure, Job, Windlass, current
from windlass.errors import InvalidOption
from windlass.storage.native.keys import queue_key
from windlass.tasks.envelope import write_envelope
from windlass.values.outcome import Crashed
from windlass.worker import attempt
from windlass.worker.runner.queue_consumer import QueueConsumer
from windlass.worker.runner.schedule_ticks import TickReport
from windlass.worker.runner.schedule_timer import IDLE_TICK_S


class Working:
    """A worker inside the test, for as long as the block lasts."""

    def __init__(self, app: Windlass, *queues: str, **options: Any) -> None:
        self._worker = app.worker(queues or None, **options)

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._worker.run())

    async def __aexit__(self, *_: object) -> None:
        await self._worker.stop()
        await self._task


def plainly(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A naive decorator: it hides that the function is a coroutine function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def test_a_coroutine_behind_a_plain_wrapper_is_awaited(app: Windlass) -> None:
    ended: list[int] = []

    @app.task(queue="wrapped")
    @plainly
    async def wrapped(n: int) -> None:
        await asyncio.sleep(0.01)
        ended.append(n)

    await wrapped.aenqueue(1)
    async with Working(app):
        await until(lambda: ended)
    assert ended == [1]


async def test_a_call_on_another_queue_keeps_the_declaration_of_its_task(app: Windlass) -> None:
    """The job runs, its failure handler runs, and a schedule can use such a queue."""
    ran: list[str] = []
    caught: list[dict[str, Any]] = []

    @app.task(queue="home")
    async def visit(name: str, times: int = 1) -> None:
        ran.append(name)
        if name == "bad":
            raise Failure("no")

    @visit.on_failure
    async def sorry(data: dict[str, Any]) -> None:
        caught.append(data)

    app.schedule("visits", visit.using(queue="away").call("scheduled"), every="1s")
    assert app.own_queues() == ["away", "home"]
    await visit.using(queue="away").aenqueue("good")
    await visit.using(queue="away").aenqueue("bad")
    async with Working(app, "away"):
        await until(lambda: caught and {"good", "bad", "scheduled"} <= set(ran))
    assert caught == [{"name": "bad", "times": 1}]
    assert (await app.queue("away").acounts()).dead == 0
    await app.schedules.adelete("away", "visits")
    await app.queue("away").apurge()


async def test_a_worker_without_processes_leaves_process_jobs_to_others(app: Windlass) -> None:
    @app.task(queue="media", run="process")
    def scale() -> None: ...

    @app.task(queue="plain")
    async def other() -> None: ...

    await scale.using(queue="plain").aenqueue()
    async with Working(app, "plain"):
        await until(lambda: app.queue("plain").counts().parked == 1)
    await app.queue("plain").apurge()


@pytest.mark.serves("Q2")
async def test_limits_of_a_job_override_those_of_its_task(app: Windlass) -> None:
    """Even if the job's own limits equal the defaults."""
    tries: list[int] = []

    @app.task(queue="limits", max_failures=0, min_backoff=0.001, max_backoff=0.001)
    async def fail(job: Job = current()) -> None:
        tries.append(job.attempt)
        raise ValueError("again")

    await fail.using(max_failures=10).aenqueue()
    async with Working(app):
        await until(lambda: app.queue("limits").counts().dead == 1)
    assert tries == list(range(1, 12))
    await app.queue("limits").apurge()


@pytest.mark.parametrize("given", [False, True])
def test_a_job_without_limits_may_stall_as_often_as_its_task(app: Windlass, given: bool) -> None:
    """A job that was pushed by hand, or that is for a handler, has no limits of its own."""

    @app.task(queue="crashes", max_stalls=0, run="process")
    def crash() -> None: ...

    queue = app.queue("crashes")
    if given:
        queue.enqueue(write_envelope("crash"), max_stalls=3)
    else:
        queue.enqueue(write_envelope("crash"))
    (lease,) = queue.lease_many(1)
    planned = attempt.plan(app, lease)
    assert isinstance(planned, attempt.Plan)
    crashed = Crashed(lease, "it died", is_cause=True, task_max_stalls=planned.limits.max_stalls)
    perform_call(app, app.layout("crashes").turn([crashed]))
    assert queue.counts().dead == (0 if given else 1)
    queue.purge()


def test_a_queue_name_is_not_taken_as_a_list_of_letters(app: Windlass) -> None:
    @app.task
    async def some() -> None: ...

    with pytest.raises(InvalidOption, match=r"\['emails'\]"):
        app.worker("emails")
    with pytest.raises(InvalidOption, match="the worker has no queue"):
        app.worker([])


async def test_a_tick_of_a_schedule_that_no_worker_declares_is_not_retried_in_a_loop(
    app: Windlass, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[float] = []
    real = QueueConsumer.tick

    async def counted(self: QueueConsumer) -> TickReport:
        ticks.append(time.monotonic())
        return await real(self)

    monkeypatch.setattr(QueueConsumer, "tick", counted)

    @app.task(queue="ticks")
    async def some() -> None: ...

    client.zadd(queue_key("ticks", "ticks"), {"forgotten": 1})
    async with Working(app):
        await until(lambda: len(ticks) == 3)
    assert ticks[2] - ticks[0] > 1.5 * IDLE_TICK_S
    client.delete(queue_key("ticks", "ticks"))
