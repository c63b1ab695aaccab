"""A blocking verb inside a running event loop is told once for each line, with the verb to await instead."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from linecache import getline
from pathlib import Path

import pytest

from windlass import Windlass
from windlass.errors import BlockingCallWarning


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings, as a program without settings of its own shows them."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default", BlockingCallWarning)
        yield found


async def test_it_is_told_at_the_line_of_the_program_once(app: Windlass, told: list[warnings.WarningMessage]) -> None:
    @app.task(queue="blocking")
    async def greet(name: str) -> None: ...

    for number in range(3):
        greet.enqueue(str(number))
    (warning,) = told
    assert str(warning.message) == "enqueue() blocks the running event loop: await aenqueue() instead"
    assert Path(warning.filename) == Path(__file__)
    assert getline(warning.filename, warning.lineno).strip() == "greet.enqueue(str(number))"
    await app.queue("blocking").apurge()


async def test_every_blocking_verb_names_its_own_twin(app: Windlass, told: list[warnings.WarningMessage]) -> None:
    @app.task(queue="blocking")
    async def greet(name: str) -> None: ...

    queue = app.queue("blocking")
    verbs: list[Callable[[], object]] = [
        lambda: greet.using(id="a").enqueue("x"),
        lambda: app.enqueue_many([greet.call("x")]),
        lambda: queue.enqueue(b"x"),
        lambda: queue.lease(),
        queue.counts,
        lambda: list(queue.all_jobs("ready")),
        lambda: app.job("blocking", "a").cancel(),
        lambda: app.schedules.list("blocking"),
        app.queues,
        app.workers,
        queue.purge,
    ]
    for verb in verbs:
        verb()
    twins = [str(warning.message).partition("await ")[2].partition("()")[0] for warning in told]
    assert twins == [
        "aenqueue", "aenqueue_many", "aenqueue", "alease", "acounts", "aall_jobs", "acancel", "alist", "aqueues",
        "aworkers", "apurge",
    ]  # fmt: skip


def test_nothing_is_told_without_a_loop_or_in_a_thread(app: Windlass, told: list[warnings.WarningMessage]) -> None:
    queue = app.queue("blocking")

    async def main() -> None:
        await queue.aenqueue(b"x")
        await asyncio.to_thread(queue.enqueue, b"y")
        await queue.apurge()

    queue.enqueue(b"x")
    asyncio.run(main())
    assert told == []
