"""How a run ended: the account, the kills, and how long everything took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windlass.ops.demo.account import Account


@dataclass(frozen=True, slots=True)
class Killed:
    """One kill and what came of it. `first` and `last`: seconds until what it cut short was begun again."""

    whom: str
    processes: int
    under_way: int
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things took, in seconds."""

    total: float
    server: float
    place: float
    """To place all orders."""
    drain: float
    """From then to the last job."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    account: Account
    kills: tuple[Killed, ...]
    timing: Timing
    server: str
    durable: bool
    """Whether each order was on disk before it was acknowledged: known of the embedded server alone."""
    shop: Path
    """The file of the application."""
    folder: Path
    """Where the ledger, the thumbnails and the worker's log are."""
    log: Path
    home: Path | None
    """The embedded server's home, where it was kept."""

    @property
    def ok(self) -> bool:
        """Whether every order is accounted for."""
        return self.account.ok

    @property
    def kept(self) -> bool:
        """Whether there is something to look into, so that the folder stays."""
        return not self.ok or self.account.fell > 0 or self.home is not None

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "ok": self.ok,
            **asdict(self.account),
            "kills": [
                {
                    "whom": kill.whom,
                    "processes": kill.processes,
                    "jobs_under_way": kill.under_way,
                    "seconds_until_first_rerun": _rounded(kill.first),
                    "seconds_until_last_rerun": _rounded(kill.last),
                }
                for kill in self.kills
            ],
            "seconds": {name: _rounded(value) for name, value in asdict(self.timing).items()},
            "server": self.server,
            "folder": str(self.folder) if self.kept else None,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
