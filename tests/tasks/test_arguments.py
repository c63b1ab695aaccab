"""The arguments of a task: which types travel unchanged, and which calls are refused before anything is sent."""
# ruff: noqa: B006 — odd defaults are tested here

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypedDict, cast

import msgspec
import pytest
from msgspec import Raw

from tests.support.tasks import A_JOB, Home, args_of, named, payload, round_trip
from windlass import Job, Task, TaskCall, Windlass, current
from windlass.errors import InvalidArguments, InvalidInput, InvalidTask, Undecodable
from windlass.task import CallOptions
from windlass.tasks.arguments import OPTIONS
from windlass.tasks.envelope import read_envelope

if TYPE_CHECKING:
    from nowhere import Elsewhere  # type: ignore[import-not-found]


# -- types -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Home, "(Home): use plain values, a dataclass, a msgspec.Struct or a pydantic model"),
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
    assert f"{__name__}.test_types_that_do_not_travel_are_refused.carry': parameter 'thing'" in str(caught.value)
    assert told in str(caught.value)


def test_a_type_that_is_defined_further_down(here: Windlass) -> None:
    def carry(point: Any) -> None: ...

    carry.__annotations__["point"] = "Later"
    task = here.task(carry)
    with pytest.raises(InvalidTask, match=r"carry\(\): a type in its signature cannot be resolved.*'Later'"):
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


# -- calls -----------------------------------------------------------------------------------------


def test_arguments_by_place_and_by_name(welcome: Task[..., Any, Any]) -> None:
    call = welcome.call(42, locale="fr")
    assert payload(call.data) == {"task": welcome.name, "args": {"user_id": 42, "locale": "fr"}}
    assert args_of(welcome.call(user_id=42, tries=2)) == {"user_id": 42, "tries": 2}


def test_defaults_are_not_written(welcome: Task[..., Any, Any]) -> None:
    assert args_of(welcome.call(42)) == {"user_id": 42}


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "argument 'user_id' is missing"),
        ((), {"locale": "fr"}, "argument 'user_id' is missing"),
        ((1, "en", 3), {}, "it takes at most 2 positional arguments, and 3 were given"),
        ((1,), {"user_id": 2}, "argument 'user_id' is given twice"),
        ((1,), {"lang": "fr"}, "there is no argument 'lang': it takes user_id, locale, tries"),
        ((1,), {"job": A_JOB}, "argument 'job' is filled in when the task runs: omit it"),
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
    welcome: Task[..., Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], told: str
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


def test_a_mismatch_is_told_in_words_of_the_signature(here: Windlass) -> None:
    @here.task
    def send(
        mail: Point,
        reply: Point | None = None,
        names: list[str] = [],
        colour: Colour = Colour.RED,
        size: Literal["s", "l"] = "s",
        trees: dict[str, Tree] = {},
    ) -> None: ...

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"mail": 5}, "argument 'mail' must be Point, not int"),
        ({"mail": Point(1), "reply": 5}, "argument 'reply' must be Point or None, not int"),
        ({"mail": Point(1), "names": 5}, "argument 'names' must be list, not int"),
        ({"mail": Point(1), "colour": "blue"}, "argument 'colour' must be one of 'red'"),
        ({"mail": Point(1), "size": "m"}, "argument 'size' must be one of 'l', 's'"),
        ({"mail": Point(1), "trees": {"a": {"name": "a", "below": [5]}}}, "trees[...].below[0]' must be Tree, not int"),
    ]
    for kwargs, told in wrong:
        with pytest.raises(InvalidArguments) as caught:
            send.call(**kwargs)
        assert told in str(caught.value)
    with pytest.raises(Undecodable, match="argument 'mail' must be Point, not array"):
        send.decode(Raw(b'{"mail":[1]}'))


def test_an_option_among_the_arguments_is_told_where_it_belongs(welcome: Task[..., Any, Any]) -> None:
    assert CallOptions.__annotations__.keys() == OPTIONS
    with pytest.raises(InvalidArguments, match=r"no argument 'delay'.*\.using\(delay=…\)\.enqueue\(…\)"):
        welcome.enqueue(1, delay="5m")
    with pytest.raises(Undecodable) as caught:
        welcome.decode(Raw(b'{"user_id":1,"delay":5}'))
    assert "using" not in str(caught.value)


def test_nan_and_infinity_are_refused_wherever_they_hide(here: Windlass) -> None:
    @here.task
    def store(a: Any, b: Any = None) -> None: ...

    @dataclass
    class Reading:
        value: float

    for bad in (math.nan, math.inf, -math.inf):
        for hidden in (bad, [1.0, bad], {"x": {"y": (bad,)}}, {bad}, Reading(bad), [Reading(bad)]):
            with pytest.raises(InvalidArguments, match=r"store\(\): argument 'b' contains NaN or infinity"):
                store.call(None, hidden)

    @here.task
    def sleep(seconds: float, whole: int = 0) -> None: ...

    for arguments in ((math.nan,), (1.0, math.inf)):
        with pytest.raises(InvalidArguments, match="contains NaN or infinity, which JSON lacks"):
            sleep.call(*cast(Any, arguments))
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
