"""I1 where the server was made to forget: what may be gone, and what may be back.

What was done after a rewind's `since` may have been undone, wholly or in part. So the jobs that were touched since then
are written down before; after the rewind each of them may be in any state that it was in meanwhile, until the server
shows which. Whatever was acknowledged before must still be there.
"""

from __future__ import annotations

from chaos.checker.book import Book, Undone
from chaos.checker.evidence import Evidence
from chaos.checker.ledger import ALIVE, NO_PLACE, WAITING, WHERE
from chaos.log import Rewound

EVERYSEC = 2 * 10**9  # ns of acknowledgements that a server may lose that writes to the disk every second


def watch(book: Book) -> None:
    """Begin to write down what the next rewind may undo."""
    ahead = book.rewinds[book.generation :]
    if book.journal is None and ahead and book.t >= ahead[0].since:
        book.journal = {}


def rewind(book: Book, generation: int) -> None:
    """The server answers from another state than before."""
    while book.generation < generation:
        rewound = book.rewinds[book.generation]
        journal, book.journal = book.journal or {}, None
        for job, before in journal.items():
            _undo(book, job, before, rewound)
        book.generation += 1
        later = book.rewinds[book.generation : book.generation + 1]
        if later and later[0].since <= rewound.since:
            book.journal = dict(journal)  # the next one goes back behind this one
    for holder in book.holders.values():
        holder.end = holder.good = 0
        holder.lost = False
    book.sweeps.clear()
    if not book.steady_clock:
        book.fence = 0


def _undo(book: Book, job: str, before: int, rewound: Rewound) -> None:
    columns, row = book.ledger.find(book.owner, job)
    where = columns.states[row] & WHERE
    if rewound.how == "flushed" and where > ALIVE:
        return  # nothing comes back from that
    life = book.lives.get(job)
    if life is None:
        if where < WAITING:
            return
        if where == WAITING and columns.places[row] != NO_PLACE:
            book.line(book.terms(columns, row).priority).take(columns.places[row])
        columns.places[row] = NO_PLACE
        life = book.give_life(job, columns, row)
        life.starts = 1 if where > ALIVE else 0
    if job not in book.undone:
        book.undone[job] = Undone(before, where, rewound)
    book.leave_line(life)
    if life.lease is not None:
        book.held.pop(life.lease.fence, None)
        book.lost[life.lease.fence] = life.lease
        life.lease.unsure = True
        life.lease = None
    life.place, life.low = NO_PLACE, 0
    life.run_at = life.not_before = 0
    life.blocked = None
    life.fuzzy = True


def may_be_lost(undone: Undone, level: str, acknowledged: int, evidence: Evidence) -> bool:
    """Whether a job that was acknowledged at this level may be gone after what happened."""
    rewound = undone.rewound
    if undone.before >= WAITING or 0 < acknowledged < rewound.since:
        return False  # it was there before
    if rewound.how in ("flushed", "restored"):
        return True  # somebody's own doing: no durability stands against it
    if level.startswith("replicated"):
        return False
    if rewound.how == "killed":
        if level == "fsync":
            return False
        if level == "everysec":
            return acknowledged >= evidence.kill_before(rewound.t) - EVERYSEC
    return True
