"""I8, every duplicate has a cause: what becomes of a lost holder's lease, and whether the loss is plausible.

A step tells how many jobs it reclaimed, not which. If only one assignment is possible, the jobs are known at once,
otherwise when they are leased again. Either way the holder must have been silent for the length of its lease, and the
log must show the reason: a fault that hit it, or a dead process.
"""

from __future__ import annotations

from chaos.checker.book import Book, Sweep
from chaos.checker.ledger import CANCELLED, NO_PLACE
from chaos.checker.lives import IN_DOUBT, LOST_LEASE, UNEXPLAINED, Holder, Lease, Life
from chaos.log import Answered, Beaten, Claim, Extended, SettleAsked

_JUMP_NS = 10**9  # ns that each change of the server's clock may take off a lease
ENDS = ("completed", "failed", "broken", "unhandled")


def swept(book: Book, answer: Answered) -> None:
    """A step reclaimed jobs from lost holders."""
    sweep = Sweep(book.at, book.now, book.t)
    book.sweeps.append(sweep)
    book.recovered += answer.recovered
    if any(holder.unheard for holder in book.holders.values() if holder.end <= book.now) or book.raw_unheard:
        return  # they may have held jobs leased by unanswered calls
    lost = [lease for lease in book.held.values() if lease.holder.end <= book.now]
    if len(lost) == answer.recovered and not any(lease.fence in book.doubts or lease.gone for lease in lost):
        for lease in lost:
            _judge(book, lease, sweep)
            lease.holder.lost = True
        for lease in lost:
            take_back(book, lease)


def take_back(book: Book, lease: Lease) -> None:
    """Apply the server's handling of a lost lease."""
    life = lease.life
    _forget(book, lease)
    book.reaped += 1
    life.stalls += 1
    if lease.cancelled:
        book.end(life, CANCELLED)
    elif life.stalls > life.terms.max_stalls:
        book.die(life, "stalled")
    else:
        put_back(book, life, LOST_LEASE)


def put_back(book: Book, life: Life, cause: str) -> None:
    """The job waits again, at its old place if that is known."""
    life.cause = cause
    if life.blocked is not None:
        merge(life)
    book.back_in_line(life)


def merge(life: Life) -> None:
    """The blocked job replaces this one."""
    assert life.blocked is not None
    replace(life, life.blocked)
    life.blocked = None


def replace(life: Life, check: int) -> None:
    """Another payload takes its place, with its own counts and run time."""
    life.check = check
    life.failures = life.stalls = life.starts = 0
    life.run_at = life.not_before = 0
    life.cause = ""


def _forget(book: Book, lease: Lease) -> None:
    """The lease has ended, but its attempt may still run."""
    book.held.pop(lease.fence, None)
    book.lost[lease.fence] = lease
    if lease.life.lease is lease:
        lease.life.lease = None


def lose(book: Book, life: Life, claim: Claim) -> None:
    """A job is leased while its lease is not known to have ended: find out why."""
    lease = life.lease
    assert lease is not None
    more = (claim.failures - life.failures, claim.stalls - life.stalls)
    if life.fuzzy or life.blocked is not None or claim.job in book.maybes:
        _lose_unclear(book, life, lease, claim)
        return
    if lease.cancelled:
        book.problem("I5", life.job, "was leased again after it was cancelled")
        _explain_nothing(book, life, lease, claim)
        return
    if _settled_unheard(book, lease, more):
        return
    late = [sweep for sweep in book.sweeps if sweep.at > lease.at]
    legal = next((sweep for sweep in late if sweep.now >= lease.holder.end), None)
    if legal is not None:
        _judge(book, lease, legal)
    elif book.unheard_turns and book.now >= lease.holder.end:
        _judge(book, lease, Sweep(book.at, book.now, book.t))
    elif late:
        left = lease.holder.end - late[-1].now
        book.problem("I8", life.job, f"was reclaimed {left} ms before the lease of {lease.holder.name!r} expired")
        _explain_nothing(book, life, lease, claim)
        return
    elif book.now < lease.holder.end:
        _two_at_once(book, life, lease)
        _explain_nothing(book, life, lease, claim)
        return
    else:
        book.problem("I8", life.job, f"was leased again, but nothing ended its lease (fence {lease.fence})")
        _explain_nothing(book, life, lease, claim)
        return
    _forget(book, lease)
    book.reaped += 1
    life.stalls += 1
    life.cause = LOST_LEASE


def _two_at_once(book: Book, life: Life, lease: Lease) -> None:
    left = lease.holder.end - book.now
    if life.terms.singleton:
        book.problem("I9", life.job, f"was leased twice at once: fence {lease.fence} was valid for another {left} ms")
    else:
        book.problem("I6", life.job, f"was leased while {lease.holder.name!r} held it for another {left} ms")


def _explain_nothing(book: Book, life: Life, lease: Lease, claim: Claim) -> None:
    """Continue with the server's state, so that one violation is reported once."""
    _forget(book, lease)
    life.cause = UNEXPLAINED
    life.failures, life.stalls = claim.failures, claim.stalls


