"""The result of a queue audit.

Every job must be in exactly one index, every index entry must have its job, and every counter must be right. Anything
else is *amiss*: for example after a key was deleted by hand, or a backup was restored in part.
"""

from __future__ import annotations

from msgspec import Struct

EXAMPLES = 10  # mismatches listed for each part: enough to find the cause


class Mismatch(Struct, frozen=True):
    """One mismatch: its kind, and the id of the job (or the name of the key or counter)."""

    kind: str
    id: str


class Drift(Struct, frozen=True):
    """The mismatches in one part of a queue: how many, how many were mended, and some examples."""

    part: str
    amiss: int
    mended: int
    examples: tuple[Mismatch, ...]


class Audit(Struct, frozen=True):
    """The audit of one queue: how many jobs were checked, and the parts with mismatches.

    `recovered` counts the jobs of lost holders that a repair put back on the queue.
    """

    queue: str
    layout: str
    jobs: int
    drifts: tuple[Drift, ...] = ()
    recovered: int = 0

    @property
    def amiss(self) -> int:
        """How many mismatches were found."""
        return sum(drift.amiss for drift in self.drifts)

    @property
    def mended(self) -> int:
        """How many mismatches were mended."""
        return sum(drift.mended for drift in self.drifts)

    @property
    def sound(self) -> bool:
        """Whether there is no mismatch, or all are mended."""
        return self.amiss == self.mended
