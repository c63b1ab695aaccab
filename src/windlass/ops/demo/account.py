"""The account: what became of every order, from the ledger that was kept outside the server.

Every order that the server acknowledged needs a thumbnail, and an e-mail or, where that cannot be delivered, a call.
What was done for it must be found in the ledger, what was not must still be on the server; an order of which neither is
true is **lost**, the one number that must be 0.

Beside that nothing may be done twice without a cause. An order has one job for each step, for it hands them over once.
An attempt without an end, and one that did its work only for another to do it again, must have been in a process that
was killed: it could not say any more that it was done. The demo kills; so does the worker's own supervisor, when it
cannot
keep a lease alive on a machine that is too busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from windlass.ops.demo.ledger import Deed, What
from windlass.ops.demo.tally import Attempt

CRASHES = 3  # that a job is allowed before it is left among the dead


@dataclass(frozen=True, slots=True)
class ServerView:
    """What the server says when all is over."""

    left: frozenset[int] = frozenset()
    """Orders for which something is still on a queue."""
    ticks_fired: int = 0
    ticks_left: int = 0
    dead: tuple[tuple[str, int], ...] = ()
    """Why each dead job is dead, and how many crashes it had."""


@dataclass(frozen=True, slots=True)
class Account:
    """Numbers of orders, jobs and attempts."""

    orders: int
    thumbnails: int
    emails: int
    called: int
    """Customers whose e-mail failed for good."""
    retries: int
    """E-mails that failed, and were tried again."""
    crashes: int
    """Attempts of the job that kills its process."""
    dead: int
    ticks: int
    fell: int
    """Processes that ended, and neither the demo nor their job killed them."""
    cut_short: int
    """Attempts that ended with their process."""
    in_vain: int
    """Attempts that did their work and were killed before they could say so: it was done again."""
    lost: int
    left: int
    doubled: int
    """Steps of an order for which there was more than one job."""
    unexplained: int
    """Attempts without an end, or in vain, in a process that lives."""
    unknown: int
    """Orders in the ledger that nobody placed."""
    ticks_lost: int
    poisoned: bool
    """Whether the job that kills its process is dead, after exactly as many crashes as it was allowed."""

    @property
    def ok(self) -> bool:
        """Whether every order is fulfilled and nothing is unaccounted for."""
        trouble = self.lost + self.left + self.doubled + self.unexplained + self.unknown + self.ticks_lost
        complete = self.thumbnails == self.emails + self.called == self.orders
        return trouble == 0 and complete and self.poisoned


def draw_up(
    orders: int,
    attempts: Iterable[Attempt],
    *,
    killed: Collection[int] = (),
    fallen: Collection[int] = (),
    server: ServerView | None = None,
) -> Account:
    """Account for the orders 1 to `orders`.

    `killed` are the processes that the demo killed, `fallen` all that did not live to the end.
    """
    server = server or ServerView()
    jobs: dict[str, list[Attempt]] = defaultdict(list)
    ids: dict[tuple[What, int], set[str]] = defaultdict(set)
    done: dict[What, set[int]] = defaultdict(set)
    for attempt in attempts:
        jobs[attempt.id].append(attempt)
        # The call is made by a job of the server's own, under the name of the job that failed.
        ids[attempt.what, attempt.number].add(attempt.id)
        if attempt.end is Deed.DID:
            done[attempt.what].add(attempt.number)
    placed = set(range(1, orders + 1))
    fulfilled = done[What.ORDER] & done[What.THUMBNAIL] & (done[What.EMAIL] | done[What.CALL])
    open_ones = placed - fulfilled
    loose = [attempt for tries in jobs.values() for attempt in _loose_ends(tries)]
    crashed = [attempt for attempt in loose if attempt.what is What.POISON]
    # A process that ends with nothing in its hands ended in order: a child of its own for one suspect, for example.
    busy = {attempt.pid for attempt in loose} - {attempt.pid for attempt in crashed}
    fell = busy & set(fallen) - set(killed)
    excused = [one for one in loose if one.what is not What.POISON and (one.pid in killed or one.pid in fell)]
    ticks = sum(bool({Deed.DID} & {one.end for one in tries}) for tries in jobs.values() if tries[0].what is What.TICK)
    return Account(
        orders=orders,
        thumbnails=len(done[What.THUMBNAIL] & placed),
        emails=len(done[What.EMAIL] & placed),
        called=len(done[What.CALL] & placed),
        retries=sum(one.end is Deed.FAILED for tries in jobs.values() for one in _one_job(tries)[:-1]),
        crashes=len(crashed),
        dead=len(server.dead),
        ticks=ticks,
        fell=len(fell),
        cut_short=sum(attempt.end is None for attempt in excused),
        in_vain=sum(attempt.end is Deed.DID for attempt in excused),
        lost=len(open_ones - server.left),
        left=len(open_ones & server.left),
        doubled=sum(len(each) > 1 for (what, _), each in ids.items() if what not in (What.TICK, What.POISON)),
        unexplained=len(loose) - len(crashed) - len(excused),
        unknown=len({number for _, number in ids} - placed - {0}),
        ticks_lost=max(0, server.ticks_fired - ticks - server.ticks_left),
        poisoned=server.dead == (("crashed", CRASHES),) and len(crashed) == CRASHES,
    )


def _one_job(tries: list[Attempt]) -> list[Attempt]:
    """The attempts of a job itself, without those of its failure handler, which writes under the same name."""
    return [attempt for attempt in tries if attempt.what is not What.CALL]


def _loose_ends(tries: list[Attempt]) -> Iterable[Attempt]:
    """Attempts of one job that never ended, or did what was then done again."""
    for each in (_one_job(tries), [attempt for attempt in tries if attempt.what is What.CALL]):
        for place, attempt in enumerate(each):
            if attempt.end is None or (attempt.end is Deed.DID and place < len(each) - 1):
                yield attempt
