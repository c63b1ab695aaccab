"""How a task ends: the verdicts it may raise, how a failure is told, and the handler that hears of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.tasks import A_JOB, named, yielding
from windlass import Failure, Limits, Retry, Snooze, Windlass
from windlass.errors import CrashError, InvalidTask, InvalidTime, JobFailed, StallError, WindlassError
from windlass.tasks.declaration import FAILURE_LIMITS


async def go() -> None: ...


def stay() -> None: ...


def test_retry_says_when() -> None:
    assert (Retry().when, Retry().message) == (None, "")
    assert Retry("busy", delay="5s").when == ("in", 5000)
    assert Retry(delay=0).when == Retry(delay=-1).when == ("in", 0)
    assert Retry(at=1.5).when == ("at", 1500)
    assert Retry(at=datetime(2030, 1, 1, tzinfo=UTC)).when == ("at", 1893456000000)
    assert str(Retry("busy")) == Retry("busy").message == "busy"


def test_snooze_says_when() -> None:
    assert Snooze("busy", delay="5s").when == ("in", 5000)
    assert Snooze(delay=0).when == ("in", 0)
    assert Snooze(at=datetime(2030, 1, 1, tzinfo=UTC)).when == ("at", 1893456000000)
    assert str(Snooze("busy", delay=1)) == Snooze("busy", delay=1).message == "busy"


def test_snooze_needs_a_time() -> None:
    with pytest.raises(InvalidTime, match=r'Snooze needs a time: Snooze\(delay="5m"\), or at='):
        Snooze("busy")


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("when", [{"delay": 1, "at": 1}, {"delay": "soon"}, {"at": datetime(2030, 1, 1)}, {"at": "x"}])
def test_no_moment_in_time(kind: type[Retry] | type[Snooze], when: Any) -> None:
    with pytest.raises(InvalidTime, match=f"{kind.__name__}: ") as caught:
        kind("busy", **when)
    assert "run_at" not in str(caught.value)


def test_verdicts_are_exceptions_but_no_errors_of_windlass() -> None:
    assert Failure("gone").message == str(Failure("gone")) == "gone"
    for verdict in (Retry(), Snooze(delay=1), Failure()):
        assert isinstance(verdict, Exception)
        assert not isinstance(verdict, WindlassError)


def test_how_a_job_failed() -> None:
    error = CrashError("emails", "a", "killed by signal 9")
    assert isinstance(error, StallError)
    assert isinstance(error, JobFailed)
    assert (error.queue, error.id, error.message) == ("emails", "a", "killed by signal 9")
    assert str(error) == "job 'a' of queue 'emails' failed for good: killed by signal 9"
    assert str(JobFailed("q", "b")) == "job 'b' of queue 'q' failed for good"


def test_a_task_without_a_word_about_failures_has_no_handler(here: Windlass) -> None:
    assert here.task(stay).failure_handler is None


def test_failure_handlers(here: Windlass) -> None:
    task, other = here.task(stay), here.task(go)

    @task.on_failure
    async def told(error: JobFailed, *, data: bytes) -> Any:
        return (data, error)

    @other.on_failure(run="process", timeout="1m", max_failures=5, max_stalls=1, min_backoff=1, max_backoff=9)
    def mourn() -> str:
        return "sad"

    handler, last = task.failure_handler, other.failure_handler
    assert handler is not None
    assert last is not None
    assert (handler.function, handler.run, handler.timeout) == (told, "loop", None)
    assert handler.wants == {"data", "error"}
    assert handler.limits == FAILURE_LIMITS == Limits(100, 3, 2.0, 3600.0)
    error = JobFailed("q", "a")
    assert asyncio.run(handler.call(data=b"x", job=A_JOB, error=error)) == (b"x", error)
    assert (last.run, last.timeout, last.limits, last.wants) == ("process", 60.0, Limits(5, 1, 1.0, 9.0), frozenset())
    assert last.call(data=b"x", job=A_JOB, error=error) == mourn() == "sad"


def unknown_fact(reason: str) -> None: ...


def spare_fact(data: bytes, more: int = 0) -> None: ...


def all_facts(**data: Any) -> None: ...


def placed_fact(data: bytes, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (unknown_fact, {}, "parameter reason: 'str' cannot be filled: only data, job and error are allowed"),
        (spare_fact, {}, "only data, job and error are allowed"),
        (all_facts, {}, "only data, job and error are allowed"),
        (placed_fact, {}, "only data, job and error are allowed"),
        (stay, {"timeout": 3}, 'use run="process"'),
        (stay, {"run": "loop"}, "would block"),
        (stay, {"priority": 3}, "unknown option 'priority'"),
        (stay, {"max_failures": "x"}, "max_failures must be"),
        (yielding, {}, "return instead"),
    ],
    ids=named,
)
def test_failure_handlers_that_cannot_be(here: Windlass, function: Any, options: Any, told: str) -> None:
    task = here.task(go)
    with pytest.raises(InvalidTask) as caught:
        task.on_failure(**options)(function)
    assert told in str(caught.value)
    assert f"the failure handler of task '{__name__}.go'" in str(caught.value)
    assert task.failure_handler is None


def test_one_failure_handler_is_enough(here: Windlass) -> None:
    task = here.task(go)
    task.on_failure(stay)
    with pytest.raises(InvalidTask, match=r"it is declared twice, also as .*test_endings.stay"):
        task.on_failure(stay)
