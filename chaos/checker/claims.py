"""Invariants of every lease.

I2, the job was enqueued and is unchanged; I5, it has not ended; I6, fences rise; I10, it is not early; I11, it is the
first in line; I12, its counts are exact.
"""

from __future__ import annotations

from chaos.checker.book import PROMOTION_MARGIN_MS, Book
from chaos.checker.enqueues import operator_asked
from chaos.checker.ledger import ALIVE, ASKED, NO_LIMIT, NO_PLACE, STATE_MASK, UNKNOWN, WAITING
from chaos.checker.line import Line
from chaos.checker.lives import IN_DOUBT, REWIND, UNEXPLAINED, Holder, Lease, Life
from chaos.checker.reaps import lose, merge, replace
from chaos.checker.runs import replay
from chaos.log import Answered, Claim, EnqueueAsked, Sent

_MAX_NAMED = 5  # skipped jobs that a report lists by name


def claimed(book: Book, sent: Sent, answer: Answered, pid: int) -> None:
    """Check the leases in one answer."""
    if answer.holder or sent.holder:
        holder = book.holder(answer.holder or sent.holder, pid)
    else:
        holder = Holder("", True)  # a raw lease has a holder of its own
        holder.pids.add(pid)
    if holder.lost:
        book.problem("I7", answer.claims[0].job, f"was leased to {holder.name!r}, which had been declared lost")
        holder.lost = False
    book.keep(holder, answer.lease)
    book.claiming += 1
    for claim in answer.claims:
        _claim(book, claim, holder)
    book.counts["claims"] += len(answer.claims)
    if len(answer.claims) > sent.want:
        book.problem("I6", answer.claims[-1].job, f"{len(answer.claims)} jobs were leased, but {sent.want} requested")


def _claim(book: Book, claim: Claim, holder: Holder) -> None:
    job, fence = claim.job, claim.fence
    if fence > book.fence:
        book.fence = fence
    elif fence in book.held or fence in book.lost or fence == book.fence:
        book.problem("I6", job, f"was leased with fence {fence}, which was used before")
    else:
        book.problem("I6", job, f"was leased with fence {fence}, after {book.fence}: fences must rise")
    life = book.lives.get(job)
    if life is None:
        life = _first_claim(book, claim)
    elif life.lease is not None:
        lose(book, life, claim)
    if book.journal is not None:
        book.touch(job, ALIVE)
    if life.fuzzy:
        _believe(book, life, claim)
    if claim.check != life.check:
        _other_payload(book, life, claim)
    if claim.failures != life.failures or claim.stalls != life.stalls:
        _other_counts(book, life, claim)
    terms = life.terms
    if claim.failures > terms.max_failures or claim.stalls > terms.max_stalls:
        book.problem(
            "I12",
            job,
            f"was leased after {claim.failures} failures and {claim.stalls} stalls; "
            f"{terms.max_failures} and {terms.max_stalls} are allowed",
        )
    if life.run_at:
        _check_time(book, life)
    _check_order(book, life, claim)
    lease = Lease(life, fence, holder, book.at, book.t, life.cause)
    lease.not_before = life.not_before
    life.lease = book.held[fence] = lease
    life.fence = fence
    life.claimed = book.sent_t
    life.run_at = life.not_before = 0
    life.waiting += 1
    if fence in book.early:
        replay(book, lease)


# -- I2, I5: the job was enqueued, and has not ended -----------------------------------------------


def _first_claim(book: Book, claim: Claim) -> Life:
    """The job has no life yet: this is its first lease, or it should not exist."""
    job = claim.job
    columns, row = book.ledger.find(book.owner, job)
    where = columns.states[row] & STATE_MASK
    if book.journal is not None:
        book.touch(job, where)
    if where == WAITING:
        life = book.give_life(job, columns, row)
        if job in book.again:
            book.again.discard(job)
            operator_asked(life)
    elif where == ASKED:
        life = book.give_life(job, columns, row)
        book.findings.add("recovered", job)
    else:
        life = _unexpected(book, claim, where)
    if job in book.timed:
        life.run_at, life.not_before = book.timed.pop(job)
    return life


def _unexpected(book: Book, claim: Claim, where: int) -> Life:
    job = claim.job
    columns, row = book.ledger.find(book.owner, job)
    another = claim.caught and book.generation > 0  # after a rewind their names start over
    if where == UNKNOWN or another:
        if not claim.caught:
            book.findings.add("unexpected", job)
            book.problem("I2", job, "was leased, but never enqueued")
        else:
            book.caught.add(job)
        columns.terms[row] = _terms_of(book, claim)
    life_terms = book.terms(columns, row)
    columns.places[row] = NO_PLACE
    known = book.maybes.get(job, ())
    if where != UNKNOWN and not another and not (life_terms.singleton and claim.check in known):
        book.counts["settled_then_run_again"] += 1
        book.problem("I5", job, "was leased again after its end")
    columns.checks[row] = claim.check
    life = book.give_life(job, columns, row)
    life.failures, life.stalls = claim.failures, claim.stalls
    if where != UNKNOWN and not another and not life_terms.singleton:
        life.cause, life.starts = UNEXPLAINED, 1
    return life


