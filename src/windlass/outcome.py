"""How an attempt at a job ended. Plain values: a layout records them, a worker only returns them."""

from __future__ import annotations

from msgspec import Struct

from windlass.job import Lease


class Completed(Struct, frozen=True):
    """Done: the job leaves the queue and nothing stays behind."""

    lease: Lease


class Released(Struct, frozen=True):
    """Not started, or given up without fault: back to the front of the queue, nothing is charged."""

    lease: Lease


class Retried(Struct, frozen=True):
    """Failed, and to be tried again: behind its equals, at once or at a time (as in `NewJob.when`)."""

    lease: Lease
    when: tuple[str, int] | None = None
    message: str = ""


class Failed(Struct, frozen=True):
    """Failed for good: the job is kept among the dead."""

    lease: Lease
    message: str = ""


Outcome = Completed | Released | Retried | Failed
