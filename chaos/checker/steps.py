"""One step of a queue: process the parts of an answer in the order in which the server did them."""

from __future__ import annotations

import heapq

from chaos.checker.book import MAX_PROMOTED, Book, Room
from chaos.checker.claims import claimed
from chaos.checker.enqueues import enqueue_unheard, enqueued
from chaos.checker.index import Step, Unheard, wrote
from chaos.checker.ledger import NO_PLACE, STATE_MASK, WAITING
from chaos.checker.reaps import beaten, extended, swept
from chaos.checker.rewinds import rewind, watch
from chaos.checker.settles import cancelled, settled
from chaos.log import Answered, Beaten, Extended, Sent

_CALL_MS = 100  # ms that a heartbeat or extension may take: its send time is not logged


def take_step(book: Book, step: Step, pid: int) -> None:
    """Judge one answer, and update the state from it."""
    record = step.record
    if step.generation != book.generation:
        rewind(book, step.generation)
    if step.segment != book.segment:
        book.segment, book.wrote, book.now_low = step.segment, -1, 0
    _set_time(book, record, step.sent)
    if book.rewinds:
        watch(book)
    if isinstance(record, Answered):
        if step.sent is None:
            book.problem("I2", "", "the log has an answer without its call")
        else:
            _answer(book, step.sent, record, pid)
    elif isinstance(record, Beaten):
        beaten(book, record, pid)
    elif isinstance(record, Extended):
        extended(book, record, pid)


def _set_time(book: Book, record: Answered | Beaten | Extended, sent: Sent | None) -> None:
    book.t = record.t
    book.sent_t = sent.t if sent is not None else record.t - _CALL_MS * 1_000_000
    # The queue's clock follows callers, each with its own rounding: with many callers it may run ahead of real time.
    book.trip = (record.t - book.sent_t) // 1_000_000 + 1
    book.step = record.step
    book.at += 1
    book.now = record.now
    if record.now < book.now_low:
        book.problem("I10", "", f"the queue's clock ran back by {book.now_low - record.now} ms")
    elif record.now - 2 * book.trip > book.now_low and wrote(record):
        book.now_low = record.now - 2 * book.trip  # a read-only step does not store its clock
    if book.unheard_at < len(book.unheard):
        reckon_with_unheard(book, record.t)


def _answer(book: Book, sent: Sent, answer: Answered, pid: int) -> None:
    book.wall = answer.wall
    if answer.wall > book.wall_high:
        book.wall_high = answer.wall
    if wrote(answer):
        if answer.step == book.wrote:
            book.problem("I6", "", f"two calls got step number {answer.step}")
        book.wrote = answer.step
    _watch_progress(book, answer)
    if sent.settles or sent.want or sent.holder:
        if answer.holder or sent.holder:
            book.holder(answer.holder or sent.holder, pid)
        if sent.settles:
            settled(book, sent, answer)
        if sent.enqueues:
            enqueued(book, sent, answer)
        if sent.handed:
            _hand_over(book, sent, answer)
        _promote(book)
        if answer.recovered:
            swept(book, answer)
        if answer.claims:
            claimed(book, sent, answer, pid)
    else:
        _promote(book)
        if sent.enqueues:
            enqueued(book, sent, answer)
        if sent.cancels:
            cancelled(book, sent, answer)
    if book.wall:
        for line in book.lines.values():
            line.note(book.wall)


def _promote(book: Book) -> None:
    """Put jobs in line whose run time has certainly passed: a repeated answer carries the time of the repeat."""
    due, wall = book.due, book.wall - book.trip
    for _ in range(MAX_PROMOTED):
        if not due or due[0][0] > wall:
            return
        _, _, job, token = heapq.heappop(due)
        life = book.lives.get(job)
        if life is not None:
            if life.waiting == token and life.lease is None and life.place == NO_PLACE and not life.fuzzy:
                life.place = book.line(life.terms.priority).append()
        elif token == 0 and job in book.timed:
            columns, row = book.ledger.find(book.owner, job)
            if columns.states[row] & STATE_MASK == WAITING and columns.places[row] == NO_PLACE:
                columns.places[row] = book.line(book.terms(columns, row).priority).append()


def _hand_over(book: Book, sent: Sent, answer: Answered) -> None:
    """Jobs that a completed job sends to another queue must arrive there."""
    accepted = {asked.job for asked, ours in zip(sent.settles, answer.settled, strict=False) if ours}
    for handed in sent.handed:
        if handed.parent in accepted and handed.queue in book.others:
            other = book.others[handed.queue]
            other.promised[handed.asked.job] = handed.parent
            enqueue_unheard(other, handed.asked, sent.t)


def _watch_progress(book: Book, answer: Answered) -> None:
    """I12: once all faults have ended, ready jobs are leased."""
    healed = book.evidence.healed
    if healed is None or answer.t < healed:
        return
    if not book.somebody_waits:
        book.idle_since = 0
        return
    if not book.idle_since:
        book.idle_since = answer.t
    waited = answer.t - max(healed, book.idle_since)
    if waited > book.limits.live * 1e9:
        book.problem("I12", "", f"jobs were ready, but none was leased for {waited / 1e9:.1f} s after the last fault")
        book.idle_since = answer.t
    if answer.claims:
        book.idle_since = answer.t


def reckon_with_unheard(book: Book, until: int) -> None:
    """Account for unanswered calls: they may have been applied at any time after they were sent."""
    while book.unheard_at < len(book.unheard) and book.unheard[book.unheard_at].t <= until:
        _may_have_been(book, book.unheard[book.unheard_at])
        book.unheard_at += 1


def _may_have_been(book: Book, unheard: Unheard) -> None:
    sent = unheard.sent
    for asked in sent.enqueues:
        enqueue_unheard(book, asked, sent.t)
    book.unclear += len(sent.settles) + sent.want
    for settle in sent.settles:
        book.doubts.setdefault(settle.fence, []).append(settle)
        book.doubted.setdefault(settle.job, []).append(settle)
    for job in sent.cancels:
        book.maybe_cancelled.add(job)
        life = book.lives.get(job)
        if life is not None:
            book.leave_line(life)
        else:
            _leave_line(book, job)
    if sent.settles or sent.want or sent.holder:
        book.unheard_turns += 1
    if sent.want:
        book.unheard_leases.append(sent.t)
        book.may_pass.append(Room(sent.t, book.claiming, sent.want))
        if sent.holder:
            book.holder(sent.holder, unheard.pid).unheard += 1
        else:
            book.raw_unheard = True


def _leave_line(book: Book, job: str) -> None:
    columns, row = book.ledger.find(book.owner, job)
    if columns.states[row] & STATE_MASK == WAITING and columns.places[row] != NO_PLACE:
        book.line(book.terms(columns, row).priority).take(columns.places[row])
        columns.places[row] = NO_PLACE
