"""Tasks and handlers up to the point where a worker takes over: declared, enqueued, and decoded again.

In the order of a task's life: how it is declared, what its arguments may be, where and with which options it is sent,
what a worker reads, what happens at the end, and whole queues that belong to one handler.
"""
# ruff: noqa: B006, RUF013 — odd defaults, and current(), are what is tested here

from __future__ import annotations

import asyncio
import functools
import json
import math
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypedDict, cast

import msgspec
import pytest
import redis
from msgspec import Raw

from tests.support.servers import Server
from windlass import Failure, Job, Lease, Limits, Queue, Retry, State, Status, Task, TaskCall, Windlass, current
from windlass.declaration import FAILURE_LIMITS
from windlass.envelope import read_envelope
from windlass.errors import (
    CrashError,
    InvalidArguments,
    InvalidInput,
    InvalidName,
    InvalidOption,
    InvalidTask,
    InvalidTime,
    JobFailed,
    PayloadTooLarge,
    StallError,
    Undecodable,
    WindlassError,
)
from windlass.layouts.native.keys import queue_key

if TYPE_CHECKING:
    from nowhere import Elsewhere  # type: ignore[import-not-found]

A_JOB = Job(Lease("emails", "a", b"{}", fence=7, priority=2, failures=1, stalls=2), "welcome")


@pytest.fixture
def here() -> Windlass:
    """An app that never speaks to a server."""
    return Windlass("redis://localhost:1", retry_for=0)


@pytest.fixture
def emails(app: Windlass) -> Iterator[Queue]:
    queue = app.queue("emails")
    yield queue
    queue.purge()


@pytest.fixture
def texts(app: Windlass) -> Iterator[Queue]:
    queue = app.queue("texts")
    yield queue
    queue.purge()


def payload(data: bytes) -> Any:
    return json.loads(data)


def args_of(call: TaskCall) -> Any:
    return payload(call.data)["args"]


