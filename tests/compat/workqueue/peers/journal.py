"""The journal of a peer: written at once, so that what is in it has happened, whenever the peer is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

LEASE_SECONDS = 1  # the shortest that the published clients can ask for
CLEAN_EVERY = 0.05


class Journal:
    """A file that only grows."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, mark: str, id: str) -> None:
        """One step."""
        os.write(self._file, f"{mark} {id}\n".encode())


def read_journal(path: Path) -> list[tuple[str, str]]:
    """All whole lines, as (mark, id)."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(line[0], line[2:]) for line in lines]


def data_of(id: str) -> bytes:
    """What an item of this id holds."""
    return f"data of {id}".encode()


class Stop:
    """Whether somebody said SIGTERM."""

    def __init__(self) -> None:
        self.said = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.said = True
