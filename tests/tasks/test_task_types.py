"""The types of tasks, as mypy sees them: each wrong call below is one that mypy must refuse.

`warn_unused_ignores` is on, so `make types` fails when one of them is taken for right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, assert_type

import pytest

from windlass import Handler, Job, JobHandle, Lease, Task, TaskCall, Windlass, current
from windlass.errors import InvalidInput

app = Windlass("redis://localhost:1", retry_for=0)


@app.task(queue="emails", max_failures=10, timeout="30s")
async def welcome(user_id: int, locale: str = "en", job: Job = current()) -> bool:
    return user_id > 0


@app.task
def thumbnail(path: str, *, size: int = 64) -> str:
    return f"{path}:{size}"


@app.handler("thumbs")
def thumbs(data: bytes, job: Job = current()) -> int:
    return len(data)


@welcome.on_failure
async def told(data: bytes, job: Job) -> None: ...


@thumbs.on_failure(max_failures=3)
def mourned(error: Exception) -> str:
    return str(error)


def right_calls() -> None:
    """Never run: only its types count."""
    assert_type(welcome.enqueue(42, locale="fr"), JobHandle[bool])
    assert_type(welcome.enqueue(42).result(), bool)
    assert_type(welcome.call(user_id=42), TaskCall)
    sender = welcome.using(id="w", delay="5m", priority=2, queue="other", keep_result=60)
    assert_type(sender.enqueue(42), JobHandle[bool])
    assert_type(welcome.using(id="w").using(delay=3).call(42, "fr"), TaskCall)
    assert_type(thumbnail("a", size=3), str)
    assert_type(thumbnail.enqueue("a", size=3), JobHandle[str])
    assert_type(thumbnail.using(keep_result=60).enqueue("a").result(5), str)
    assert_type(thumbs(b"x"), int)
    assert_type(mourned(ValueError()), str)
    assert_type(app.enqueue_many(welcome.call(n) for n in range(3)), list[JobHandle[Any]])
    assert_type(app.job("emails", "w", bool).result(), bool)
    assert_type(app.job("emails", "w"), JobHandle[Any])
    assert_type(app.find_task("welcome"), Task[..., Any, Any] | None)


async def right_awaits() -> None:
    """Never run: only its types count."""
    assert_type(await welcome.aenqueue(42), JobHandle[bool])
    assert_type(await (await welcome.aenqueue(42)).aresult(), bool)
    assert_type(await welcome.using(id="w").aenqueue(42), JobHandle[bool])
    assert_type(await welcome(42), bool)
    assert_type(await app.aenqueue_many([welcome.call(1)]), list[JobHandle[Any]])
    assert_type(await told(b"", Job(Lease("q", "a", b"", 1))), None)


def wrong_calls() -> None:
    """Every line is refused by mypy; those that reach Windlass are refused there too."""
    wrong: list[Callable[[], object]] = [
        lambda: welcome.enqueue("42"),  # type: ignore[arg-type]
        lambda: welcome.enqueue(),  # type: ignore[call-arg]
        lambda: welcome.enqueue(42, lang="fr"),  # type: ignore[call-arg]
        lambda: welcome.enqueue(42, locale=None),  # type: ignore[arg-type]
        lambda: welcome.enqueue(42, "fr", "job"),  # type: ignore[arg-type]
        lambda: welcome.call("42"),  # type: ignore[arg-type]
        lambda: welcome.using(id="w").enqueue("42"),  # type: ignore[arg-type]
        lambda: welcome.using(id="w").call(),  # type: ignore[call-arg]
        lambda: welcome.using(retries=3),  # type: ignore[call-arg]
        lambda: welcome.using(queue=3),  # type: ignore[arg-type]
        lambda: welcome.using(priority="high").enqueue(42),  # type: ignore[arg-type]
        lambda: thumbnail.enqueue("a", 3),  # type: ignore[call-arg]
        lambda: thumbnail.enqueue("a", size="big"),  # type: ignore[arg-type]
        lambda: app.task(retries=3)(str.upper),  # type: ignore[call-overload]
        lambda: app.task(run="fiber")(str.upper),  # type: ignore[call-overload]
        lambda: app.task(on_exception="ignore")(str.upper),  # type: ignore[call-overload]
        lambda: app.handler("x", priority=3)(lambda data: None),  # type: ignore[call-arg]
        lambda: welcome.on_failure(priority=3)(len),  # type: ignore[call-overload]
        lambda: app.enqueue_many([b"x"]),  # type: ignore[list-item]
    ]
    for call in wrong:
        with pytest.raises(InvalidInput):
            call()


async def wrong_awaits() -> None:
    """The same for the awaitable twins."""
    wrong: list[Callable[[], Awaitable[object]]] = [
        lambda: welcome.aenqueue("42"),  # type: ignore[arg-type]
        lambda: welcome.using(id="w").aenqueue(),  # type: ignore[call-arg]
    ]
    for call in wrong:
        with pytest.raises(InvalidInput):
            await call()


def refused_by_types_alone() -> None:
    """Never run: only its types count."""

    @app.handler("texts")  # type: ignore[arg-type]
    def texts(data: str) -> None: ...

    thumbs("x")  # type: ignore[arg-type]
    asyncio.run(welcome("x"))  # type: ignore[arg-type]


def test_what_mypy_refuses_is_refused_at_run_time_too() -> None:
    wrong_calls()
    asyncio.run(wrong_awaits())


def test_declared_things_have_their_types() -> None:
    assert isinstance(welcome, Task)
    assert isinstance(thumbs, Handler)
    assert thumbnail("a") == "a:64"