def round_trip(task: Task[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What the function will be called with."""
    return task.decode(read_envelope(task.call(*args, **kwargs).data).args).arguments


# -- declaring -----------------------------------------------------------------------------------------


def test_a_bare_task_has_the_plain_settings(here: Windlass) -> None:
    @here.task
    def tidy(days: int) -> int:
        """Tidy up."""
        return days * 2

    assert (tidy.name, tidy.queue, tidy.run, tidy.timeout) == ("tidy", "default", "thread", None)
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


def named(value: object) -> str:
    """How a value is called in the name of a test: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", getattr(value, "__name__", str(value)))


async def go() -> None: ...


def stay() -> None: ...


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
        (go, {"timeout": "soon"}, "timeout='soon' is no duration"),
        (go, {"max_failures": -1}, "max_failures must be a whole number"),
        (go, {"max_stalls": 1.5}, "max_stalls must be a whole number"),
        (go, {"min_backoff": "x"}, "min_backoff='x' is no duration"),
        (go, {"max_backoff": math.nan}, "max_backoff=nan is no duration"),
        (go, {"min_backoff": "1h"}, "min_backoff (3600 s) is longer than max_backoff (300 s)"),
        (go, {"priority": 10}, "priority must be a whole number from 0 to 9"),
        (go, {"keep_result": -1}, "keep_result=-1 is out of range"),
        (go, {"on_exception": "ignore"}, "on_exception must be one of 'retry', 'fail'"),
        (go, {"queue": "no spaces"}, "'no spaces' is no queue name"),
        (go, {"name": ""}, "'' is no task name"),
        (go, {"name": "two words"}, "without spaces"),
        (go, {"name": 7}, "7 is no task name"),
        (go, {"retries": 3}, "there is no option 'retries'"),
        (go, {"delay": 3}, "there is no option 'delay'"),
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


def starred(*names: str) -> None: ...


def double_starred(**facts: str) -> None: ...


def slashed(a: int, /) -> None: ...


def method(self: Any, a: int) -> None: ...


def mangled(__a: int) -> None: ...


def yielding() -> Iterator[int]:
    yield 1


async def ayielding() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (starred, "parameter *names cannot be checked: name each argument, or take one names: list"),
        (double_starred, "parameter **facts cannot be checked: name each argument, or take one facts: dict"),
        (slashed, "parameter 'a' is positional-only, and arguments travel by name: remove the /"),
        (method, "declare a function outside of the class"),
        (mangled, "two underscores"),
        (yielding, "return instead"),
        (ayielding, "return instead"),
        (functools.partial(stay), "is no function: write a def"),
        (Path, "is no function"),
        ("emails", "is no function"),
        (lambda: None, "give it a name with name="),
    ],
    ids=named,
)
def test_functions_that_cannot_be_tasks(here: Windlass, function: Any, told: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        here.task(function)
    assert told in str(caught.value)


def test_a_task_cannot_be_declared_twice(here: Windlass) -> None:
    task = here.task(stay)
    with pytest.raises(InvalidTask, match="is no function"):
        here.task(cast(Any, task))


def test_two_tasks_of_one_name_are_both_named(here: Windlass) -> None:
    here.task(name="go")(stay)
    with pytest.raises(InvalidTask) as caught:
        here.task(go)
    for told in ("task 'go'", "test_tasks.stay", "test_tasks.go", f"{__file__}:", "name="):
        assert told in str(caught.value)
    assert here.task(name="other")(go).name == "other"


def test_two_apps_may_use_the_same_name(here: Windlass) -> None:
    other = Windlass("redis://localhost:1")
    assert here.task(stay).name == other.task(stay).name


def test_the_app_knows_its_tasks(here: Windlass) -> None:
    task = here.task(stay)
    assert here.tasks == {"stay": task}
    assert here.find("stay") is task
    assert here.find("go") is None
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


# -- arguments: types ----------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Tree(msgspec.Struct):
    name: str
    below: list[Tree] = []


class Address(TypedDict):
    street: str


UserId = NewType("UserId", int)
Positive = Annotated[int, msgspec.Meta(gt=0)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**70),
        (float, 1.5),
        (bool, True),
        (str, "é☃"),
        (bytes, b"\x00\xff"),
        (None, None),
        (Any, {"a": [1, None, "x"]}),
        (object, [1, "x"]),
        (dict[str, object], {"a": [1]}),
        (int | None, None),
        (str | int, 3),
        (list[int], [1, 2]),
        (Sequence[int], [1, 2]),
        (Mapping[str, int], {"a": 1}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (dict[int, str], {1: "a"}),
        (datetime, datetime(2030, 1, 1, 12, tzinfo=UTC)),
        (date, date(2030, 1, 1)),
        (timedelta, timedelta(seconds=90)),
        (uuid.UUID, uuid.UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Literal["a", "b"], "a"),
        (Point, Point(1, 2)),
        (list[Point], [Point(1)]),
        (Tree, Tree("a", [Tree("b")])),
        (Address, {"street": "x"}),
        (UserId, 3),
        (Positive, 3),
    ],
    ids=named,
)
def test_types_that_travel(here: Windlass, kind: Any, value: Any) -> None:
    def carry(value: Any) -> None: ...

    carry.__annotations__["value"] = kind
    arrived = round_trip(here.task(carry), value)["value"]
    assert arrived == value
    assert type(arrived) is type(value)


class Home:
    pass


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Home, "(Home): use plain values, a dataclass or a msgspec.Struct"),
        (Path, "(Path)"),
        (list[Home], "(Home)"),
        (Home | None, "(Home)"),
        (Callable[[], None], "(Callable)"),
        (Iterable[int], "(Iterable)"),
        (complex, "(complex)"),
        (dict[tuple[int, int], str], "keys that JSON cannot carry"),
        (str | datetime, "more than one str-like type"),
        (Job, "write thing: Job = current()"),
        (7, "'7' is not supported"),
    ],
    ids=named,
)
def test_types_that_do_not_travel_are_refused(here: Windlass, kind: Any, told: str) -> None:
    def carry(user_id: int, thing: Any) -> None: ...

    carry.__annotations__["thing"] = kind
    with pytest.raises(InvalidTask) as caught:
        here.task(carry)
    assert "task 'carry': parameter 'thing'" in str(caught.value)
    assert told in str(caught.value)


