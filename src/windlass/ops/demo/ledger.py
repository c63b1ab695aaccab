"""The shop's ledger: an append-only file outside the server, one line for everything that its jobs do.

    12.034512 4711 began thumbnail 42 01J9Z8       time (monotonic), process, deed, what, number of the order, job

A job writes each line in one piece, so it may be killed between any two instructions and the ledger still says how
far it came. The writing end is in the shop itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FILE = "ledger"


class Deed(StrEnum):
    """What a job says of an attempt."""

    BEGAN = "began"
    DID = "did"
    FAILED = "failed"


class What(StrEnum):
    """What it was about."""

    ORDER = "order"
    THUMBNAIL = "thumbnail"
    EMAIL = "email"
    CALL = "call"  # the customer is called, for the e-mail failed for good
    POISON = "poison"
    TICK = "tick"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    at: float
    pid: int
    deed: Deed
    what: What
    number: int
    id: str


class Tail:
    """The reading end: what was added since the last look. A line that is not whole yet is left for the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Entry]:
        """The new entries."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [_entry(line) for line in whole.decode().splitlines()]


def _entry(line: str) -> Entry:
    at, pid, deed, what, number, id = line.split(" ")
    return Entry(float(at), int(pid), Deed(deed), What(what), int(number), id)
