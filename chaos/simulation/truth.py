"""The programs' answers, compared with the server's steps.

Each answer is a promise: an acknowledged enqueue is on the queue, a refused one never happens, a lease was given to
this caller, an outcome counts once. A call that ends in doubt promises nothing.

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
    """The answers that programs received."""

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
        """An enqueue was refused: it must never happen."""
        self._refused += [(queue, job) for job in jobs if name_of(job.data)]

    def doubted(self) -> None:
        """A call ended in doubt."""
        self.in_doubt += 1

    def leased(self, queue: str, leases: Sequence[Lease], holder: str | None) -> None:
        """A program received a lease."""
        for lease in leases:
            given = self._books[queue].given.get(lease.fence)
            if given is None or given.id != lease.id or name_of(given.data) != lease.data:
                raise Violation("I2", f"{lease.id}^{lease.fence} was reported as leased, but was not", lease.id)
            if holder is not None and given.holder != holder:
                raise Violation(
                    "I6", f"{lease.id}^{lease.fence} went to {holder}, but belongs to {given.holder}", lease.id
                )
            if (queue, lease.fence) in self._leased:
                raise Violation("I6", f"{lease.id}^{lease.fence} was given to two calls", lease.id)
            self._leased.add((queue, lease.fence))

    def settling_in_doubt(self, queue: str, outcomes: Sequence[Outcome]) -> None:
        """Outcomes were sent without an answer: a repeat may be told that they already counted."""
        self._doubtful.update((queue, outcome.lease.fence) for outcome in outcomes)

    def settled(self, queue: str, outcomes: Sequence[Outcome], told: Sequence[bool]) -> None:
        """Outcomes were answered."""
        for outcome, ours in zip(outcomes, told, strict=True):
            id, fence = outcome.lease.id, outcome.lease.fence
            how = self._books[queue].settled.get(fence)
            if ours and how in (None, "swept"):
                raise Violation("I4", f"an outcome of {id}^{fence} was acknowledged, but did not count", id)
            if not ours and how not in (None, "swept") and (queue, fence) not in self._doubtful:
                raise Violation("I4", f"an outcome of {id}^{fence} counted, but was reported as stale", id)
            if ours:
                self._doubtful.add((queue, fence))  # a repeat is told that the lease is over

    def last_look(self) -> None:
        """At the end: refused enqueues have never happened."""
        for queue, job in self._refused:
            if job.data in self._books[queue].enqueued:
                text = f"the enqueue of {job.id} was reported as not applied, but was applied"
                raise Violation("I1", text, job.id)

    def counts(self) -> dict[str, Any]:
        """Counts for the report."""
        return {"acknowledged": self.acknowledged, "in doubt": self.in_doubt, "leases": len(self._leased)}