def _lose_unclear(book: Book, life: Life, lease: Lease, claim: Claim) -> None:
    """After a rewind, or with a possible enqueue of the same id in between: any kind of end is allowed."""
    if not (life.fuzzy or lease.fence in book.doubts or lease.gone):
        if book.now < lease.holder.end:
            _two_at_once(book, life, lease)
        else:
            _judge(book, lease, Sweep(book.at, book.now, book.t))
            book.reaped += 1
    _forget(book, lease)
    if life.blocked is not None:
        merge(life)
    life.cause = LOST_LEASE if not life.fuzzy else life.cause
    life.failures, life.stalls = claim.failures, claim.stalls


def _settled_unheard(book: Book, lease: Lease, more: tuple[int, int]) -> bool:
    """Whether an unanswered call can have ended the lease, judged by the counts.

    That call may also have leased the job again; each such lease then cost one more stall.
    """
    for doubt in book.doubts.pop(lease.fence, ()):
        failures, stalls = _effect(doubt)
        again = more[1] - stalls
        fits = again == 0 or (0 < again <= book.unheard_since(lease.life.claimed) and failures)
        if doubt.outcome not in ENDS and failures == more[0] and fits:
            _settle_unheard(book, lease, doubt)
            return True
    return False


def _effect(doubt: SettleAsked) -> tuple[int, int]:
    """How much an outcome adds to failures and stalls."""
    return (int(doubt.outcome == "retried"), int(doubt.outcome == "crashed" and doubt.alone))


def _settle_unheard(book: Book, lease: Lease, doubt: SettleAsked) -> None:
    """The unanswered call was applied."""
    life = lease.life
    _forget(book, lease)
    failures, stalls = _effect(doubt)
    life.failures += failures
    life.stalls += stalls
    life.cause = IN_DOUBT
    if doubt.outcome in ("retried", "snoozed", "unknown") or doubt.delay:
        life.place, life.low = NO_PLACE, 0  # its new place is unknown


def _judge(book: Book, lease: Lease, sweep: Sweep) -> None:
    """Check that a holder could be declared lost, and why."""
    holder = lease.holder
    if holder.judged == holder.heard:
        return
    holder.judged = holder.heard
    room = _JUMP_NS * book.evidence.jumps_between(holder.heard - holder.lease * 1_000_000, sweep.t)
    if sweep.t + room < holder.good:
        short = (holder.good - sweep.t) // 1_000_000
        book.problem("I8", lease.life.job, f"was reclaimed {short} ms too early in real time: its lease was cut short")
    if not holder.raw and not _is_explained(book, holder, sweep.t):
        book.problem(
            "I8",
            lease.life.job,
            f"was reclaimed from {holder.name!r}, but no fault, death or stop explains the loss",
        )


def _is_explained(book: Book, holder: Holder, until: int) -> bool:
    return book.evidence.explains(holder.pids, holder.heard - holder.lease * 1_000_000, until)


def owner_refused(book: Book, lease: Lease, what: str) -> None:
    """A holder is told that its lease is lost: that must be true."""
    if lease.gone or lease.cancelled:
        return
    lease.gone = True
    life = lease.life
    explained = (
        life.fuzzy
        or lease.fence in book.doubts
        or any(sweep.at > lease.at and sweep.now >= lease.holder.end for sweep in book.sweeps)
        or (book.unheard_turns > 0 and book.now >= lease.holder.end)
        or life.job in book.maybe_cancelled
    )
    if not explained:
        book.problem("I7", life.job, f"{what} by fence {lease.fence} was refused, but it was the owner")


def beaten(book: Book, beat: Beaten, pid: int) -> None:
    """A heartbeat was answered."""
    holder = book.holder(beat.holder, pid)
    if beat.known:
        if holder.lost:
            book.problem("I7", "", f"the heartbeat of {beat.holder!r} was accepted after all its jobs were reclaimed")
            holder.lost = False
        book.keep(holder, beat.lease)
        return
    if holder.end > book.now and not holder.lost:
        left = holder.end - book.now
        book.problem("I8", "", f"{beat.holder!r} was declared lost {left} ms before its lease expired")


def extended(book: Book, record: Extended, pid: int) -> None:
    """An extension or a progress report was answered."""
    lease = book.held.get(record.fence)
    if lease is None or lease.life.job != record.job:
        if record.kept:
            _kept_unheld(book, record)
        return
    if not record.kept:
        owner_refused(book, lease, "an extension")
        return
    if not record.lease:
        return  # progress
    if lease.holder.raw:
        lease.holder = Holder("", True)
        lease.holder.pids.add(pid)
    book.keep(lease.holder, record.lease)


def _kept_unheld(book: Book, record: Extended) -> None:
    if book.unheard_leases and record.fence > book.last_fence(record.job):
        return
    lost = book.lost.get(record.fence)
    if (book.generation == 0 and lost is None) or (lost is not None and not lost.unsure):
        book.problem("I7", record.job, f"an extension with fence {record.fence} was accepted, but it was not the owner")
