"""What an audit of a queue found: plain values.

Every job is to be in exactly one index, every entry of an index is to have its job, and counters are to say what is
there. Where that is not so something is *amiss*: somebody deleted a key by hand, or restored half of a backup.
"""

from __future__ import annotations

from msgspec import Struct

EXAMPLES = 10  # of each part that are named


class Mismatch(Struct, frozen=True):
    """One thing that is amiss: of what kind, and the id of the job (or the name of what it is about)."""

    kind: str
    id: str


class Drift(Struct, frozen=True):
    """What is amiss in one part of a queue: how much, how much of it was mended, and some of it by name."""

    part: str
    amiss: int
    mended: int
    examples: tuple[Mismatch, ...]


class Audit(Struct, frozen=True):
    """One queue, looked through: how many jobs, and only those parts in which something is amiss.

    `recovered` are jobs that came back from holders which are lost; only a repair takes them back.
    """

    queue: str
    layout: str
    jobs: int
    drifts: tuple[Drift, ...] = ()
    recovered: int = 0

    @property
    def amiss(self) -> int:
        """How many things did not fit when they were looked at."""
        return sum(drift.amiss for drift in self.drifts)

    @property
    def mended(self) -> int:
        """How many of them were mended."""
        return sum(drift.mended for drift in self.drifts)

    @property
    def sound(self) -> bool:
        """Whether nothing is amiss, or nothing is left of it."""
        return self.amiss == self.mended
