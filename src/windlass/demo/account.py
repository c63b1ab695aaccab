"""The account: what became of every job, from the ledgers that were kept outside the server.

Every job that the server acknowledged must be found again, in one of three places:

    completed   one worker was told, once, that the server has taken the job off the queue
    left        the server still has it
    lost        neither: the one number that must be 0

Beside that, each time that a job's work ran in vain must have a reason (the worker was killed, or was told that
its lease was lost), and no job may be completed twice or come from nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from windlass.demo.ledger import Deed, Entry


@dataclass(frozen=True, slots=True)
class Account:
    """Numbers of jobs."""

    added: int
    completed: int
    """Found to be completed, `cut_off` included."""
    left: int
    lost: int
    recovered: int
    """Leased by a worker that fell, completed by another."""
    cut_off: int
    """Completed by a worker that fell before it could write that down."""
    ran_twice: int
    """Jobs whose work ran more than once."""
    refused: int
    """Times that work ran in vain because its lease had ended: the server refused to complete the job."""
    unexplained: int
    """Times that work ran with no word on whether it counted, or the other way round."""
    completed_twice: int
    unknown: int
    """Jobs in the ledgers that nobody added."""

    @property
    def ok(self) -> bool:
        """Whether every job is completed and nothing is unaccounted for."""
        trouble = self.left + self.lost + self.unexplained + self.completed_twice + self.unknown
        return trouble == 0 and self.completed == self.added


def draw_up(
    added: Collection[str],
    ledgers: Mapping[str, Sequence[Entry]],
    *,
    fallen: Collection[str] = (),
    held: Collection[str] = (),
    left: Collection[str] = (),
) -> Account:
    """Account for the jobs that were `added`.

    `fallen` are the workers that did not end by themselves, `held` what the server said they held right
    after, and `left` what is on the server in the end.
    """
    known, remaining = set(added), set(left)
    every = [entry for ledger in ledgers.values() for entry in ledger]
    by_fallen = [entry for name in fallen for entry in ledgers[name]]
    by_others = [entry for name, ledger in ledgers.items() if name not in fallen for entry in ledger]
    confirmed = Counter(entry.id for entry in every if entry.deed is Deed.COMPLETED)
    runs = Counter(entry.id for entry in every if entry.deed is Deed.RAN)
    cut_off = (_cut_off(every, by_fallen) & known) - confirmed.keys() - set(held) - remaining
    completed = (confirmed.keys() & known) | cut_off
    abandoned = (set(held) | _ids(by_fallen, Deed.LEASED)) - _ids(by_fallen, Deed.COMPLETED)
    return Account(
        added=len(known),
        completed=len(completed),
        left=len((remaining & known) - completed),
        lost=len(known - completed - remaining),
        recovered=len(abandoned & _ids(by_others, Deed.COMPLETED)),
        cut_off=len(cut_off),
        ran_twice=sum(times > 1 for times in runs.values()),
        refused=sum(entry.deed is Deed.REFUSED for entry in every),
        unexplained=sum(_unexplained(ledger) for name, ledger in ledgers.items() if name not in fallen),
        completed_twice=sum(times > 1 for times in confirmed.values()),
        unknown=len({entry.id for entry in every} - known),
    )


def _ids(entries: Sequence[Entry], deed: Deed) -> set[str]:
    return {entry.id for entry in entries if entry.deed is deed}


def _cut_off(every: Sequence[Entry], by_fallen: Sequence[Entry]) -> set[str]:
    """What a worker that fell was about to settle, and nobody leased after it.

    The server may have done what it was asked for in that worker's last moment, with no one left to write it down.
    """
    last_lease: dict[str, int] = {}
    for entry in every:
        if entry.deed is Deed.LEASED:
            last_lease[entry.id] = max(entry.fence, last_lease.get(entry.id, 0))
    return {entry.id for entry in by_fallen if entry.deed is Deed.SETTLING and last_lease.get(entry.id) == entry.fence}


def _unexplained(ledger: Sequence[Entry]) -> int:
    """Runs with no word on whether they counted, and words about runs that never were."""
    ran = {(entry.id, entry.fence) for entry in ledger if entry.deed is Deed.RAN}
    told = {(entry.id, entry.fence) for entry in ledger if entry.deed in (Deed.COMPLETED, Deed.REFUSED)}
    return len(ran ^ told)
