"""The result of a queue audit.

Every job must be in exactly one index, every index entry must have its job, and every counter must be right. Anything
else is a *problem*: for example after a key was deleted by hand, or a backup was restored in part.
"""

from __future__ import annotations

from msgspec import Struct

EXAMPLES = 10  # problems listed for each part: enough to find the cause


class Problem(Struct, frozen=True):
    """One problem: its kind, and the id of the job (or the name of the key or counter)."""

    kind: str
    id: str


class DamagedPart(Struct, frozen=True):
    """A part of a queue with problems: how many, how many were repaired, and some examples."""

    part: str
    problems: int
    repaired: int
    examples: tuple[Problem, ...]


class Audit(Struct, frozen=True):
    """The audit of one queue: how many jobs were checked, and the parts with problems.

    `recovered` counts the jobs that a repair swept from lost holders.
    """

    queue: str
    layout: str
    jobs: int
    damaged_parts: tuple[DamagedPart, ...] = ()
    recovered: int = 0

    @property
    def problems(self) -> int:
        """How many problems were found."""
        return sum(part.problems for part in self.damaged_parts)

    @property
    def repaired(self) -> int:
        """How many problems were repaired."""
        return sum(part.repaired for part in self.damaged_parts)

    @property
    def ok(self) -> bool:
        """Whether there is no problem, or all are repaired."""
        return self.problems == self.repaired
