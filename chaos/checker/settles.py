"""I4, one end per job; I7, only the lease's owner can settle; I12, exact budgets.

An outcome counts if and only if it carries the fence of the job's current lease.
"""

from __future__ import annotations

from msgspec.structs import replace

from chaos.checker.book import Book
from chaos.checker.ledger import (
    ALIVE,
    ASKED,
    BROKEN,
    CANCELLED,
    COMPLETED,
    NO_LIMIT,
    NO_PLACE,
    STATE_MASK,
    UNKNOWN,
    WAITING,
)
from chaos.checker.lives import CRASH, RELEASE, RETRY, SNOOZE, Lease, Life
from chaos.checker.reaps import ENDS, owner_refused, put_back
from chaos.log import Answered, EnqueueAsked, Sent, SettleAsked

FAILURE = "failure-"  # prefix of the ids of failure jobs


def settled(book: Book, sent: Sent, answer: Answered) -> None:
    """Check the outcomes of one call against the server's answer."""
    held = book.held
    if len(answer.settled) != len(sent.settles):
        book.problem("I7", "", f"{len(sent.settles)} outcomes were sent, but {len(answer.settled)} answered")
    for asked, ours in zip(sent.settles, answer.settled, strict=False):
        lease = held.get(asked.fence)
        if lease is not None and lease.life.job == asked.job:
            if ours:
                _accept(book, lease, _as_carried_out(asked, answer))
            else:
                book.counts["stale_refused"] += 1
                owner_refused(book, lease, "its outcome")
        elif ours:
            _accept_unheld(book, asked)
        else:
            book.counts["stale_refused"] += 1


def _as_carried_out(asked: SettleAsked, answer: Answered) -> SettleAsked:
    """A broken job is released if the queue already keeps the maximum of broken jobs."""
    if asked.outcome == "broken" and asked.fence in answer.returned:
        return replace(asked, outcome="released")
    return asked


def _accept(book: Book, lease: Lease, asked: SettleAsked) -> None:
    life = lease.life
    if lease.gone:
        book.problem("I7", life.job, f"fence {lease.fence} was refused before, and accepted now")
    if asked.outcome == "completed":
        if book.started and not (lease.finished and lease.how == "ok") and life.terms.max_stalls < NO_LIMIT:
            how = f"its attempt had {lease.how or 'not ended'}" if lease.started else "never started"
            book.problem("I4", life.job, f"was accepted as completed, but {how}")
        book.end(life, COMPLETED)
        return
    del book.held[lease.fence]
    life.lease = None
    if book.journal is not None:
        book.touch(life.job, ALIVE)
    if asked.outcome == "crashed" and not lease.finished:
        lease.end = book.sent_t  # the reporter saw that the process was dead
    if lease.cancelled:
        book.end(life, CANCELLED)
    else:
        _apply(book, life, asked)


def _apply(book: Book, life: Life, asked: SettleAsked) -> None:
    """Apply an owner's outcome as the server does."""
    match asked.outcome:
        case "completed":
            book.end(life, COMPLETED)
        case "released":
            put_back(book, life, RELEASE)
        case "retried":
            _retry(book, life, asked.delay)
        case "snoozed":
            _put_off(book, life, asked.delay, SNOOZE)
        case "crashed" if asked.alone:
            life.stalls += 1
            if life.stalls > life.terms.max_stalls:
                book.die(life, "crashed")
            elif asked.delay:
                _put_off(book, life, asked.delay, CRASH)
            else:
                put_back(book, life, CRASH)
        case "crashed":
            put_back(book, life, CRASH)
        case "unknown":
            # Parked for minutes, or until a worker that knows the task asks for it.
            book.leave_line(life)
            life.place, life.low = NO_PLACE, 0
            put_back(book, life, RELEASE)
        case "failed":
            life.failures += 1
            book.die(life, "failed")
        case "broken":
            book.end(life, BROKEN)
        case "unhandled":
            book.end(life, COMPLETED)
        case other:
            book.problem("I4", life.job, f"ended as {other!r}, which is not an outcome")


def _retry(book: Book, life: Life, delay: int) -> None:
    life.failures += 1
    if life.failures > life.terms.max_failures:
        book.problem(
            "I12",
            life.job,
            f"is retried after {life.failures} failures, but {life.terms.max_failures} are allowed",
        )
    _put_off(book, life, delay, RETRY)


