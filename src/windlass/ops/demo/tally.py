"""What the ledger says so far, as attempts: which job, in which process, from when to when, and how it ended."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from windlass.ops.demo.ledger import Deed, Entry, Tail, What

WINDOW = 1.0  # seconds over which the pace is taken
STEPS = (What.ORDER, What.THUMBNAIL, What.EMAIL)  # what every order needs


@dataclass(slots=True)
class Attempt:
    """One attempt at a job. `end` is None until it ends, and for ever if its process is killed."""

    what: What
    number: int
    id: str
    pid: int
    began: float
    end: Deed | None = None


class Tally:
    """Reads the ledger as it grows, and keeps every attempt for the account."""

    def __init__(self, ledger: Path) -> None:
        self.attempts: list[Attempt] = []
        self.by_job: dict[str, list[Attempt]] = {}
        self.done: dict[What, set[int]] = {what: set() for what in What}  # orders for which this was done
        self.done_by: Counter[int] = Counter()  # process → attempts that it brought to their end
        self.moved_at = monotonic()  # when there was last something new, ticks aside
        self._open: dict[tuple[int, str], Attempt] = {}
        self._tail = Tail(ledger)
        self._recent: deque[float] = deque()

    def read(self) -> None:
        """Take in what jobs have written since."""
        for entry in self._tail.read():
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        if entry.what is not What.TICK:
            self.moved_at = monotonic()
        attempt = self._open.pop((entry.pid, entry.id), None)
        if attempt is None:
            attempt = Attempt(entry.what, entry.number, entry.id, entry.pid, entry.at)
            self.attempts.append(attempt)
            self.by_job.setdefault(entry.id, []).append(attempt)
        if entry.deed is Deed.BEGAN:
            self._open[entry.pid, entry.id] = attempt
            return
        attempt.end = entry.deed
        self.done_by[entry.pid] += 1
        if entry.deed is Deed.DID:
            self.done[entry.what].add(entry.number)
            self._recent.append(entry.at)

    def open_in(self, pids: Collection[int]) -> list[Attempt]:
        """What has begun in these processes and not ended."""
        return [attempt for (pid, _), attempt in self._open.items() if pid in pids]

    def count(self, what: What, end: Deed | None = None) -> int:
        """How many attempts there were, or how many that ended so."""
        return sum(attempt.what is what and (end is None or attempt.end is end) for attempt in self.attempts)

    @property
    def delivered(self) -> set[int]:
        """Orders whose customer was told, one way or the other."""
        return self.done[What.EMAIL] | self.done[What.CALL]

    @property
    def steps_done(self) -> int:
        """Of the three steps of every order, those that are done."""
        return len(self.done[What.ORDER]) + len(self.done[What.THUMBNAIL]) + len(self.delivered)

    @property
    def pace(self) -> float:
        """Jobs done per second, of late."""
        now = monotonic()
        while self._recent and self._recent[0] < now - WINDOW:
            self._recent.popleft()
        return len(self._recent) / WINDOW
