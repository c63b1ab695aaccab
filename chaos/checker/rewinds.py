"""I1 after the server lost state: which jobs may be gone, and which may be back.

A rewind may have undone any step after its `since`. So the jobs touched since then are recorded; after the rewind each
of them may be in any state that it had in that time, until an answer shows which. Jobs acknowledged earlier must still
exist.
"""

from __future__ import annotations

from chaos.checker.book import Book, Undone
from chaos.checker.evidence import Evidence
from chaos.checker.ledger import ALIVE, NO_PLACE, STATE_MASK, WAITING
from chaos.log import Rewound

EVERYSEC_NS = 2 * 10**9  # ns of acknowledgements that `appendfsync everysec` may lose


def watch(book: Book) -> None:
    """Start to record jobs that the next rewind may undo."""
    ahead = book.rewinds[book.generation :]
    if book.journal is None and ahead and book.t >= ahead[0].since:
        book.journal = {}


def rewind(book: Book, generation: int) -> None:
    """The server answers from an earlier state."""
    while book.generation < generation:
        rewound = book.rewinds[book.generation]
        journal, book.journal = book.journal or {}, None
        for job, before in journal.items():
            _undo(book, job, before, rewound)
        book.generation += 1
        later = book.rewinds[book.generation : book.generation + 1]
        if later and later[0].since <= rewound.since:
            book.journal = dict(journal)  # the next rewind goes back beyond this one
    for holder in book.holders.values():
        holder.end = holder.good = 0
        holder.lost = False
    book.sweeps.clear()
    if not book.steady_clock:
        book.fence = 0


def _undo(book: Book, job: str, before: int, rewound: Rewound) -> None:
    columns, row = book.ledger.find(book.owner, job)
    where = columns.states[row] & STATE_MASK
    if rewound.how == "flushed" and where > ALIVE:
        return  # a flush restores nothing
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
    """Whether a job acknowledged at this level may be gone after these faults."""
    rewound = undone.rewound
    if undone.before >= WAITING or 0 < acknowledged < rewound.since:
        return False  # acknowledged before the rewind's `since`
    if rewound.how in ("flushed", "restored"):
        return True  # deliberate: no durability protects against a flush or restore
    if level.startswith("replicated"):
        return False
    if rewound.how == "killed":
        if level == "fsync":
            return False
        if level == "everysec":
            return acknowledged >= evidence.kill_before(rewound.t) - EVERYSEC_NS
    return True