def test_a_type_that_is_defined_further_down(here: Windlass) -> None:
    def carry(point: Any) -> None: ...

    carry.__annotations__["point"] = "Later"
    task = here.task(carry)
    with pytest.raises(InvalidTask, match=r"carry\(\): a type in its signature cannot be found.*'Later'"):
        task.call(Point(1))
    globals()["Later"] = Point
    try:
        assert args_of(task.call(Point(1))) == {"point": {"x": 1, "y": 0}}
        assert task.decode(Raw(b'[{"x":1}]')).arguments == {"point": Point(1)}
    finally:
        del globals()["Later"]


def test_only_the_types_of_arguments_must_be_found(here: Windlass) -> None:
    @here.task
    def report(day: int, job: Elsewhere = current()) -> Elsewhere: ...

    assert args_of(report.call(3)) == {"day": 3}


def test_a_bad_type_that_is_found_late_is_told_at_first_use(here: Windlass) -> None:
    def carry(thing: Any) -> None: ...

    carry.__annotations__["thing"] = "NotYet"
    task = here.task(carry)
    globals()["NotYet"] = Home
    try:
        with pytest.raises(InvalidTask, match="parameter 'thing' has a type that JSON cannot carry"):
            task.call(Home())
    finally:
        del globals()["NotYet"]


# -- arguments: calls ----------------------------------------------------------------------------------


@pytest.fixture
def welcome(here: Windlass) -> Task[..., Any]:
    @here.task
    async def welcome(user_id: int, locale: str = "en", *, tries: int = 1, job: Job = current()) -> None: ...

    return welcome


def test_arguments_by_place_and_by_name(welcome: Task[..., Any]) -> None:
    call = welcome.call(42, locale="fr")
    assert payload(call.data) == {"task": "welcome", "args": {"user_id": 42, "locale": "fr"}}
    assert args_of(welcome.call(user_id=42, tries=2)) == {"user_id": 42, "tries": 2}


def test_defaults_are_not_written(welcome: Task[..., Any]) -> None:
    assert args_of(welcome.call(42)) == {"user_id": 42}


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "argument 'user_id' is missing"),
        ((), {"locale": "fr"}, "argument 'user_id' is missing"),
        ((1, "en", 3), {}, "it takes at most 2 arguments by place, and 3 were given"),
        ((1,), {"user_id": 2}, "argument 'user_id' is given twice"),
        ((1,), {"lang": "fr"}, "there is no argument 'lang': it takes user_id, locale, tries"),
        ((1,), {"job": A_JOB}, "argument 'job' is filled in when the task runs: leave it away"),
        (("x",), {}, "argument 'user_id' must be int, not str"),
        ((None,), {}, "argument 'user_id' must be int, not NoneType"),
        ((1.0,), {}, "argument 'user_id' must be int, not float"),
        ((True,), {}, "argument 'user_id' must be int, not bool"),
        ((1, 2), {}, "argument 'locale' must be str, not int"),
        ((1, b"fr"), {}, "argument 'locale' must be str, not bytes"),
        ((1, datetime(2026, 1, 1, tzinfo=UTC)), {}, "argument 'locale' must be str, not datetime"),
        ((1, "\ud800"), {}, "argument 'locale' cannot be written as JSON"),
        ((object(),), {}, "argument 'user_id' cannot be written as JSON"),
    ],
    ids=named,
)
def test_calls_that_do_not_fit(
    welcome: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], told: str
) -> None:
    for send in (welcome.call, welcome.enqueue, welcome.using(priority=1).enqueue):
        with pytest.raises(InvalidArguments) as caught:
            send(*args, **kwargs)
        assert str(caught.value).startswith(f"welcome(): {told}")
    assert isinstance(caught.value, InvalidInput)


