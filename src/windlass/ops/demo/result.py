"""How a run ended: the account, the kills, and the times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windlass.ops.demo.account import Account


@dataclass(frozen=True, slots=True)
class Killed:
    """One kill. `first` and `last` are the seconds until the first and the last interrupted job began again."""

    whom: str
    processes: int
    under_way: int
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds."""

    total: float
    server: float
    place: float
    """Enqueueing all orders."""
    drain: float
    """From then until the last job."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    account: Account
    kills: tuple[Killed, ...]
    timing: Timing
    server: str
    durable: bool
    """Whether each order was on disk before it was acknowledged. Only the embedded server is known to do so."""
    shop: Path
    """The file of the application."""
    folder: Path
    """The folder of the ledger, the thumbnails and the worker's log."""
    log: Path
    home: Path | None
    """The home of the embedded server, if it was kept."""

    @property
    def ok(self) -> bool:
        """Whether every order is accounted for."""
        return self.account.ok

    @property
    def kept(self) -> bool:
        """Whether the folder stays, so that a person can examine it."""
        return not self.ok or self.account.fell > 0 or self.home is not None

    def as_dict(self) -> dict[str, Any]:
        """The result as a JSON object."""
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
