"""What the ledgers say so far: who holds and finished how much, and how fast it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from windlass.demo.ledger import Deed, Entry, Tail

WINDOW = 1.0  # seconds over which the pace is taken


class Leased(NamedTuple):
    """When a job was last leased, and by which worker."""

    at: float
    worker: str


class Tally:
    """Reads the ledgers as they grow, and keeps every entry for the account."""

    def __init__(self, ledgers: Mapping[str, Path]) -> None:
        self.entries: dict[str, list[Entry]] = {name: [] for name in ledgers}
        self.holding: dict[str, set[str]] = {name: set() for name in ledgers}
        self.finishers: dict[str, str] = {}  # job → the worker that completed it
        self.last_lease: dict[str, Leased] = {}
        self._tails = {name: Tail(path) for name, path in ledgers.items()}
        self._recent: deque[float] = deque()

    def read(self) -> None:
        """Take in what the workers have written since."""
        for name, tail in self._tails.items():
            for entry in tail.read():
                self.entries[name].append(entry)
                self._take(name, entry)

    def _take(self, name: str, entry: Entry) -> None:
        if entry.deed is Deed.LEASED:
            self.holding[name].add(entry.id)
            self.last_lease[entry.id] = max(Leased(entry.at, name), self.last_lease.get(entry.id, Leased(0, "")))
        elif entry.deed in (Deed.COMPLETED, Deed.REFUSED, Deed.DROPPED):
            self.holding[name].discard(entry.id)
        if entry.deed is Deed.COMPLETED:
            self.finishers[entry.id] = name
            self._recent.append(entry.at)

    @property
    def pace(self) -> float:
        """Jobs completed per second, of late."""
        now = monotonic()
        while self._recent and self._recent[0] < now - WINDOW:
            self._recent.popleft()
        return len(self._recent) / WINDOW
