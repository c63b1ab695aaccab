"""The shop's ledger: an append-only file outside the server, with one line for each step of a job.

    12.034512 4711 began thumbnail 42 01J9Z8       time (monotonic), process, phase, kind, number of the order, job

A job writes each line with one system call, so the ledger is right even if the job is killed between two instructions.
The shop itself contains the writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FILE = "ledger"


class Phase(StrEnum):
    """How far an attempt is."""

    BEGAN = "began"
    DID = "did"
    FAILED = "failed"


class JobKind(StrEnum):
    """The kinds of jobs of the shop."""

    ORDER = "order"
    THUMBNAIL = "thumbnail"
    EMAIL = "email"
    CALL = "call"  # a phone call to the customer, after the e-mail failed for good
    POISON = "poison"
    TICK = "tick"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    at: float
    pid: int
    phase: Phase
    kind: JobKind
    number: int
    id: str


class Tail:
    """Reads new lines of the ledger. An incomplete line is left for the next read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Entry]:
        """The entries since the last read."""
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
    at, pid, phase, kind, number, id = line.split(" ")
    return Entry(float(at), int(pid), Phase(phase), JobKind(kind), int(number), id)
