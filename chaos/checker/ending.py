"""The end of a run: I1, no acknowledged job is lost; I12, every queue has drained, and the dead records are exact."""

from __future__ import annotations

from collections import Counter

from chaos.checker.book import Book
from chaos.checker.evidence import Evidence
from chaos.checker.index import Index
from chaos.checker.ledger import (
    ACKNOWLEDGED,
    ALIVE,
    ASKED,
    BROKEN,
    CANCELLED,
    COMPLETED,
    DEAD,
    FORGOTTEN,
    LOST,
    STATE_MASK,
    UNHEARD,
    UNKNOWN,
    WAITING,
    Columns,
)
from chaos.checker.lives import Life
from chaos.checker.rewinds import may_be_lost
from chaos.checker.settles import FAILURE, ends_in_doubt
from chaos.log import Left

DEAD_STATES = ("dead", "broken")
MAX_KEYS = 21  # keys of an empty queue; independent of how many jobs it has had


def close(book: Book, index: Index, evidence: Evidence) -> None:
    """Account for every job of a queue."""
    left = {record.job: record for record in index.left if record.queue == book.name}
    for life in list(book.lives.values()):
        _account(book, life, left.get(life.job), evidence)
    for columns, row in list(book.ledger.in_state(book.owner, WAITING)):
        job = columns.name(row)
        if job not in left:
            _account(book, book.give_life(job, columns, row), None, evidence)
    for record in left.values():
        _check_left(book, record)
    _check_graves(book, left)
    _check_promises(book)
    _check_inspection(book, index, Counter(record.state for record in left.values()))
    _check_sweeps(book)


# -- I1 --------------------------------------------------------------------------------------------


def _account(book: Book, life: Life, left: Left | None, evidence: Evidence) -> None:
    """Account for a job whose end is not logged."""
    ways = ends_in_doubt(book, life)
    if left is not None and not (life.terms.singleton and left.state in DEAD_STATES):
        if left.state in DEAD_STATES:
            _died_unheard(book, life, left, ways)
        return
    if left is None and book.inspected and not book.caught:
        ways -= {"failed", "broken", "crashed"}  # these ends leave a record
    undone = book.undone.get(life.job)
    if life.fuzzy and undone is not None and undone.after > ALIVE:
        life.columns.states[life.row] = life.columns.states[life.row] & ACKNOWLEDGED | undone.after
        return  # the job had ended, and no rewind undid it
    lease = life.lease
    if ways or (lease is not None and lease.cancelled and (lease.gone or book.sweeps_possible)):
        book.end(life, UNHEARD)
    elif life.job in book.maybe_cancelled:
        book.end(life, CANCELLED)
    elif undone is not None and life.fuzzy and _allowed(book, life, evidence):
        life.columns.states[life.row] = FORGOTTEN | ACKNOWLEDGED
        book.findings.add("forgotten", life.job)
    else:
        _lost(book, life)


def _allowed(book: Book, life: Life, evidence: Evidence) -> bool:
    acks = book.ledger.acks
    number = life.columns.acks[life.row]
    return may_be_lost(book.undone[life.job], acks.level(number), acks.times[number], evidence)


def _lost(book: Book, life: Life) -> None:
    acknowledged = life.columns.states[life.row] & ACKNOWLEDGED
    level = book.ledger.acks.level(life.columns.acks[life.row]) or "durability unknown"
    life.columns.states[life.row] = LOST | acknowledged
    book.findings.add("lost", life.job)
    if life.lease is not None:
        last = f"its last lease has fence {life.lease.fence}, and nothing ended that lease"
    elif life.cause:
        last = f"it was waiting again ({life.cause}) after fence {life.fence}"
    else:
        last = "it was never leased"
    told = f"was acknowledged ({level}) and is gone" if acknowledged else "was leased once, and is gone"
    book.problem("I1", life.job, f"{told}: {last}")


# -- I12: the dead ---------------------------------------------------------------------------------


def _died_unheard(book: Book, life: Life, left: Left, ways: set[str]) -> None:
    """The job is dead, and the call that ended it was not answered."""
    failures, stalls = life.failures, life.stalls
    if life.lease is not None and book.sweeps_possible and stalls == life.terms.max_stalls:
        ways.add("stalled")
    how = "broken" if left.state == "broken" else left.reason
    expected = {
        "failed": (failures + 1, stalls),
        "crashed": (failures, stalls + 1),
        "stalled": (failures, stalls + 1),
    }.get(how, (failures, stalls))
    if how not in ways and not life.fuzzy:
        book.problem("I12", life.job, f"is {left.state} ({left.reason}), but the log has no cause")
    elif (left.failures, left.stalls) != expected and not life.fuzzy and left.state == "dead":
        _wrong_counts(book, left, expected)
    if left.check != life.check:
        book.problem("I2", life.job, f"is {left.state} with another payload: {left.check:08x}")
    if how == "stalled":
        book.reaped += 1
    book.died += 1
    book.end(life, BROKEN if left.state == "broken" else DEAD)


