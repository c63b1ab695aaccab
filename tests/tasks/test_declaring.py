"""Declaring a task: its settings, where it may run, and every function, option and name that is refused at once."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw

from tests.support.server import Server
from tests.support.tasks import A_JOB, named, slashed, starred, yielding
from windlass import Limits, Windlass
from windlass.errors import InvalidArguments, InvalidOption, InvalidTask


async def go() -> None: ...


def stay() -> None: ...


# -- settings --------------------------------------------------------------------------------------


def test_a_bare_task_has_the_plain_settings(here: Windlass) -> None:
    @here.task
    def tidy(days: int) -> int:
        """Tidy up."""
        return days * 2

    assert (tidy.queue, tidy.run, tidy.timeout) == ("default", "thread", None)
    assert tidy.name == f"{__name__}.test_a_bare_task_has_the_plain_settings.tidy"
    assert (tidy.limits, tidy.on_exception, tidy.keep_result, tidy.failure_handler) == (Limits(), "retry", 0, None)
    assert tidy.__doc__ == "Tidy up."
    assert "tidy" in repr(tidy)


def test_a_task_with_options(here: Windlass) -> None:
    @here.task(
        queue="media",
        name="make.thumbnail",
        run="process",
        timeout="2m",
        max_failures=1,
        max_stalls=0,
        min_backoff="1s",
        max_backoff=timedelta(minutes=1),
        priority=3,
        keep_result="1h",
        on_exception="fail",
    )
    def thumbnail(path: str) -> None: ...

    assert (thumbnail.name, thumbnail.queue, thumbnail.run) == ("make.thumbnail", "media", "process")
    assert (thumbnail.timeout, thumbnail.keep_result, thumbnail.on_exception) == (120.0, 3600.0, "fail")
    assert thumbnail.limits == Limits(1, 0, 1.0, 60.0)


def test_calling_a_task_runs_the_function(here: Windlass) -> None:
    @here.task
    def double(n: int) -> int:
        return 2 * n

    @here.task
    async def later(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert double(n=4) == 8
    assert asyncio.run(later(4)) == 8


@pytest.mark.parametrize(
    ("function", "run", "chosen"),
    [
        (go, None, "loop"),
        (stay, None, "thread"),
        (go, "loop", "loop"),
        (stay, "thread", "thread"),
        (go, "process", "process"),
        (stay, "process", "process"),
    ],
)
def test_where_a_task_runs(here: Windlass, function: Callable[..., Any], run: Any, chosen: str) -> None:
    options = {} if run is None else {"run": run}
    assert here.task(**options)(function).run == chosen


@pytest.mark.parametrize("run", ["loop", "process"])
def test_a_timeout_where_it_can_be_kept(here: Windlass, run: Any) -> None:
    assert here.task(run=run, timeout=0.5)(go).timeout == 0.5


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (stay, {"run": "loop"}, "would block the event loop"),
        (go, {"run": "thread"}, 'run="process"'),
        (stay, {"run": "fiber"}, "run must be one of 'loop', 'thread', 'process'"),
        (stay, {"timeout": "30s"}, 'a thread cannot be killed: use run="process"'),
        (stay, {"timeout": "30s", "run": "thread"}, 'use run="process"'),
        (go, {"timeout": 0}, "timeout=0 is out of range"),
        (go, {"timeout": "soon"}, "timeout='soon' is not a duration"),
        (go, {"max_failures": -1}, "max_failures must be a whole number"),
        (go, {"max_stalls": 1.5}, "max_stalls must be a whole number"),
        (go, {"min_backoff": "x"}, "min_backoff='x' is not a duration"),
        (go, {"max_backoff": math.nan}, "max_backoff=nan is not a duration"),
        (go, {"min_backoff": "1h"}, "min_backoff (3600 s) is longer than max_backoff (300 s)"),
        (go, {"priority": 10}, "priority must be a whole number from 0 to 9"),
        (go, {"keep_result": -1}, "keep_result=-1 is out of range"),
        (go, {"on_exception": "ignore"}, "on_exception must be one of 'retry', 'fail'"),
        (go, {"queue": "no spaces"}, "'no spaces' is not a queue name"),
        (go, {"name": ""}, "'' is not a task name"),
        (go, {"name": "two words"}, "without spaces"),
        (go, {"name": 7}, "7 is not a task name"),
        (go, {"retries": 3}, "unknown option 'retries'"),
        (go, {"delay": 3}, "unknown option 'delay'"),
    ],
    ids=named,
)
def test_options_that_cannot_be(
    here: Windlass, function: Callable[..., Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidTask) as caught:
        here.task(**options)(function)
    assert told in str(caught.value)
    assert str(options.get("name", function.__name__)) in str(caught.value)
    assert not here.tasks


def test_a_short_max_backoff_needs_no_min_backoff(here: Windlass) -> None:
    assert here.task(max_backoff=1)(go).limits.max_backoff == 1.0


@pytest.mark.serves("H2")
def test_what_an_exception_means_is_chosen_for_the_app_and_may_be_changed_by_a_task(server: Server) -> None:
    with Windlass(server.url, on_exception="fail") as strict:

        @strict.task
        def plain() -> None: ...

        @strict.task(on_exception="retry")
        def lenient() -> None: ...

        @strict.handler("raw")
        def raw(data: bytes) -> None: ...

    assert (plain.on_exception, lenient.on_exception, raw.on_exception) == ("fail", "retry", "fail")
    with pytest.raises(InvalidOption, match="on_exception must be one of 'retry', 'fail'"):
        Windlass(server.url, on_exception="ignore")  # type: ignore[arg-type]


# -- functions and names ---------------------------------------------------------------------------


def double_starred(**facts: str) -> None: ...


def method(self: Any, a: int) -> None: ...


def mangled(__a: int) -> None: ...


async def ayielding() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (starred, "parameter *names cannot be checked: name each argument, or use one names: list"),
        (double_starred, "parameter **facts cannot be checked: name each argument, or use one facts: dict"),
        (slashed, "parameter 'a' is positional-only, but arguments are sent by name: remove the /"),
        (method, "declare a function outside the class"),
        (mangled, "two underscores"),
        (yielding, "return instead"),
        (ayielding, "return instead"),
        (functools.partial(stay), "is not a function: write a def"),
        (Path, "is not a function"),
        ("emails", "is not a function"),
        (lambda: None, "pass name="),
    ],
    ids=named,
)
def test_functions_that_cannot_be_tasks(here: Windlass, function: Any, told: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        here.task(function)
    assert told in str(caught.value)


def test_a_task_cannot_be_declared_twice(here: Windlass) -> None:
    task = here.task(stay)
    with pytest.raises(InvalidTask, match="is not a function"):
        here.task(cast(Any, task))


def test_two_tasks_of_one_name_are_both_named(here: Windlass) -> None:
    here.task(name=f"{__name__}.go")(stay)
    with pytest.raises(InvalidTask) as caught:
        here.task(go)
    for told in (f"task '{__name__}.go'", "test_declaring.stay", "test_declaring.go", f"{__file__}:", "name="):
        assert told in str(caught.value)
    assert here.task(name="other")(go).name == "other"


def test_two_apps_may_use_the_same_name(here: Windlass) -> None:
    other = Windlass("redis://localhost:1")
    assert here.task(stay).name == other.task(stay).name


def test_the_app_knows_its_tasks(here: Windlass) -> None:
    task = here.task(stay)
    assert here.tasks == {f"{__name__}.stay": task}
    assert here.find_task(f"{__name__}.stay") is here.find_task("stay") is task
    assert here.find_task("go") is None
    with pytest.raises(TypeError):
        here.tasks["x"] = task  # type: ignore[index]


def test_a_decorated_function_keeps_its_signature(here: Windlass) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return ("logged", function(*args, **kwargs))

        return run

    @here.task
    @logged
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add.decode(Raw(b'{"a":1}')).call(A_JOB) == ("logged", 3)
    with pytest.raises(InvalidArguments, match="'a' must be int, not str"):
        add.call("1")
