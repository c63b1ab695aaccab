"""Queues that belong to one handler: it gets each payload as it is, and shares the queue with no task."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.support.tasks import A_JOB, named, slashed, starred, yielding
from windlass import Job, Limits, Windlass, current
from windlass.errors import InvalidName, InvalidOption, InvalidTask, JobFailed


def stay() -> None: ...


def test_a_handler_gets_payloads_as_they_are(here: Windlass) -> None:
    @here.handler("thumbs", run="process", timeout="1m", max_failures=2, on_exception="fail")
    def thumb(data: bytes, job: Job = current()) -> tuple[bytes, str]:
        """Make a thumbnail."""
        return (data, job.id)

    @here.handler("films")
    async def film(data: bytes, /, *, me: Job = current()) -> str:
        return me.id

    @thumb.on_failure
    def told(error: JobFailed) -> None: ...

    assert here.handlers == {"thumbs": thumb, "films": film}
    assert thumb.invoke(b"\x00", A_JOB) == (b"\x00", "a")
    assert thumb(b"\x00", job=A_JOB) == (b"\x00", "a")
    assert asyncio.run(film.invoke(b"", A_JOB)) == "a"
    assert (thumb.queue, thumb.run, thumb.timeout, thumb.on_exception) == ("thumbs", "process", 60.0, "fail")
    assert (thumb.limits, film.run, film.limits) == (Limits(max_failures=2), "loop", Limits())
    assert thumb.failure_handler is not None
    assert thumb.failure_handler.wants == {"error"}
    assert thumb.__doc__ == "Make a thumbnail."
    with pytest.raises(TypeError):
        here.handlers["x"] = thumb  # type: ignore[index]


def two_things(data: bytes, more: int) -> None: ...


def named_only(*, data: bytes) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (stay, {}, "the function must take the payload as its first parameter"),
        (named_only, {}, "the function must take the payload as its first parameter"),
        (starred, {}, "the function must take the payload as its first parameter"),
        (two_things, {}, "parameter more: 'int' cannot be filled"),
        (yielding, {}, "return instead"),
        (slashed, {"timeout": 3}, 'use run="process"'),
        (slashed, {"queue": "x"}, "unknown option 'queue'"),
        (slashed, {"keep_result": 3}, "unknown option 'keep_result'"),
        (slashed, {"max_failures": None}, "max_failures must be"),
    ],
    ids=named,
)
def test_handlers_that_cannot_be(here: Windlass, function: Any, options: Any, told: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        here.handler("thumbs", **options)(function)
    assert told in str(caught.value)
    assert "the handler of queue 'thumbs'" in str(caught.value)
    assert not here.handlers


def test_a_handler_needs_its_queue(here: Windlass) -> None:
    with pytest.raises(InvalidTask, match=r'@app.handler\("thumbs"\)'):
        here.handler(cast(Any, slashed))
    with pytest.raises(InvalidName):
        here.handler("no spaces")


def raw(data: bytes) -> None: ...


def test_a_queue_has_tasks_or_one_handler(here: Windlass) -> None:
    here.handler("thumbs")(raw)
    with pytest.raises(InvalidTask, match=r"it is declared twice, also as .*test_queue_handlers.raw"):
        here.handler("thumbs")(raw)
    with pytest.raises(InvalidTask, match=r"task '.*\.stay': queue 'thumbs' has a handler, .*test_queue_handlers.raw"):
        here.task(queue="thumbs")(stay)
    assert not here.tasks

    task = here.task(queue="media")(stay)
    with pytest.raises(InvalidTask, match=r"the handler of queue 'media': task '.*\.stay', .*test_queue_handlers.stay"):
        here.handler("media")(raw)
    with pytest.raises(InvalidOption, match="queue 'thumbs' has a handler, so it takes no tasks"):
        task.using(queue="thumbs")