def test_errors_deep_inside_name_the_way(here: Windlass) -> None:
    @here.task
    def draw(points: list[Point], names: dict[str, int] = {}, size: Positive = 1) -> None: ...

    wrong: list[tuple[Callable[[], TaskCall], str]] = [
        (lambda: draw.call([Point(1), Point(cast(int, "x"))]), "argument 'points[1].x' must be int, not str"),
        (lambda: draw.call([], {"a": cast(int, "x")}), "argument 'names[...]' must be int, not str"),
        (lambda: draw.call([], {}, 0), "argument 'size' does not fit: Expected `int` >= 1"),
        (lambda: draw.call(cast(Any, [{}])), "argument 'points[0]' does not fit: Object missing required field `x`"),
    ]
    for call, told in wrong:
        with pytest.raises(InvalidArguments) as caught:
            call()
        assert told in str(caught.value)


def test_nan_and_infinity_are_refused_wherever_they_hide(here: Windlass) -> None:
    @here.task
    def store(a: Any, b: Any = None) -> None: ...

    @dataclass
    class Reading:
        value: float

    for bad in (math.nan, math.inf, -math.inf):
        for hidden in (bad, [1.0, bad], {"x": {"y": (bad,)}}, {bad}, Reading(bad), [Reading(bad)]):
            with pytest.raises(InvalidArguments, match=r"store\(\): argument 'b' holds NaN or infinity"):
                store.call(None, hidden)
    assert args_of(store.call(None, ["null", None, {"x": None}])) == {"a": None, "b": ["null", None, {"x": None}]}
    assert args_of(store.call(Raw(b"null"))) == {"a": None}


def test_what_holds_itself_or_goes_too_deep_is_refused(here: Windlass) -> None:
    @here.task
    def store(a: Any) -> None: ...

    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (loop, deep):
        with pytest.raises(InvalidArguments, match="argument 'a' is nested too deep"):
            store.call(bad)


