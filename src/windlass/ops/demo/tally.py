"""The attempts in the ledger so far: which job, in which process, when it began, and how it ended."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from windlass.ops.demo.ledger import Entry, JobKind, Phase, Tail

PACE_WINDOW_S = 1.0
STEPS = (JobKind.ORDER, JobKind.THUMBNAIL, JobKind.EMAIL)  # that every order needs


@dataclass(slots=True)
class Attempt:
    """One attempt at a job. `end` is None while it runs, and stays None if its process is killed."""

    kind: JobKind
    number: int
    id: str
    pid: int
    began: float
    end: Phase | None = None


class Tally:
    """Reads the ledger as it grows, and keeps all attempts for the account."""

    def __init__(self, ledger: Path) -> None:
        self.attempts: list[Attempt] = []
        self.by_job: dict[str, list[Attempt]] = {}
        self.done: dict[JobKind, set[int]] = {kind: set() for kind in JobKind}  # the orders of the jobs that are done
        self.done_by: Counter[int] = Counter()  # process → number of attempts that it ended
        self.progress_at = monotonic()  # of the last new entry that is not a tick
        self._open: dict[tuple[int, str], Attempt] = {}
        self._tail = Tail(ledger)
        self._recent: deque[float] = deque()

    def read(self) -> None:
        """Read the new entries."""
        for entry in self._tail.read():
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        if entry.kind is not JobKind.TICK:
            self.progress_at = monotonic()
        attempt = self._open.pop((entry.pid, entry.id), None)
        if attempt is None:
            attempt = Attempt(entry.kind, entry.number, entry.id, entry.pid, entry.at)
            self.attempts.append(attempt)
            self.by_job.setdefault(entry.id, []).append(attempt)
        if entry.phase is Phase.BEGAN:
            self._open[entry.pid, entry.id] = attempt
            return
        attempt.end = entry.phase
        self.done_by[entry.pid] += 1
        if entry.phase is Phase.DID:
            self.done[entry.kind].add(entry.number)
            self._recent.append(entry.at)

    def open_in(self, pids: Collection[int]) -> list[Attempt]:
        """Attempts that have begun in these processes and not ended."""
        return [attempt for (pid, _), attempt in self._open.items() if pid in pids]

    def count(self, kind: JobKind, end: Phase | None = None) -> int:
        """The number of attempts of this kind; with `end`, those that ended so."""
        return sum(attempt.kind is kind and (end is None or attempt.end is end) for attempt in self.attempts)

    @property
    def delivered(self) -> set[int]:
        """Orders whose customer got an e-mail or a call."""
        return self.done[JobKind.EMAIL] | self.done[JobKind.CALL]

    @property
    def steps_done(self) -> int:
        """The number of finished steps; every order has three."""
        return len(self.done[JobKind.ORDER]) + len(self.done[JobKind.THUMBNAIL]) + len(self.delivered)

    @property
    def pace(self) -> float:
        """Jobs done per second, over the last PACE_WINDOW_S."""
        now = monotonic()
        while self._recent and self._recent[0] < now - PACE_WINDOW_S:
            self._recent.popleft()
        return len(self._recent) / PACE_WINDOW_S
