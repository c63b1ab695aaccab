"""Arguments and results of a user's own types: pydantic models, and any type by the app's hooks."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pydantic
import pytest
from msgspec import Raw

from tests.support.server import Server
from windlass import Job, Windlass, current
from windlass.errors import InvalidArguments, InvalidOption, InvalidTask, JobFailed, Undecodable


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


class User(pydantic.BaseModel):
    name: str = pydantic.Field(alias="userName", min_length=2)
    homes: list[Address] = []
    weight: float | None = None


class Odd(pydantic.BaseModel):
    price: int = pydantic.Field(serialization_alias="out", validation_alias="in")


class Money:
    """A type of nobody's library."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return self.cents


class Color:
    """A type that the hooks do not know."""


def to_plain(value: Any) -> Any:
    if isinstance(value, Money):
        return f"{value.cents} cents"
    raise NotImplementedError(type(value).__name__)


def from_plain(kind: type[Any], plain: Any) -> Any:
    if kind is Money:
        return Money(int(plain.split()[0]))
    raise NotImplementedError(kind.__name__)


@pytest.fixture
def hooked(server: Server) -> Iterator[Windlass]:
    with Windlass(server.url, encode=to_plain, decode=from_plain) as app:
        yield app


async def test_models_are_arguments_and_results(app: Windlass) -> None:
    seen: list[tuple[User, list[Address]]] = []

    @app.task(queue="own-types", keep_result="1m")
    async def move(user: User, to: list[Address], job: Job = current()) -> User:
        seen.append((user, to))
        return user.model_copy(update={"homes": to})

    user = User(userName="Ann", weight=1.5)
    handle = await move.aenqueue(user, to=[Address(street="Elm", number=7)])
    worker = app.worker()
    working = asyncio.create_task(worker.run())
    moved = await handle.aresult(30)
    other = await app.job("own-types", handle.id, User).aresult(30)
    await worker.stop()
    await working
    assert seen == [(user, [Address(street="Elm", number=7)])]
    assert moved == other == User(userName="Ann", weight=1.5, homes=[Address(street="Elm", number=7)])


async def test_a_hook_carries_any_type_both_ways(hooked: Windlass) -> None:
    @hooked.task(queue="own-types", keep_result="1m")
    async def double(price: Money, more: dict[str, Money] | None = None) -> Money:
        return Money(2 * price.cents + sum(each.cents for each in (more or {}).values()))

    assert b'"12 cents"' in double.call(Money(12)).data
    handle = await double.aenqueue(Money(12), {"tip": Money(1)})
    worker = hooked.worker()
    working = asyncio.create_task(worker.run())
    assert await handle.aresult(30) == Money(25)
    await worker.stop()
    await working


def test_errors_name_the_argument_and_never_show_a_value(app: Windlass) -> None:
    @app.task
    async def greet(user: User, homes: list[Address] | None = None) -> None: ...

    call: Callable[..., object] = greet.call  # without its types, as a program that is not checked
    for args, told in (
        (({"userName": "x"},), r"greet\(\): argument 'user' does not fit: userName: String should have"),
        (({},), "argument 'user' does not fit: userName: Field required"),
        (
            (User(userName="Ann"), [{"street": "a", "number": "secret"}]),
            r"argument 'homes\[0\]' does not fit: number",
        ),
        ((7,), "argument 'user' does not fit: Input should be a valid dictionary or instance of User"),
    ):
        with pytest.raises(InvalidArguments, match=told) as refused:
            call(*args)
        assert "secret" not in str(refused.value)
    with pytest.raises(Undecodable, match="argument 'user' does not fit: userName: Field required") as undecodable:
        greet.decode(Raw(b'{"user": {"name": "secret"}}'))
    assert "secret" not in str(undecodable.value)


def test_a_model_that_does_not_come_back_as_itself_is_refused_at_enqueue(app: Windlass) -> None:
    @app.task
    async def pay(odd: Odd) -> None: ...

    with pytest.raises(InvalidArguments, match="argument 'odd' does not fit: in: Field required"):
        pay.call(Odd(**{"in": 1}))


def test_nan_in_a_model_is_refused(app: Windlass) -> None:
    @app.task
    async def weigh(user: User) -> None: ...

    with pytest.raises(InvalidArguments, match="argument 'user' contains NaN"):
        weigh.call(User(userName="Ann", weight=math.nan))


def test_errors_of_hooks_name_the_argument(hooked: Windlass) -> None:
    @hooked.task
    async def paint(color: Color, price: Money) -> None: ...

    with pytest.raises(InvalidArguments, match="argument 'color' cannot be written as JSON"):
        paint.call(Color(), Money(1))
    with pytest.raises(InvalidArguments, match="argument 'color' does not fit: decode raised NotImplementedError"):
        paint.call("red", Money(1))  # type: ignore[arg-type]
    with pytest.raises(Undecodable, match="argument 'price' does not fit: invalid literal"):
        paint.decode(Raw(b'{"price": "many cents", "color": "red"}'))


async def test_a_result_that_no_hook_can_encode_fails_the_job(hooked: Windlass) -> None:
    @hooked.task(queue="own-types", keep_result="1m")
    async def pick() -> Money:
        return Color()  # type: ignore[return-value]

    handle = await pick.aenqueue()
    worker = hooked.worker()
    working = asyncio.create_task(worker.run())
    with pytest.raises(JobFailed, match="the returned value cannot be encoded as JSON"):
        await handle.aresult(30)
    await worker.stop()
    await working
    hooked.queue("own-types").purge()


def test_without_hooks_other_types_are_still_refused_at_declaration(app: Windlass) -> None:
    async def pay(price: Money) -> None: ...

    with pytest.raises(InvalidTask, match=r"parameter 'price' has a type that JSON cannot carry \(Money\).*encode="):
        app.task(pay)


def test_hooks_come_in_pairs() -> None:
    with pytest.raises(InvalidOption, match="encode and decode belong together"):
        Windlass("redis://nobody", encode=to_plain)
    with pytest.raises(InvalidOption, match="encode must be a function, not int"):
        Windlass("redis://nobody", encode=7, decode=from_plain)  # type: ignore[arg-type]


def test_windlass_never_imports_pydantic() -> None:
    code = "import sys, windlass, windlass.worker.runner.main; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
