"""I3, an enqueue happens once. Also collects for I1 and I2 which jobs should exist, with which payload."""

from __future__ import annotations

from chaos.checker.book import Book
from chaos.checker.ledger import (
    ACKNOWLEDGED,
    ALIVE,
    ASKED,
    NO_PLACE,
    STATE_MASK,
    UNKNOWN,
    WAITING,
    Columns,
)
from chaos.checker.lives import OPERATOR, Life
from chaos.checker.reaps import replace
from chaos.log import Answered, EnqueueAsked, Sent


def enqueued(book: Book, sent: Sent, answer: Answered) -> None:
    """Check the jobs of one call against the server's answer."""
    number = book.ledger.acks.add(answer.t, answer.level)
    told = len(answer.statuses)
    if told > len(sent.enqueues):
        book.problem("I3", "", f"the server answered for {told} jobs, but {len(sent.enqueues)} were sent")
    for asked, status in zip(sent.enqueues, answer.statuses, strict=False):
        if status == "a":
            if asked.singleton:
                _single_added(book, asked, number)
            else:
                _added(book, asked, number)
        elif status == "m":
            enqueue_unheard(book, asked, sent.t)  # an unanswered call had added it before
        elif asked.singleton:
            _single_met(book, asked, status, number)
        else:
            _met(book, asked, status, number)
    for asked in sent.enqueues[told:]:
        enqueue_unheard(book, asked, sent.t)


def enqueue_unheard(book: Book, asked: EnqueueAsked, sent: int) -> None:
    """An unanswered enqueue: the job may or may not arrive; if it does, then unchanged."""
    job = asked.job
    columns, row = book.ledger.find(book.owner, job)
    if asked.singleton:
        book.maybes.setdefault(job, set()).add(asked.check)
    if columns.states[row] & STATE_MASK == UNKNOWN:
        columns.states[row] = ASKED
        book.counts["asked"] += 1
        _write(book, columns, row, asked, 0)
        if (asked.run_at or asked.delay) and not asked.singleton:
            # The job cannot arrive before the call was sent.
            book.timed[job] = (asked.run_at, sent + asked.delay * 1_000_000 if asked.delay else 0)


def _added(book: Book, asked: EnqueueAsked, ack: int) -> None:
    job = asked.job
    columns, row = book.ledger.find(book.owner, job)
    where = columns.states[row] & STATE_MASK
    if book.journal is not None:
        book.touch(job, where)
    if where > ASKED:
        _added_again(book, job, where)
    elif where == UNKNOWN:
        book.counts["asked"] += 1
    _write(book, columns, row, asked, ack)
    _acknowledge(book, columns, row, WAITING)
    if asked.run_at or asked.delay:
        _plan(book, asked)
    else:
        columns.places[row] = book.line(asked.priority).append()


def _added_again(book: Book, job: str, where: int) -> None:
    """Added although the job exists or has existed."""
    if where in (WAITING, ALIVE):
        life = book.lives.get(job)
        if where == WAITING or (life is not None and _is_certain(book, life)):
            book.problem("I3", job, "was added a second time while it was there")
        if life is not None:
            book.leave_line(life)
            if life.lease is not None:
                book.held.pop(life.lease.fence, None)
            del book.lives[job]
    else:
        book.again.add(job)


def _is_certain(book: Book, life: Life) -> bool:
    """Whether only logged events can have affected the job."""
    if life.fuzzy or life.job in book.doubted or life.job in book.maybe_cancelled:
        return False
    return life.lease is None or not life.lease.gone


def _write(book: Book, columns: Columns, row: int, asked: EnqueueAsked, ack: int) -> None:
    columns.checks[row] = asked.check
    columns.terms[row] = book.ledger.intern(asked)
    columns.places[row] = NO_PLACE
    columns.acks[row] = ack


def _acknowledge(book: Book, columns: Columns, row: int, where: int) -> None:
    if not columns.states[row] & ACKNOWLEDGED:
        book.counts["acknowledged"] += 1
    columns.states[row] = where | ACKNOWLEDGED


def _plan(book: Book, asked: EnqueueAsked) -> None:
    """Record the job's run time: by the server's clock, and in real time."""
    if asked.delay:
        run_at = book.wall - book.trip + asked.delay
        not_before = book.sent_t + asked.delay * 1_000_000
        latest = book.latest_wall + asked.delay
    else:
        run_at = latest = asked.run_at
        ahead = book.real_ahead
        not_before = asked.run_at * 1_000_000 - ahead if ahead is not None else 0
    book.timed[asked.job] = (run_at, not_before)
    book.plan(asked.job, latest, 0)