def _terms_of(book: Book, claim: Claim) -> int:
    """Terms of a job that was never enqueued: as observed, and without limits."""
    asked = EnqueueAsked(claim.job, claim.check, claim.priority, max_failures=NO_LIMIT, max_stalls=NO_LIMIT)
    return book.ledger.intern(asked)


def _believe(book: Book, life: Life, claim: Claim) -> None:
    """After a rewind or an unanswered claim: accept the server's state of the job."""
    rewound = claim.job in book.undone
    if book.believe(life):
        book.counts["rerun_after_rewind"] += 1
    life.failures, life.stalls = claim.failures, claim.stalls
    if life.starts:
        life.cause = REWIND if rewound else IN_DOUBT
    if life.terms.singleton or claim.caught:
        life.check = claim.check
    if claim.caught:
        life.terms = book.ledger.terms[_terms_of(book, claim)]


def _other_payload(book: Book, life: Life, claim: Claim) -> None:
    if claim.check == life.blocked:
        merge(life)  # it was blocked by an unanswered claim
        life.failures, life.stalls = claim.failures, claim.stalls
    elif claim.check in book.maybes.get(claim.job, ()):
        replace(life, claim.check)  # by an unanswered enqueue
        life.failures, life.stalls = claim.failures, claim.stalls
    else:
        book.problem("I2", claim.job, f"was leased with payload {claim.check:08x}, but enqueued with {life.check:08x}")
        life.check = claim.check


# -- I12: counts -----------------------------------------------------------------------------------


def _other_counts(book: Book, life: Life, claim: Claim) -> None:
    """The counts differ from the logged causes. An unanswered lease may have been lost in between."""
    more = claim.stalls - life.stalls
    reset = claim.failures == claim.stalls == 0 and claim.job in book.maybes
    possible = book.unheard_since(life.claimed) if book.sweeps_possible else 0
    unheard = claim.failures == life.failures and 0 < more <= possible
    if not (reset or unheard):
        book.problem(
            "I12",
            claim.job,
            f"was leased with {claim.failures} failures and {claim.stalls} stalls, "
            f"but the log shows {life.failures} and {life.stalls}",
        )
    elif unheard:
        book.counts["claimed_unheard"] += more
        book.reaped += more
    life.failures, life.stalls = claim.failures, claim.stalls


# -- I10: never early ------------------------------------------------------------------------------


def _check_time(book: Book, life: Life) -> None:
    late = book.wall_high - life.run_at
    if late < 0:
        book.problem("I10", life.job, f"was leased {-late} ms before its run time")
    elif book.t + book.slack < life.not_before:
        early = (life.not_before - book.t) // 1_000_000
        book.problem("I10", life.job, f"was leased {early} ms before its run time, in real time")
    book.findings.lateness.append(max(0, late))


# -- I11: first in, first out ----------------------------------------------------------------------


def _check_order(book: Book, life: Life, claim: Claim) -> None:
    priority, place = claim.priority, life.place
    if priority != life.terms.priority:
        book.problem("I11", claim.job, f"was leased with priority {priority}, but enqueued with {life.terms.priority}")
        if place != NO_PLACE:
            book.line(life.terms.priority).take(place)
            place = life.place = NO_PLACE
            life.low = 0
    line = book.line(priority)
    for other in book.priorities:
        if other >= priority:
            break
        ahead = book.lines[other]
        if ahead.head < len(ahead.taken):
            _passed_over(book, ahead, other, len(ahead.taken), claim)
    if life.run_at:
        life.low = line.length_before(life.run_at - PROMOTION_MARGIN_MS) if book.steady_clock else 0
    if line.head < life.low:
        _passed_over(book, line, priority, life.low, claim)
    if place != NO_PLACE:
        line.take(place)


def _passed_over(book: Book, line: Line, priority: int, before: int, claim: Claim) -> None:
    """Jobs are ahead of this one. An unanswered call may have leased them."""
    while places := line.first(1000, before):
        if not book.use_room(len(places)):
            names = [book.who_stands(priority, place) for place in places[:_MAX_NAMED]]
            book.problem(
                "I11",
                claim.job,
                f"was leased (priority {claim.priority}) before {len(places)} jobs ahead of it, "
                f"with priority {priority}: {', '.join(names)}",
            )
        for place in places:
            line.take(place)
