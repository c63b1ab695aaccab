"""What a worker reads: arguments by name and by place, the running job filled in, and defaults that no job shares."""
# ruff: noqa: B006, RUF013 — odd defaults are tested here

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from tests.support.tasks import A_JOB, Home, args_of
from windlass import Job, Task, TaskCall, Windlass, current
from windlass.errors import InvalidArguments, Undecodable
from windlass.tasks.envelope import read_envelope

# -- the running job -------------------------------------------------------------------------------


def test_the_job_is_filled_in_wherever_it_stands(here: Windlass) -> None:
    @here.task
    def first(job: Job = current(), a: int = 0) -> Any:
        return (job, a)

    @here.task
    def middle(a: int, this: Job = current(), b: int = 0) -> Any:
        return (a, this, b)

    @here.task
    def last(a: int, *, me: Job = current()) -> Any:
        return (a, me)

    assert first.decode(Raw(b'{"a":1}')).call(A_JOB) == (A_JOB, 1)
    assert middle.decode(Raw(b"[1,2]")).call(A_JOB) == (1, A_JOB, 2)
    assert last.decode(Raw(b"[1]")).call(A_JOB) == (1, A_JOB)
    assert args_of(middle.call(1, b=2)) == {"a": 1, "b": 2}
    wrong: list[Callable[[], TaskCall]] = [
        lambda: first.call(A_JOB),
        lambda: middle.call(1, A_JOB, 2),
        lambda: last.call(1, me=A_JOB),
    ]
    for call in wrong:
        with pytest.raises(InvalidArguments, match="is filled in when the task runs: omit it"):
            call()
    with pytest.raises(Undecodable, match="there is no argument 'me'"):
        last.decode(Raw(b'{"a":1,"me":2}'))


def test_a_direct_call_has_no_job_but_can_be_given_one(here: Windlass) -> None:
    @here.task
    def which(job: Job = current()) -> str:
        return job.id

    assert which(job=A_JOB) == "a"
    with pytest.raises(AttributeError, match="there is no running job, so 'id' is unknown"):
        which()
    assert repr(current()) == "current()"


def test_what_a_job_tells() -> None:
    job = A_JOB
    assert (job.id, job.queue, job.data, job.task, job.fence) == ("a", "emails", b"{}", "welcome", 7)
    assert (job.attempt, job.failures, job.stalls, job.priority) == (4, 1, 2, 2)


# -- reading what a job carries --------------------------------------------------------------------


def test_arguments_are_read_by_name_and_by_place(welcome: Task[..., Any, Any]) -> None:
    assert welcome.decode(Raw(b'{"user_id":1,"tries":3}')).arguments == {"user_id": 1, "tries": 3}
    assert welcome.decode(Raw(b'[1,"fr"]')).arguments == {"user_id": 1, "locale": "fr"}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (b"{}", "argument 'user_id' is missing"),
        (b"[]", "argument 'user_id' is missing"),
        (b'{"user_id":"1"}', "argument 'user_id' must be int, not str"),
        (b'["1"]', "argument 'user_id' must be int, not str"),
        (b"[1,2]", "argument 'locale' must be str, not int"),
        (b'{"user_id":null}', "argument 'user_id' must be int, not null"),
        (b'[1,"fr",3]', "it takes at most 2 positional arguments"),
        (b'{"user_id":1,"lang":"fr"}', "there is no argument 'lang': it takes user_id, locale, tries"),
        (b'{"user_id":1,"job":1}', "there is no argument 'job'"),
        (b'{"user_id":1,"locale":"\xff"}', "the arguments cannot be read"),
        (b"7", "the arguments cannot be read"),
        (b"", "the arguments cannot be read"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_arguments_that_cannot_be_read(welcome: Task[..., Any, Any], args: bytes, told: str) -> None:
    with pytest.raises(Undecodable) as caught:
        welcome.decode(Raw(args))
    assert caught.value.reason.startswith(f"welcome(): {told}")


def test_keyword_only_arguments_have_no_place(here: Windlass) -> None:
    @here.task
    def tell(a: int, *, b: int) -> None: ...

    assert args_of(tell.call(1, b=2)) == {"a": 1, "b": 2}
    with pytest.raises(Undecodable, match="argument 'b' is keyword-only: write args as an object"):
        tell.decode(Raw(b"[1]"))
    with pytest.raises(InvalidArguments, match="argument 'b' is missing"):
        tell.call(1)  # type: ignore[call-arg]


def test_too_deep_for_any(here: Windlass) -> None:
    @here.task
    def store(a: Any) -> None: ...

    with pytest.raises(Undecodable, match="nested too deep"):
        store.decode(Raw(b"[" * 100_000 + b"]" * 100_000))


def test_the_default_is_that_of_the_function(here: Windlass) -> None:
    @here.task
    def ask(a: int = None, b: Any = Home) -> Any:  # type: ignore[assignment]
        return (a, b)

    assert ask.decode(read_envelope(ask.call().data).args).call(A_JOB) == (None, Home)


def test_no_job_sees_what_another_put_into_a_default(here: Windlass) -> None:
    @here.task
    def gather(n: int, found: list[int] = [], *, more: dict[str, list[int]] = {"x": []}) -> Any:
        found.append(n)
        more["x"].append(n)
        return (found, more)

    assert gather.decode(Raw(b"[1]")).call(A_JOB) == ([1], {"x": [1]})
    assert gather.decode(Raw(b"[2]")).call(A_JOB) == ([2], {"x": [2]})


def test_an_async_task_gives_its_coroutine(here: Windlass) -> None:
    @here.task
    async def add(a: int, b: int = 1, job: Job = current()) -> tuple[int, str]:
        return a + b, job.id

    assert asyncio.run(add.decode(Raw(b"[1]")).call(A_JOB)) == (2, "a")