def test_a_type_of_the_users_own_that_refuses(here: Windlass) -> None:
    class Even(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("odd")

    def take(even: Any) -> None: ...

    take.__annotations__["even"] = Even
    task = here.task(take)
    with pytest.raises(InvalidArguments, match=r"argument 'even' does not fit: odd"):
        task.call({"n": 1})
    with pytest.raises(Undecodable, match=r"argument 'even' does not fit: odd"):
        task.decode(Raw(b'{"even":{"n":1}}'))


def test_argument_names_do_not_collide_with_anything(here: Windlass) -> None:
    @here.task
    def odd(task: int, args: int, kwargs: int, id: str, delay: int, name: str, *, function: int) -> tuple[Any, ...]:
        return (task, args, kwargs, id, delay, name, function)

    call = odd.using(id="x", delay=1).call(1, args=2, kwargs=3, id="y", delay=4, name="n", function=5)
    assert odd.decode(read_envelope(call.data).args).call(A_JOB) == (1, 2, 3, "y", 4, "n", 5)
    assert call.options == {"id": "x", "delay": 1}


def test_an_argument_called_self(here: Windlass) -> None:
    @here.task
    def odd(a: int, self: int) -> int:
        return self

    assert args_of(odd.call(1, self=2)) == {"a": 1, "self": 2}


# -- the running job -----------------------------------------------------------------------------------


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
        with pytest.raises(InvalidArguments, match="is filled in when the task runs: leave it away"):
            call()
    with pytest.raises(Undecodable, match="there is no argument 'me'"):
        last.decode(Raw(b'{"a":1,"me":2}'))


def test_a_direct_call_has_no_job_but_can_be_given_one(here: Windlass) -> None:
    @here.task
    def which(job: Job = current()) -> str:
        return job.id

    assert which(job=A_JOB) == "a"
    with pytest.raises(AttributeError, match="no job is running that could be asked for 'id'"):
        which()
    assert repr(current()) == "current()"


def test_what_a_job_tells() -> None:
    job = A_JOB
    assert (job.id, job.queue, job.data, job.task, job.fence) == ("a", "emails", b"{}", "welcome", 7)
    assert (job.attempt, job.failures, job.stalls, job.priority) == (4, 1, 2, 2)


# -- reading what a job carries ------------------------------------------------------------------------


def test_arguments_are_read_by_name_and_by_place(welcome: Task[..., Any]) -> None:
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
        (b'[1,"fr",3]', "it takes at most 2 arguments by place"),
        (b'{"user_id":1,"lang":"fr"}', "there is no argument 'lang': it takes user_id, locale, tries"),
        (b'{"user_id":1,"job":1}', "there is no argument 'job'"),
        (b'{"user_id":1,"locale":"\xff"}', "the arguments cannot be read"),
        (b"7", "the arguments cannot be read"),
        (b"", "the arguments cannot be read"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_arguments_that_cannot_be_read(welcome: Task[..., Any], args: bytes, told: str) -> None:
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


# -- sending -------------------------------------------------------------------------------------------


def test_a_task_lands_on_its_queue_as_a_plain_job(app: Windlass, emails: Queue, client: redis.Redis) -> None:
    @app.task(queue="emails")
    async def welcome(user_id: int, locale: str = "en", job: Job = current()) -> None: ...

    receipt = welcome.enqueue(42, locale="fr")
    record = emails.get(receipt.id)
    assert record is not None
    assert record.data == b'{"task":"welcome","args":{"user_id":42,"locale":"fr"}}'
    assert (record.priority, record.limits, record.state) == (5, Limits(), State.READY)
    assert not client.exists(queue_key("emails", "meta"))
    welcome.using(max_failures=1).enqueue(42)
    assert client.exists(queue_key("emails", "meta"))


async def test_the_awaitable_twins(app: Windlass, emails: Queue) -> None:
    @app.task(queue="emails")
    async def welcome(user_id: int) -> None: ...

    handles = [await welcome.aenqueue(1), await welcome.using(id="two").aenqueue(2)]
    receipts = await app.aenqueue_many(welcome.call(n) for n in (3, 4))
    assert [handle.status for handle in handles] == [Status.ADDED] * 2
    assert [receipt.status for receipt in receipts] == [Status.ADDED] * 2
    leases = await emails.alease_many(10)
    assert [lease.json()["args"]["user_id"] for lease in leases] == [1, 2, 3, 4]


def test_options_of_the_task_travel_with_the_job(app: Windlass, emails: Queue) -> None:
    @app.task(queue="emails", max_failures=7, min_backoff="1s", priority=2, keep_result="1m")
    async def welcome(user_id: int) -> None: ...

    record = emails.get(welcome.enqueue(1).id)
    assert record is not None
    assert record.limits == welcome.limits == Limits(max_failures=7, min_backoff=1.0)
    assert (record.priority, record.json()["keep"]) == (2, 60)


def test_options_of_a_call(app: Windlass, emails: Queue, texts: Queue) -> None:
    @app.task(queue="emails", max_failures=7, keep_result="1m")
    async def welcome(user_id: int) -> None: ...

    twice = welcome.using(id="w", delay="5m", max_failures=1, keep_result=0).using(priority=1)
    assert twice.enqueue(1).status == Status.ADDED
    assert twice.using(if_exists="keep").enqueue(2).status == Status.KEPT
    record = emails.get("w")
    assert record is not None
    assert (record.state, record.priority, record.limits.max_failures) == (State.SCHEDULED, 1, 1)
    assert record.json() == {"task": "welcome", "args": {"user_id": 1}}

    welcome.using(queue="texts", id="t").enqueue(3)
    assert texts.get("t") is not None
    assert emails.get("t") is None


def test_who_has_the_last_word(server: Any, client: redis.Redis) -> None:
    defaults: Any = {"emails": {"max_failures": 3, "max_stalls": 1, "priority": 8}, "texts": {"priority": 7}}
    with Windlass(server.url, queue_options=defaults) as app:

        @app.task(queue="emails", max_stalls=2)
        async def welcome() -> None: ...

        assert welcome.limits == Limits(max_failures=3, max_stalls=2)
        assert welcome.call().options == {"max_failures": 3, "max_stalls": 2, "priority": 8}
        assert welcome.using(priority=0, max_failures=0).call().options == {
            "max_failures": 0,
            "max_stalls": 2,
            "priority": 0,
        }
        assert welcome.using(queue="texts").call().options == {"max_stalls": 2, "priority": 7}
        record = app.queue("emails").get(welcome.enqueue().id)
        app.queue("emails").purge()
        assert record is not None
        assert (record.limits, record.priority) == (welcome.limits, 8)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"emails": {"retries": 3}}, "queue_options of 'emails': there is no option 'retries'"),
        ({"emails": {"max_failures": -3}}, "queue_options of 'emails': max_failures must be"),
        ({"emails": {"priority": 11}}, "priority must be"),
        ({"emails": 3}, "must be options by queue"),
        (["emails"], "must be options by queue"),
        ({"no spaces": {}}, "is no queue name"),
    ],
    ids=named,
)
def test_queue_options_are_checked_at_once(given: Any, told: str) -> None:
    with pytest.raises(InvalidOption if "name" not in told else InvalidName) as caught:
        Windlass("redis://localhost:1", queue_options=given)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"retries": 3}, InvalidOption, "there is no option 'retries'"),
        ({"timeout": 3}, InvalidOption, "there is no option 'timeout'"),
        ({"queue": "no spaces"}, InvalidName, "is no queue name"),
        ({"keep_result": -1}, InvalidOption, "keep_result=-1"),
        ({"priority": 11}, InvalidOption, "priority"),
        ({"delay": 1, "run_at": 1}, InvalidTime, "not both"),
    ],
    ids=named,
)
def test_options_of_a_call_that_cannot_be(here: Windlass, options: Any, error: type[Exception], told: str) -> None:
    task = here.task(stay)
    with pytest.raises(error) as caught:
        task.using(**options).enqueue()
    assert told in str(caught.value)


