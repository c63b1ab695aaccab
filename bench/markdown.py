"""The result as it appears in the docs. `make bench ARGS="--write"` inserts it; figures are never copied by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import tables
from bench.tables import Rows

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench: {} -->\n", "<!-- bench: end -->\n"
PLACES = {"README.md": ("in short",), "docs/performance.md": ("in short", "in full")}


def sections(result: dict[str, Any]) -> dict[str, str]:
    """The text for each place, by name."""
    rows = tables.all_rows(result)
    short = "Windlass over the best of the others"
    told = [f"{tables.versions(result)}; {result['runs']} rounds. {tables.noise(result)}"]
    told += [f"{line}" for line in tables.remarks(result)]
    full = [f"**{title}**\n\n{_table(found)}" for title, found in rows.items() if title != short]
    return {"in short": _table(rows.get(short, [[""]])), "in full": "\n".join([*full, *(f"{line}\n" for line in told)])}


def put_in(text: str, places: tuple[str, ...], result: dict[str, Any]) -> str:
    """A page with the figures of this result inserted."""
    found = sections(result)
    for place in places:
        begin = BEGIN.format(place)
        before, opened, rest = text.partition(begin)
        _, closed, after = rest.partition(END)
        if not (opened and closed):
            raise ValueError(f"no place for {place!r} in the page: add {begin.strip()} and {END.strip()}")
        text = f"{before}{begin}\n{found[place]}\n{END}{after}"
    return text


def write(result: dict[str, Any]) -> None:
    """Insert the figures into the docs."""
    for name, places in PLACES.items():
        page = ROOT / name
        page.write_text(put_in(page.read_text(), places, result))


def _table(rows: Rows) -> str:
    headings, *others = rows
    marks = ["---" if heading in ("", "does not promise", "of what") else "---:" for heading in headings]
    lines = [headings, marks, *others]
    return "".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |\n" for line in lines)
