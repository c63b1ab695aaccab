"""What is raised when a promise is broken."""

from __future__ import annotations


class Violation(Exception):
    """An invariant that does not hold: its name, and the jobs that it concerns."""

    def __init__(self, invariant: str, text: str, *jobs: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.jobs = jobs