def test_a_payload_over_the_limit_is_refused() -> None:
    app = Windlass("redis://localhost:1", max_payload=100)

    @app.task
    def store(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge):
        store.enqueue("x" * 100)
    with pytest.raises(PayloadTooLarge):
        app.enqueue_many([store.call("x"), store.call("x" * 100)])


def test_many_calls_to_many_queues_in_one_go(app: Windlass, emails: Queue, texts: Queue) -> None:
    @app.task(queue="emails")
    async def welcome(n: int) -> None: ...

    @app.task(queue="texts", max_failures=1)
    def ping(n: int) -> None: ...

    calls = [task.using(id=f"{task.name}-{n}").call(n) for n in range(5) for task in (welcome, ping)]
    receipts = app.enqueue_many(call for call in calls)
    assert [receipt.id for receipt in receipts] == [f"{name}-{n}" for n in range(5) for name in ("welcome", "ping")]
    assert app.enqueue_many([calls[0]])[0].status == Status.UPDATED
    assert app.enqueue_many([]) == []
    assert (emails.counts().ready, texts.counts().ready) == (5, 5)
    record = texts.get("ping-4")
    assert record is not None
    assert (record.limits.max_failures, record.json()["args"]) == (1, {"n": 4})


def test_a_bad_call_among_many_sends_nothing(app: Windlass, emails: Queue, texts: Queue) -> None:
    @app.task(queue="emails")
    async def welcome(n: int) -> None: ...

    with pytest.raises(InvalidOption):
        app.enqueue_many([welcome.call(1), welcome.using(queue="texts", priority=99).call(2)])
    assert emails.counts().waiting == texts.counts().waiting == 0