def _met(book: Book, asked: EnqueueAsked, status: str, ack: int) -> None:
    """The id existed already: u the job was updated, k it was kept, b the new job waits behind it."""
    job = asked.job
    columns, row = book.ledger.find(book.owner, job)
    where = columns.states[row] & STATE_MASK
    if book.journal is not None:
        book.touch(job, where)
    if where == UNKNOWN:
        book.problem("I3", job, f"was answered with {status!r} (exists), but was never enqueued")
        book.counts["asked"] += 1
    elif where > ALIVE and not _may_be_back(book, job):
        book.problem("I3", job, f"was answered with {status!r} (exists), but it had ended")
    if where == ASKED:
        book.findings.add("recovered", job)
    if where != ALIVE:
        _write(book, columns, row, asked, ack)
        _acknowledge(book, columns, row, WAITING)
        if asked.run_at or asked.delay:
            _plan(book, asked)
        return
    _acknowledge(book, columns, row, ALIVE)
    life = book.lives[job]
    if status == "u":
        _change(book, life, asked)
    elif status == "b":
        life.blocked = asked.check


def _may_be_back(book: Book, job: str) -> bool:
    return book.generation > 0 or job in book.doubted


def _change(book: Book, life: Life, asked: EnqueueAsked) -> None:
    book.leave_line(life)
    life.place, life.low = NO_PLACE, 0
    life.check = asked.check
    life.failures = life.stalls = 0
    life.terms = book.ledger.terms[book.ledger.intern(asked)]


# -- singletons: ids that are enqueued repeatedly --------------------------------------------------


def _single_added(book: Book, asked: EnqueueAsked, ack: int) -> None:
    job = asked.job
    columns, row = book.ledger.find(book.owner, job)
    life = book.lives.get(job)
    if book.journal is not None:
        book.touch(job, columns.states[row])
    book.counts["asked"] += 1
    if life is not None:
        if _is_certain(book, life) and job not in book.maybes:
            book.problem("I3", job, "was added a second time while it was there")
        if life.lease is not None:
            # An unanswered call must have ended it.
            book.held.pop(life.lease.fence, None)
            book.lost[life.lease.fence] = life.lease
            book.counts["ended_unheard"] += 1
        del book.lives[job]
    _write(book, columns, row, asked, ack)
    book.counts["acknowledged"] += 1
    columns.states[row] = ALIVE | ACKNOWLEDGED
    life = book.give_life(job, columns, row)
    life.owed = asked.check
    _single_plan(book, life, asked)


def _single_plan(book: Book, life: Life, asked: EnqueueAsked) -> None:
    life.run_at = life.not_before = 0
    if asked.run_at or asked.delay:
        _plan(book, asked)
        life.run_at, life.not_before = book.timed.pop(asked.job)


def _single_met(book: Book, asked: EnqueueAsked, status: str, ack: int) -> None:
    job = asked.job
    columns, row = book.ledger.find(book.owner, job)
    life = book.lives.get(job)
    if book.journal is not None:
        book.touch(job, columns.states[row])
    book.counts["asked"] += 1
    if life is None:
        if job not in book.maybes and not _may_be_back(book, job):
            book.problem("I3", job, f"was answered with {status!r} (exists), but it did not exist")
        _write(book, columns, row, asked, ack)
        life = book.give_life(job, columns, row)
        if status == "k":
            life.fuzzy = True
    columns.states[row] |= ACKNOWLEDGED
    book.counts["acknowledged"] += 1
    columns.acks[row] = ack
    if status == "u":
        if life.lease is not None:
            if _is_certain(book, life) and life.lease.fence not in book.doubts and not _may_have_lost(book, life):
                book.problem("I9", job, "was updated as a waiting job, but it was running")
            if _may_have_lost(book, life):
                book.reaped += 1
            _give_up(book, life)
        replace(life, asked.check)
        life.owed = asked.check
        _single_plan(book, life, asked)
    elif status == "b":
        if life.lease is None and not life.fuzzy and not book.unheard_leases:
            book.problem("I3", job, "was blocked by a running job, but none was running")
        life.blocked = life.owed = asked.check


def _may_have_lost(book: Book, life: Life) -> bool:
    return life.lease is not None and life.lease.holder.end <= book.now


def _give_up(book: Book, life: Life) -> None:
    """The running job is gone, though no end was logged."""
    assert life.lease is not None
    book.held.pop(life.lease.fence, None)
    book.lost[life.lease.fence] = life.lease
    life.lease = None


def operator_asked(life: Life) -> None:
    """The job was enqueued again after its end: the operator is the cause of its next start."""
    life.cause = OPERATOR
    life.starts = 1
