"""How commands print: a table or JSON. What comes from a queue is shown as text, whatever is in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from time import time
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

if TYPE_CHECKING:
    from rich.table import Table

Row = Sequence[object]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def say_json(value: object) -> None:
    """One JSON document: in one line for programs, spread out for people."""
    text = msgspec.json.encode(value)
    try:
        click.echo(msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text)
    except RecursionError:  # a payload that is nested too deep to be spread out
        click.echo(text)


def say_table(columns: Sequence[str], rows: Sequence[Row], empty: str) -> None:
    """A table: drawn on a terminal, plain columns elsewhere. `empty` is said on standard error if there are no rows."""
    if not rows:
        click.echo(empty, err=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(table_of(columns, rows))
    else:
        for line in _lines(columns, rows):
            click.echo(line)


def table_of(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """A table to be drawn."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if _is_numeric(rows, place) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def say_facts(facts: Sequence[tuple[str, object]]) -> None:
    """One thing and all about it, a line for each fact that is known."""
    known = [(name, cell(value)) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{name:<{width}}  {value}")


def cell(value: object) -> str:
    """Text that a terminal shows as it is: nothing in it can move the cursor or change a colour."""
    if value is None:
        return "-"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(value))


def first_line(text: str | None, most: int = 100) -> str | None:
    """The beginning of a text that may be long."""
    if text is None:
        return None
    line, _, rest = text.strip().partition("\n")
    return f"{line[: most - 1]}…" if len(line) > most or rest else line


def length(seconds: float) -> str:
    """A length of time, as far as people care: `3d 4h`, `12s`."""
    left = round(max(0.0, seconds))
    parts: list[tuple[int, str]] = []
    for unit, letter in _UNITS:
        amount, left = divmod(left, unit)
        if amount or parts:
            parts.append((amount, letter))
    return " ".join(f"{amount}{letter}" for amount, letter in parts[:2] if amount) or "0s"


def distance(moment: float | None) -> str | None:
    """How far a moment is from now."""
    if moment is None:
        return None
    ahead = moment - time()
    return f"in {length(ahead)}" if ahead >= 0 else f"{length(-ahead)} ago"


def clock(moment: float | None) -> str | None:
    """A moment by this machine's clock, and how far away it is."""
    if moment is None:
        return None
    shown = datetime.fromtimestamp(moment).astimezone().isoformat(" ", "milliseconds")
    return f"{shown} ({distance(moment)})"


def size(amount: float | None) -> str | None:
    """A number of bytes."""
    if amount is None:
        return None
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def plural(amount: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def _is_numeric(rows: Sequence[Row], place: int) -> bool:
    return all(isinstance(row[place], int) for row in rows)


def _lines(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    shown = [list(columns), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[place]) for row in shown) for place in range(len(columns))]
    numeric = [_is_numeric(rows, place) for place in range(len(columns))]
    return [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in shown
    ]


def plain(value: Any) -> dict[str, Any]:
    """A struct as a JSON object."""
    made: dict[str, Any] = msgspec.to_builtins(value)
    return made
