"""How an attempt at a job ended. Plain values: a layout records them, a worker only returns them."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.job import Lease


@dataclass(frozen=True, slots=True)
class Completed:
    """Done: the job leaves the queue and nothing stays behind."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Released:
    """Not started, or given up without fault: back to the front of the queue, nothing is charged."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Retried:
    """Failed, and to be tried again: behind its equals, at once or at a time (as in `NewJob.when`)."""

    lease: Lease
    when: tuple[str, int] | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Failed for good: the job is kept among the dead."""

    lease: Lease
    message: str = ""


Outcome = Completed | Released | Retried | Failed
