"""What the programs were told, against what the server did.

A promise is made to whoever gets an answer: an enqueue that was acknowledged is on the queue, one that was refused
never happened and never will, a lease is one that the server gave to this caller, an outcome counts once. A call that
ends in doubt promises nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chaos.simulation.book import Book
from chaos.simulation.jobs import name_of
from chaos.simulation.violation import Violation
from windlass.values.job import Lease, NewJob, Status
from windlass.values.outcome import Outcome

_LETTERS = {Status.ADDED: "a", Status.UPDATED: "u", Status.KEPT: "k", Status.BLOCKED: "b", None: "m"}


class Truth:
    """The answers that were heard."""

    def __init__(self, books: dict[str, Book]) -> None:
        self._books = books
        self._refused: list[tuple[str, NewJob]] = []
        self._leased: set[tuple[str, int]] = set()
        self._doubtful: set[tuple[str, int]] = set()
        self.acknowledged = 0
        self.in_doubt = 0

    def enqueued(self, queue: str, jobs: Sequence[NewJob], statuses: Sequence[Status | None]) -> None:
        """An enqueue was acknowledged."""
        self.acknowledged += len(jobs)
        for job, status in zip(jobs, statuses, strict=True):
            happened = self._books[queue].enqueued.get(job.data) if name_of(job.data) else _LETTERS[status]
            if happened != _LETTERS[status]:
                text = f"the enqueue of {job.id} was acknowledged as {status}; what happened was {happened}"
                raise Violation("I1", text, job.id)

    def refused(self, queue: str, jobs: Iterable[NewJob]) -> None:
        """An enqueue was refused: it did not happen."""
        self._refused += [(queue, job) for job in jobs if name_of(job.data)]

    def doubted(self) -> None:
        """A call ended in doubt."""
        self.in_doubt += 1

    def leased(self, queue: str, leases: Sequence[Lease], holder: str | None) -> None:
        """A lease was handed to a program."""
        for lease in leases:
            given = self._books[queue].given.get(lease.fence)
            if given is None or given.id != lease.id or name_of(given.data) != lease.data:
                raise Violation("I2", f"{lease.id}^{lease.fence} is told to be leased, and was not", lease.id)
            if holder is not None and given.holder != holder:
                raise Violation("I6", f"{lease.id}^{lease.fence} went to {holder}, and is for {given.holder}", lease.id)
            if (queue, lease.fence) in self._leased:
                raise Violation("I6", f"{lease.id}^{lease.fence} was handed to two calls", lease.id)
            self._leased.add((queue, lease.fence))

    def settling_in_doubt(self, queue: str, outcomes: Sequence[Outcome]) -> None:
        """Outcomes were sent, and nobody knows whether they counted: to repeat them may say that they did before."""
        self._doubtful.update((queue, outcome.lease.fence) for outcome in outcomes)

    def settled(self, queue: str, outcomes: Sequence[Outcome], told: Sequence[bool]) -> None:
        """Outcomes were answered."""
        for outcome, ours in zip(outcomes, told, strict=True):
            id, fence = outcome.lease.id, outcome.lease.fence
            how = self._books[queue].settled.get(fence)
            if ours and how in (None, "taken back"):
                raise Violation("I4", f"an outcome of {id}^{fence} was acknowledged, and did not count", id)
            if not ours and how not in (None, "taken back") and (queue, fence) not in self._doubtful:
                raise Violation("I4", f"an outcome of {id}^{fence} counted, and is told to be stale", id)
            if ours:
                self._doubtful.add((queue, fence))  # whoever says it again hears that it is over

    def last_look(self) -> None:
        """At the end: what was refused has never happened."""
        for queue, job in self._refused:
            if job.data in self._books[queue].enqueued:
                text = f"the enqueue of {job.id} was refused as not applied, and was applied"
                raise Violation("I1", text, job.id)

    def counts(self) -> dict[str, Any]:
        """For the report."""
        return {"acknowledged": self.acknowledged, "in doubt": self.in_doubt, "leases": len(self._leased)}