def test_only_calls_can_be_sent(here: Windlass) -> None:
    task = here.task(stay)
    forgotten = task.aenqueue()
    with pytest.raises(InvalidArguments, match="was an await forgotten"):
        here.enqueue_many([cast(Any, forgotten)])
    forgotten.close()
    with pytest.raises(InvalidArguments, match=r"is no call of a task: pass what task.call\(…\) returns"):
        here.enqueue_many([cast(Any, b"x")])


def test_a_call_is_a_value_that_keeps_its_data_to_itself(welcome: Task[..., Any]) -> None:
    call = welcome.using(priority=1).call(42, "secret")
    assert (call.task, call.queue, call.options) == ("welcome", "default", {"priority": 1})
    assert "secret" not in repr(call)
    with pytest.raises(AttributeError):
        call.task = "x"  # type: ignore[misc]


# -- verdicts and the end ------------------------------------------------------------------------------


def test_retry_says_when() -> None:
    assert (Retry().when, Retry().message) == (None, "")
    assert Retry("busy", delay="5s").when == ("in", 5000)
    assert Retry(delay=0).when == Retry(delay=-1).when == ("in", 0)
    assert Retry(at=1.5).when == ("at", 1500)
    assert Retry(at=datetime(2030, 1, 1, tzinfo=UTC)).when == ("at", 1893456000000)
    assert str(Retry("busy")) == Retry("busy").message == "busy"


@pytest.mark.parametrize("when", [{"delay": 1, "at": 1}, {"delay": "soon"}, {"at": datetime(2030, 1, 1)}, {"at": "x"}])
def test_retry_with_no_moment_in_time(when: Any) -> None:
    with pytest.raises(InvalidTime, match="Retry: ") as caught:
        Retry("busy", **when)
    assert "run_at" not in str(caught.value)


def test_verdicts_are_exceptions_but_no_errors_of_windlass() -> None:
    assert Failure("gone").message == str(Failure("gone")) == "gone"
    for verdict in (Retry(), Failure()):
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
        (unknown_fact, {}, "parameter reason: 'str' has no meaning: it may take data, job and error"),
        (spare_fact, {}, "it may take data, job and error"),
        (all_facts, {}, "it may take data, job and error"),
        (placed_fact, {}, "it may take data, job and error"),
        (stay, {"timeout": 3}, 'use run="process"'),
        (stay, {"run": "loop"}, "would block"),
        (stay, {"priority": 3}, "there is no option 'priority'"),
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
    assert "the failure handler of task 'go'" in str(caught.value)
    assert task.failure_handler is None


def test_one_failure_handler_is_enough(here: Windlass) -> None:
    task = here.task(go)
    task.on_failure(stay)
    with pytest.raises(InvalidTask, match=r"there is one already, .*test_tasks.stay"):
        task.on_failure(stay)


# -- handlers of whole queues --------------------------------------------------------------------------


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
        (stay, {}, "it must take the payload as its first parameter"),
        (named_only, {}, "it must take the payload as its first parameter"),
        (starred, {}, "it must take the payload as its first parameter"),
        (two_things, {}, "parameter more: 'int' has no meaning"),
        (yielding, {}, "return instead"),
        (slashed, {"timeout": 3}, 'use run="process"'),
        (slashed, {"queue": "x"}, "there is no option 'queue'"),
        (slashed, {"keep_result": 3}, "there is no option 'keep_result'"),
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
    with pytest.raises(InvalidTask, match=r"there is one already, .*test_tasks.raw"):
        here.handler("thumbs")(raw)
    with pytest.raises(InvalidTask, match=r"task 'stay': queue 'thumbs' has a handler, .*test_tasks.raw"):
        here.task(queue="thumbs")(stay)
    assert not here.tasks

    task = here.task(queue="media")(stay)
    with pytest.raises(InvalidTask, match=r"the handler of queue 'media': task 'stay', .*test_tasks.stay"):
        here.handler("media")(raw)
    with pytest.raises(InvalidOption, match="queue 'thumbs' has a handler, and takes no tasks"):
        task.using(queue="thumbs")


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
