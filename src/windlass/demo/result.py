"""How a run ended: the account, the kill, and how long everything took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windlass.demo.account import Account
from windlass.demo.ledger import Deed
from windlass.demo.tally import Tally


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill: who, when, and which jobs the server said it held."""

    worker: str
    pid: int | None
    at: float
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things took, in seconds."""

    total: float
    server: float
    enqueue: float
    drain: float
    """From the first lease to the last completion."""
    recovery: float | None
    """From the kill until the last job of the killed worker was finished."""


def drain_seconds(tally: Tally) -> float:
    """From the first lease to the last completion, by the workers' own ledgers."""
    entries = [entry for ledger in tally.entries.values() for entry in ledger]
    leased = [entry.at for entry in entries if entry.deed is Deed.LEASED]
    completed = [entry.at for entry in entries if entry.deed is Deed.COMPLETED]
    return max(completed) - min(leased) if completed else 0.0


def recovery_seconds(tally: Tally, kill: Kill | None) -> float | None:
    """From the kill until the last of the jobs it stranded was finished."""
    if kill is None:
        return None
    entries = [entry for ledger in tally.entries.values() for entry in ledger]
    finished = [entry.at for entry in entries if entry.deed is Deed.COMPLETED and entry.id in kill.held]
    return max(finished) - kill.at if finished else None


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    account: Account
    timing: Timing
    kill: Kill | None
    workers: Mapping[str, int]
    """Jobs completed by each worker."""
    work: float
    """Seconds of simulated work in all."""
    server: str
    durable: bool
    """Whether each job was on disk before it was acknowledged: known of the embedded server alone."""
    seed: int
    ledgers: Path
    home: Path | None
    """The embedded server's home, where it was kept."""

    @property
    def ok(self) -> bool:
        """Whether every job is accounted for."""
        return self.account.ok

    @property
    def enqueue_rate(self) -> float:
        """Jobs acknowledged per second."""
        return self.account.added / self.timing.enqueue if self.timing.enqueue else 0.0

    @property
    def drain_rate(self) -> float:
        """Jobs completed per second."""
        return self.account.completed / self.timing.drain if self.timing.drain else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything but the ids, ready for JSON."""
        kill = self.kill
        return {
            "ok": self.ok,
            **asdict(self.account),
            "killed": kill and {"worker": kill.worker, "process": kill.pid, "held": len(kill.held)},
            "workers": dict(self.workers),
            "seconds": {name: value and round(value, 3) for name, value in asdict(self.timing).items()},
            "enqueued_per_second": round(self.enqueue_rate),
            "completed_per_second": round(self.drain_rate),
            "simulated_work_seconds": round(self.work, 3),
            "server": self.server,
            "seed": self.seed,
        }
