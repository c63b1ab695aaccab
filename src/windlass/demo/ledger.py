"""A worker's ledger: an append-only file outside the server, one line for everything that it did with a job.

    12.034512 leased 01J9Z8 1700000000000017 0       time (monotonic), deed, job, fence, stalls before

A line is written before the step it announces is confirmed to anybody else, so that a worker may be killed
between any two instructions and its ledger still says how far it came.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from windlass.job import Lease


class Deed(StrEnum):
    """What a worker did with a job."""

    LEASED = "leased"
    RAN = "ran"  # the work itself is done; nobody knows yet
    SETTLING = "settling"  # about to tell the server
    COMPLETED = "completed"  # the server said yes: exactly once for each job
    REFUSED = "refused"  # the server said no: the lease was lost
    DROPPED = "dropped"  # given up before it was run: the lease was lost, or the worker was told to end


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a ledger."""

    at: float
    deed: Deed
    id: str
    fence: int
    stalls: int = 0


class Ledger:
    """The writing end, for one worker."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, deed: Deed, leases: Iterable[Lease]) -> None:
        """Write down one deed for each of these leases, in one step."""
        at = time.monotonic()
        text = "".join(f"{at:.6f} {deed} {lease.id} {lease.fence} {lease.stalls}\n" for lease in leases)
        if text and os.write(self._file, text.encode()) != len(text):
            raise OSError("the ledger could not be written: the disk is full")


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
    at, deed, id, fence, stalls = line.split(" ")
    return Entry(float(at), Deed(deed), id, int(fence), int(stalls))
