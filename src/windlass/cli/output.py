"""How commands print: a table or JSON. Text from a queue cannot control the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from time import time
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from windlass.values.printable import in_json, in_one_line

if TYPE_CHECKING:
    from rich.table import Table

Row = Sequence[object]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def print_json(value: object) -> None:
    """Print one JSON document: on one line for programs, indented on a terminal."""
    text = msgspec.json.encode(value)
    try:
        text = msgspec.json.format(text, indent=2) if sys.stdout.isatty() else text
    except RecursionError:  # a payload that is nested too deep to be indented
        pass
    click.echo(in_json(text.decode()))


def print_table(columns: Sequence[str], rows: Sequence[Row], if_empty: str) -> None:
    """Print a table: drawn on a terminal, plain columns elsewhere. Without rows, `if_empty` on standard error."""
    if not rows:
        click.echo(if_empty, err=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(make_table(columns, rows))
    else:
        for line in _plain_lines(columns, rows):
            click.echo(line)


def make_table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """A table for rich to draw."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if _is_numeric(rows, place) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(value)) for value in row))
    return table


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print one line for each fact that is not None."""
    known = [(name, printable(value)) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{name:<{width}}  {value}")


def printable(value: object) -> str:
    """Escape control characters, so that a value cannot move the cursor or change a colour. None becomes `-`."""
    if value is None:
        return "-"
    return in_one_line(str(value))


def first_line(text: str | None, most: int = 100) -> str | None:
    """The first line, cut after `most` characters; `…` marks a cut."""
    if text is None:
        return None
    line, _, rest = text.strip().partition("\n")
    return f"{line[: most - 1]}…" if len(line) > most or rest else line


def format_duration(seconds: float) -> str:
    """The two largest units: `3d 4h`, `12s`."""
    left = round(max(0.0, seconds))
    parts: list[tuple[int, str]] = []
    for unit, letter in _UNITS:
        amount, left = divmod(left, unit)
        if amount or parts:
            parts.append((amount, letter))
    return " ".join(f"{amount}{letter}" for amount, letter in parts[:2] if amount) or "0s"


def format_relative(moment: float | None) -> str | None:
    """A time relative to now: `in 5m`, `3s ago`."""
    if moment is None:
        return None
    ahead = moment - time()
    return f"in {format_duration(ahead)}" if ahead >= 0 else f"{format_duration(-ahead)} ago"


def format_time(moment: float | None) -> str | None:
    """A time in this machine's time zone, and relative to now."""
    if moment is None:
        return None
    shown = datetime.fromtimestamp(moment).astimezone().isoformat(" ", "milliseconds")
    return f"{shown} ({format_relative(moment)})"


def format_size(amount: float | None) -> str | None:
    """A number of bytes: `12 kB`."""
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


def as_object(struct: Any) -> dict[str, Any]:
    """A struct as a JSON object."""
    made: dict[str, Any] = msgspec.to_builtins(struct)
    return made


def _is_numeric(rows: Sequence[Row], place: int) -> bool:
    return all(isinstance(row[place], int) for row in rows)


def _plain_lines(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    shown = [list(columns), *([printable(value) for value in row] for row in rows)]
    widths = [max(len(row[place]) for row in shown) for place in range(len(columns))]
    numeric = [_is_numeric(rows, place) for place in range(len(columns))]
    return [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in shown
    ]
