"""The state of every job of a run, in a few bytes each.

Jobs that have never been leased and jobs that have ended are rows of numbers; only jobs in between are objects (see
lives.py). The job's id gives the row: the part before its trailing number selects the columns, the number is the row.
Ids of another form share one set of columns with a dictionary.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from chaos.log import EnqueueAsked

# The state of a job: a value in the low bits, plus ACKNOWLEDGED if its enqueue was acknowledged.
UNKNOWN, ASKED, WAITING, ALIVE, COMPLETED, DEAD, BROKEN, CANCELLED, UNHEARD, FORGOTTEN, LOST = range(11)
STATE_MASK = 15
ACKNOWLEDGED = 16

NO_PLACE = 0xFFFFFFFF
NO_LIMIT = 1 << 31  # its limits are unknown
_MAX_ROWS_AHEAD = 1 << 20  # rows that a number may be ahead of the longest column


class Terms(NamedTuple):
    """Terms that many jobs share."""

    priority: int
    max_failures: int
    max_stalls: int
    singleton: bool


class Columns:
    """The rows of all jobs whose ids differ only in a number."""

    __slots__ = ("acks", "checks", "owners", "places", "prefix", "states", "terms", "width")

    def __init__(self, prefix: str, width: int) -> None:
        self.prefix = prefix
        self.width = width
        self.states = bytearray()
        self.owners = bytearray()  # number of the job's queue, from 1
        self.terms = array("H")
        self.checks = array("I")
        self.places = array("I")  # place in the line of ready jobs
        self.acks = array("I")  # number of the answer that acknowledged the job

    def grow(self, rows: int) -> None:
        more = rows - len(self.states)
        self.states.extend(bytes(more))
        self.owners.extend(bytes(more))
        self.terms.frombytes(bytes(2 * more))
        for column in (self.checks, self.places, self.acks):
            column.frombytes(bytes(4 * more))

    def name(self, row: int) -> str:
        return f"{self.prefix}-{row:0{self.width}d}"


class _Others(Columns):
    """Jobs whose ids have no trailing number."""

    __slots__ = ("names", "rows")

    def __init__(self) -> None:
        super().__init__("", 0)
        self.rows: dict[tuple[int, str], int] = {}
        self.names: list[str] = []

    def row(self, owner: int, job: str) -> int:
        row = self.rows.get((owner, job))
        if row is None:
            row = self.rows[owner, job] = len(self.names)
            self.names.append(job)
            if row >= len(self.states):
                self.grow(row + row // 8 + 64)
            self.owners[row] = owner
        return row

    def name(self, row: int) -> str:
        return self.names[row]


class Acks:
    """The answers that acknowledged jobs: time and durability level."""

    def __init__(self) -> None:
        self.times = array("Q", [0])
        self._levels = bytearray(1)
        self._names: list[str] = [""]

    def add(self, t: int, level: str) -> int:
        """Add an answer; returns its number."""
        if level not in self._names:
            self._names.append(level)
        self.times.append(t)
        self._levels.append(self._names.index(level))
        return len(self.times) - 1

    def level(self, number: int) -> str:
        """The durability level of an answer."""
        return self._names[self._levels[number]]


class Ledger:
    """All jobs of all queues."""

    def __init__(self) -> None:
        self._tables: list[dict[str, Columns]] = [{} for _ in range(10)]  # by width of the number; 0: no leading zeros
        self._others = _Others()
        self._terms: dict[Terms, int] = {}
        self.terms: list[Terms] = []
        self.acks = Acks()

    def find(self, owner: int, job: str) -> tuple[Columns, int]:
        """The row of a job on this queue; a new row has the state UNKNOWN."""
        prefix, _, digits = job.rpartition("-")
        width = len(digits)
        if 0 < width < 10 and digits.isdecimal():
            columns = self._tables[width].get(prefix)
            if columns is None:
                columns = self._columns(prefix, digits)
            row = int(digits)
            owners = columns.owners
            if row >= len(owners):
                if row > len(owners) + _MAX_ROWS_AHEAD:
                    return self._others, self._others.row(owner, job)
                columns.grow(row + row // 16 + 8)
            if owners[row] == owner:
                return columns, row
            if not owners[row]:
                owners[row] = owner
                return columns, row
        return self._others, self._others.row(owner, job)

    def _columns(self, prefix: str, digits: str) -> Columns:
        width = len(digits) if digits[0] == "0" and digits != "0" else 0
        table = self._tables[width]
        columns = table.get(prefix)
        if columns is None:
            columns = table[prefix] = Columns(prefix, width)
        return columns

    def intern(self, asked: EnqueueAsked) -> int:
        """A number for the terms that a job shares with others."""
        terms = Terms(asked.priority, asked.max_failures, asked.max_stalls, asked.singleton)
        number = self._terms.get(terms)
        if number is None:
            number = self._terms[terms] = len(self.terms)
            self.terms.append(terms)
        return number

    def columns(self) -> Iterator[Columns]:
        """All columns."""
        for table in self._tables:
            yield from table.values()
        yield self._others

    def in_state(self, owner: int, where: int) -> Iterator[tuple[Columns, int]]:
        """All jobs of a queue in this state."""
        for columns in self.columns():
            for state in (where, where | ACKNOWLEDGED):
                row = columns.states.find(state)
                while row >= 0:
                    if columns.owners[row] == owner:
                        yield columns, row
                    row = columns.states.find(state, row + 1)
