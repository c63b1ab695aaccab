"""The exception for a broken promise."""

from __future__ import annotations


class Violation(Exception):
    """A violated invariant: its name, and the jobs concerned."""

    def __init__(self, invariant: str, text: str, *jobs: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.jobs = jobs