def _put_off(book: Book, life: Life, delay: int, cause: str) -> None:
    """The job waits again, behind its equals, at once or after a delay."""
    life.place, life.low = NO_PLACE, 0
    if delay:
        life.run_at = book.wall - book.trip + delay
        life.not_before = book.sent_t + delay * 1_000_000
        put_back(book, life, cause)
        if not life.terms.singleton:
            book.plan(life.job, book.latest_wall + delay, life.waiting)
    else:
        if book.steady_clock and not life.terms.singleton:
            life.place = life.low = book.line(life.terms.priority).append()
        put_back(book, life, cause)


def _accept_unheld(book: Book, asked: SettleAsked) -> None:
    """An outcome was accepted with an unknown fence. It may belong to an unanswered lease."""
    job = asked.job
    life = book.lives.get(job)
    columns, row = book.ledger.find(book.owner, job)
    where = columns.states[row] & STATE_MASK
    if asked.fence in book.lost and not book.lost[asked.fence].unsure:
        book.problem("I7", job, f"{asked.outcome!r} was accepted from fence {asked.fence}, whose lease had been lost")
        return
    if life is None and where not in (WAITING, ASKED):
        if where == UNKNOWN and job.startswith(FAILURE) and book.unheard_leases:
            columns.terms[row] = book.ledger.intern(EnqueueAsked(job, 0, max_failures=NO_LIMIT, max_stalls=NO_LIMIT))
            book.caught.add(job)
            _apply_unheard(book, book.give_life(job, columns, row), asked)
        elif where == UNKNOWN:
            book.problem("I2", job, f"ended as {asked.outcome!r}, but was never enqueued")
        elif not (book.terms(columns, row).singleton and job in book.maybes):
            book.problem("I4", job, f"ended a second time, as {asked.outcome!r} by fence {asked.fence}")
        return
    known = life.fence if life is not None else 0
    if not (life is not None and life.fuzzy) and not (book.unheard_leases and asked.fence > known):
        book.problem("I7", job, f"{asked.outcome!r} was accepted from fence {asked.fence}, but it was not the owner")
        return
    if life is None:
        life = book.give_life(job, columns, row)
        if where == ASKED:
            book.findings.add("recovered", job)
    if life.lease is not None:
        book.held.pop(life.lease.fence, None)
        book.lost[life.lease.fence] = life.lease
        life.lease = None
        life.fuzzy = True  # it was lost and leased again meanwhile: its counts are unknown
    _apply_unheard(book, life, asked)


def _apply_unheard(book: Book, life: Life, asked: SettleAsked) -> None:
    """An outcome of an unanswered lease. For a failure job it is the first record."""
    book.counts["claimed_unheard"] += 1
    book.leave_line(life)
    life.fence = asked.fence
    life.fuzzy = life.fuzzy or life.terms.max_stalls >= NO_LIMIT
    _apply(book, life, asked)


def cancelled(book: Book, sent: Sent, answer: Answered) -> None:
    """Check the cancelled jobs of one call."""
    for job, done in zip(sent.cancels, answer.cancelled, strict=False):
        if not done:
            continue
        life = book.lives.get(job)
        columns, row = book.ledger.find(book.owner, job)
        where = columns.states[row] & STATE_MASK
        if life is not None and life.lease is not None:
            if life.blocked is not None:
                life.blocked = life.owed = None
            life.lease.cancelled = True
        elif life is not None:
            book.end(life, CANCELLED)
        elif where in (WAITING, ASKED):
            book.end(book.give_life(job, columns, row), CANCELLED)
            book.timed.pop(job, None)
        elif where == UNKNOWN:
            book.problem("I2", job, "was cancelled, but never enqueued")
        elif book.generation == 0 and job not in book.maybes:
            book.problem("I4", job, "was cancelled after its end")


def ends_in_doubt(book: Book, life: Life) -> set[str]:
    """How unanswered calls may have ended this job: by its last lease, or by an unanswered one."""
    ways = set()
    for asked in book.doubted.get(life.job, ()):
        if asked.fence == life.fence or (asked.fence > life.fence and book.unheard_leases):
            last = life.stalls >= life.terms.max_stalls
            if asked.outcome in ENDS or (asked.outcome == "crashed" and asked.alone and last):
                ways.add(asked.outcome)
    return ways
