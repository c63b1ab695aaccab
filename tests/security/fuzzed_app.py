"""An app whose tasks take arguments of every kind that a signature can name: the goal of hostile payloads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

from msgspec import Meta, Struct

from windlass import Job, Windlass, current

app = Windlass(max_dead=100_000)
DONE = "done"  # the queue's last job, which must still be run when all others were


class Colour(Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


class Circle(Struct, tag=True):
    """One of two shapes."""

    radius: float


class Square(Struct, tag=True):
    """The other."""

    side: Annotated[int, Meta(ge=0, le=100)]


@dataclass
class Address:
    """A value within a value."""

    street: str
    lines: list[str]
    born: date | None = None


class Options(TypedDict, total=False):
    """Named settings."""

    loud: bool
    size: int


@app.task
async def plain(number: int, text: str = "", job: Job = current()) -> None:
    """The usual."""


@app.task
async def moments(at: datetime, span: timedelta, day: date, id: UUID, price: Decimal, raw: bytes) -> None:
    """All that JSON has no word for."""


@app.task
async def nested(address: Address, shape: Circle | Square, options: Options, table: dict[int, list[float]]) -> None:
    """Values within values."""


@app.task
async def chosen(
    colour: Colour, size: Literal["s", "l"], name: Annotated[str, Meta(pattern="^[a-z]+$", max_length=9)]
) -> None:
    """Choices and patterns."""


@app.task
async def anything(value: Any, *, more: dict[str, Any] | None = None) -> None:
    """Whatever JSON can say."""


@app.task
async def kept(value: Any = None) -> Any:
    """Gives back what it was given, so that a result may be kept."""
    return value


TASKS = ("plain", "moments", "nested", "chosen", "anything", "kept")