def _wrong_counts(book: Book, left: Left, expected: tuple[int, int]) -> None:
    book.problem(
        "I12",
        left.job,
        f"died with {left.failures} failures and {left.stalls} stalls; the log shows {expected[0]} and {expected[1]}",
    )


def _check_left(book: Book, left: Left) -> None:
    """Check that a job on the server at the end belongs there."""
    columns, row = book.ledger.find(book.owner, left.job)
    where = columns.states[row] & STATE_MASK
    if where == UNKNOWN and not left.job.startswith(FAILURE):
        book.findings.add("unexpected", left.job)
        book.problem("I2", left.job, f"is on the server ({left.state}), but was never enqueued")
    if left.state not in DEAD_STATES:
        book.counts["left"] += 1
        book.problem("I12", left.job, f"is still {left.state} at the end")
        if where > ALIVE and not book.terms(columns, row).singleton:
            book.problem("I5", left.job, f"is {left.state} after its end")
        elif where == ASKED:
            book.findings.add("recovered", left.job)
        return
    grave = book.dead.get(left.job)
    if where != UNKNOWN and book.terms(columns, row).singleton:
        return  # the record may belong to an earlier job with this id
    if left.state == "broken":
        if where not in (BROKEN, UNKNOWN):
            book.problem("I4", left.job, "is broken on the server, but ended otherwise")
    elif grave is None:
        if where in (COMPLETED, CANCELLED, WAITING, ASKED):
            book.problem("I4", left.job, "is dead on the server, but did not die")
    else:
        if (grave.failures, grave.stalls) != (left.failures, left.stalls):
            _wrong_counts(book, left, (grave.failures, grave.stalls))
        if left.reason and left.reason != grave.reason:
            book.problem("I12", left.job, f"died by {grave.reason!r}, but its dead record says {left.reason!r}")
        if grave.check != left.check:
            book.problem("I2", left.job, f"is dead with another payload: {left.check:08x}")


def _check_graves(book: Book, left: dict[str, Left]) -> None:
    """Every dead job has a dead record, or became a job for a failure handler."""
    if not left and not book.inspected:
        return
    missing = [job for job in book.dead if job not in left and not _is_back(book, job)]
    for job in missing[len(book.caught) :]:
        book.problem("I12", job, f"died by {book.dead[job].reason!r}, but has no dead record")
    for columns, row in book.ledger.in_state(book.owner, BROKEN):
        job = columns.name(row)
        if job not in left and not book.terms(columns, row).singleton and not book.rewinds:
            book.findings.add("lost", job)
            book.problem("I1", job, "could not be decoded and never ran, but is not among the broken jobs")
    if len(book.caught) > book.died + book.unclear and not book.rewinds:
        book.problem("I12", "", f"{len(book.caught)} failure jobs were leased, but {book.died} jobs died")


def _is_back(book: Book, job: str) -> bool:
    """Whether the job exists again: after a rewind, or as another job with the same id."""
    columns, row = book.ledger.find(book.owner, job)
    return columns.states[row] & STATE_MASK != DEAD or bool(book.rewinds)


# -- jobs sent by other queues ---------------------------------------------------------------------


def _check_promises(book: Book) -> None:
    for job, parent in book.promised.items():
        columns, row = book.ledger.find(book.owner, job)
        if columns.states[row] & STATE_MASK in (UNKNOWN, ASKED) and not book.rewinds:
            book.findings.add("lost", job)
            book.problem("I1", job, f"was sent by {parent}, which is completed, but never arrived")


# -- I12: drained ----------------------------------------------------------------------------------


def _check_inspection(book: Book, index: Index, states: Counter[str]) -> None:
    seen = index.inspected.get(book.name)
    if seen is None:
        book.problem("I12", "", "the queue was not inspected at the end of the run")
        return
    if not seen.drained:
        book.problem("I12", "", f"was not empty {seen.drained_after:.0f} s after the last fault: {seen.counts}")
    if seen.problems:
        book.problem("I12", "", f"an audit found {seen.problems} problems")
    if seen.keys > MAX_KEYS:
        book.problem("I12", "", f"{seen.keys} keys are left; a drained queue has at most {MAX_KEYS}")
    for state, count in seen.counts.items():
        if states and count != states.get(state, 0):
            book.problem("I12", "", f"counts() reports {count} {state} jobs, but {states.get(state, 0)} exist")


def _check_sweeps(book: Book) -> None:
    """I8: each reclaimed job was a lost lease, except for leases of unanswered calls."""
    if book.rewinds:
        return
    if book.reaped > book.recovered and not book.unheard_turns:
        book.problem("I8", "", f"{book.reaped} leases were lost, but the server reclaimed {book.recovered} jobs")
    if book.recovered > book.reaped + book.unclear:
        book.problem("I8", "", f"the server reclaimed {book.recovered} jobs, but {book.reaped} leases were lost")


def place_of_lost(columns: Columns, row: int) -> tuple[str, tuple[int, ...]]:
    """The producer of a job, and the job's position in its sequence."""
    producer, *rest = columns.name(row).replace(".", "-").split("-")
    return producer, tuple(int(part) if part.isdigit() else 0 for part in rest)
