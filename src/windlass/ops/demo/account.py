"""The account: the outcome of every order, from the ledger outside the server.

Every acknowledged order needs a thumbnail, and an e-mail or, if the e-mail cannot be delivered, a call. Each of these
steps must be in the ledger, or its job must still be on the server. Otherwise the order is **lost**; that number must
be 0.

Besides, no step may be repeated without a cause. Each order has one job per step. An attempt that did not end, and an
attempt whose work another attempt repeated, must have been in a process that was killed before it could settle the
job. The demo kills processes. So does the worker's supervisor, when a busy machine does not let it renew a lease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from windlass.ops.demo.ledger import JobKind, Phase
from windlass.ops.demo.tally import Attempt

CRASHES = 3  # after which a job is dead


@dataclass(frozen=True, slots=True)
class ServerView:
    """The jobs on the server after the run."""

    left: frozenset[int] = frozenset()
    """Orders with a job that is still on a queue."""
    ticks_fired: int = 0
    ticks_left: int = 0
    dead: tuple[tuple[str, int], ...] = ()
    """The reason and the number of crashes of each dead job."""


@dataclass(frozen=True, slots=True)
class Account:
    """The numbers of orders, jobs and attempts. The names are keys of `windlass demo --json`."""

    orders: int
    thumbnails: int
    emails: int
    called: int
    """Customers whose e-mail failed for good."""
    retries: int
    """Failed attempts at an e-mail that were retried."""
    crashes: int
    """Attempts of the job that kills its process."""
    dead: int
    ticks: int
    fell: int
    """Processes that ended, although neither the demo nor their job killed them."""
    cut_short: int
    """Attempts that ended with their process."""
    in_vain: int
    """Attempts that did their work and were killed before they settled the job: another attempt repeated the work."""
    lost: int
    left: int
    doubled: int
    """Steps of an order that had more than one job."""
    unexplained: int
    """Attempts that did not end, or were repeated, in a process that was not killed."""
    unknown: int
    """Orders in the ledger that the demo did not place."""
    ticks_lost: int
    poisoned: bool
    """Whether the job that kills its process is dead, after exactly CRASHES crashes."""

    @property
    def ok(self) -> bool:
        """Whether every order is fulfilled and every attempt is explained."""
        trouble = self.lost + self.left + self.doubled + self.unexplained + self.unknown + self.ticks_lost
        complete = self.thumbnails == self.emails + self.called == self.orders
        return trouble == 0 and complete and self.poisoned


def build_account(
    orders: int,
    attempts: Iterable[Attempt],
    *,
    killed: Collection[int] = (),
    fallen: Collection[int] = (),
    server: ServerView | None = None,
) -> Account:
    """Account for the orders 1 to `orders`.

    `killed` are the processes that the demo killed, `fallen` all processes that ended before the run did.
    """
    server = server or ServerView()
    jobs, ids, done = _sort(attempts)
    placed = set(range(1, orders + 1))
    fulfilled = done[JobKind.ORDER] & done[JobKind.THUMBNAIL] & (done[JobKind.EMAIL] | done[JobKind.CALL])
    unfulfilled = placed - fulfilled
    incidents = [attempt for tries in jobs.values() for attempt in _incidents(tries)]
    crashed = [attempt for attempt in incidents if attempt.kind is JobKind.POISON]
    # A process that ends without an attempt ended normally, like the child that runs one suspect job alone.
    busy = {attempt.pid for attempt in incidents} - {attempt.pid for attempt in crashed}
    fell = busy & set(fallen) - set(killed)
    excused = [one for one in incidents if one.kind is not JobKind.POISON and (one.pid in killed or one.pid in fell)]
    ticks = sum(
        bool({Phase.DID} & {one.end for one in tries}) for tries in jobs.values() if tries[0].kind is JobKind.TICK
    )
    return Account(
        orders=orders,
        thumbnails=len(done[JobKind.THUMBNAIL] & placed),
        emails=len(done[JobKind.EMAIL] & placed),
        called=len(done[JobKind.CALL] & placed),
        retries=sum(one.end is Phase.FAILED for tries in jobs.values() for one in _own_attempts(tries)[:-1]),
        crashes=len(crashed),
        dead=len(server.dead),
        ticks=ticks,
        fell=len(fell),
        cut_short=sum(attempt.end is None for attempt in excused),
        in_vain=sum(attempt.end is Phase.DID for attempt in excused),
        lost=len(unfulfilled - server.left),
        left=len(unfulfilled & server.left),
        doubled=sum(len(each) > 1 for (kind, _), each in ids.items() if kind not in (JobKind.TICK, JobKind.POISON)),
        unexplained=len(incidents) - len(crashed) - len(excused),
        unknown=len({number for _, number in ids} - placed - {0}),
        ticks_lost=max(0, server.ticks_fired - ticks - server.ticks_left),
        poisoned=server.dead == (("crashed", CRASHES),) and len(crashed) == CRASHES,
    )


def _sort(
    attempts: Iterable[Attempt],
) -> tuple[dict[str, list[Attempt]], dict[tuple[JobKind, int], set[str]], dict[JobKind, set[int]]]:
    """Attempts by job, jobs by kind and order, and the orders for which each kind of step was done."""
    jobs: dict[str, list[Attempt]] = defaultdict(list)
    ids: dict[tuple[JobKind, int], set[str]] = defaultdict(set)
    done: dict[JobKind, set[int]] = defaultdict(set)
    for attempt in attempts:
        jobs[attempt.id].append(attempt)
        # The call is a failure job, which logs under the id of the job that failed.
        ids[attempt.kind, attempt.number].add(attempt.id)
        if attempt.end is Phase.DID:
            done[attempt.kind].add(attempt.number)
    return jobs, ids, done


def _own_attempts(tries: list[Attempt]) -> list[Attempt]:
    """The attempts of a job without those of its failure job, which logs under the same id."""
    return [attempt for attempt in tries if attempt.kind is not JobKind.CALL]


def _incidents(tries: list[Attempt]) -> Iterable[Attempt]:
    """Attempts of one job that did not end, or whose work was repeated."""
    for each in (_own_attempts(tries), [attempt for attempt in tries if attempt.kind is JobKind.CALL]):
        for place, attempt in enumerate(each):
            if attempt.end is None or (attempt.end is Phase.DID and place < len(each) - 1):
                yield attempt
