"""Attempts in real time: I8, each has its own fence and a cause; I9, one at a time; I10, never early.

The server's order counts, so these records are matched by fence: in whatever order files are read, a start finds its
lease and an end its start.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from chaos.checker.book import Book
from chaos.checker.evidence import Evidence
from chaos.checker.frames import frames, kind
from chaos.checker.index import Index
from chaos.checker.ledger import ALIVE, STATE_MASK
from chaos.checker.lives import LOST_LEASE, REWIND, Lease
from chaos.log import Finished, Started

Run = Started | Finished
_decode = msgspec.msgpack.Decoder(Run).decode


class Runs:
    """Starts and ends of jobs from all files, in order of time. The records of one file are already in order."""

    def __init__(self, index: Index) -> None:
        self._paths = index.paths
        self._waiting = deque(index.with_runs)
        self._open: list[tuple[int, int, Run, Iterator[Run]]] = []

    def until(self, t: int) -> Iterator[Run]:
        """All records up to `t` that were not returned before."""
        while self._waiting and self._waiting[0][0] <= t:
            _, number = self._waiting.popleft()
            self._push(number, _runs(self._paths[number]))
        while self._open and self._open[0][0] <= t:
            _, number, record, records = heapq.heappop(self._open)
            yield record
            for record in records:
                if record.t > t:
                    heapq.heappush(self._open, (record.t, number, record, records))
                    break
                yield record

    def _push(self, number: int, records: Iterator[Run]) -> None:
        record = next(records, None)
        if record is not None:
            heapq.heappush(self._open, (record.t, number, record, records))


def _runs(path: Path) -> Iterator[Run]:
    for _, body in frames(path):
        what = kind(body)
        if what == b"sta" or what == b"fin":
            yield _decode(body)


def note_run(book: Book, record: Run) -> None:
    """Process a start or an end, whether or not its lease is known yet."""
    fence = record.fence
    lease = book.held.get(fence) or book.lost.get(fence)
    if lease is None:
        book.early.setdefault(fence, []).append(record)
    elif isinstance(record, Started):
        _started(book, lease, record)
    else:
        _finished(lease, record)


def replay(book: Book, lease: Lease) -> None:
    """Process records that were read before their lease."""
    for record in book.early.pop(lease.fence):
        if isinstance(record, Started):
            _started(book, lease, record)
        else:
            _finished(lease, record)


def _started(book: Book, lease: Lease, record: Started) -> None:
    life = lease.life
    book.started = True
    book.counts["attempts"] += 1
    if lease.started:
        book.problem("I8", record.job, f"was started twice under fence {record.fence}")
        return
    lease.started, lease.pid = record.t, record.pid
    if record.job != life.job:
        book.problem("I2", record.job, f"was started under fence {record.fence}, which belongs to {life.job}")
    if record.check != life.check and lease is life.lease:
        book.problem("I2", record.job, f"was started with another payload than it was leased with: {record.check:08x}")
    if lease is life.lease and record.attempt != life.failures + life.stalls + 1:
        book.problem(
            "I12",
            record.job,
            f"was started as attempt {record.attempt}, after {life.failures} failures and {life.stalls} stalls",
        )
    if record.t + book.slack < lease.not_before:
        early = (lease.not_before - record.t) // 1_000_000
        book.problem("I10", record.job, f"was started {early} ms before its run time, in real time")
    life.starts += 1
    if life.starts > 1:
        book.findings.duplicates[lease.cause or LOST_LEASE] += 1
        if life.starts == 2:
            book.findings.add("duplicated", record.job)
    last = life.last_run
    if last is not None and not (last.finished and last.finished <= record.t):
        book.overlapping.append((last, lease))
    life.last_run = lease


def _finished(lease: Lease, record: Finished) -> None:
    lease.finished, lease.how = record.t, record.how


def check_overlaps(book: Book, evidence: Evidence) -> None:
    """I9: two attempts at one job ran at the same time, judged by their signs of life."""
    for one, other in book.overlapping:
        older, newer = (one, other) if one.fence < other.fence else (other, one)
        since = max(older.started, newer.started)
        until = min(_end(older, evidence), _end(newer, evidence))
        pids = older.holder.pids | {older.pid}
        both = until - since - evidence.stopped_for(pids, since, until)
        if both <= 0:
            continue
        book.findings.overlaps.append(both / 1e6)
        sentence = f"ran twice at once for {both / 1e6:.0f} ms: under fence {older.fence} and {newer.fence}"
        if newer.cause == REWIND:
            continue  # the server lost the lease in a rewind: measured, not a violation
        if not evidence.excuses_overlap(pids, older.t, since):
            book.problem("I9", older.life.job, f"{sentence}, and the older one was neither stopped nor cut off")
        elif both > book.limits.linger * 1e9:
            book.problem(
                "I9", older.life.job, f"{sentence}; {book.limits.linger * 1000:.0f} ms are allowed after a stop"
            )


def _end(lease: Lease, evidence: Evidence) -> int:
    """When an attempt ended, or the last time it certainly had not."""
    if lease.finished:
        return lease.finished
    last = evidence.last_sign(lease.pid, lease.started)
    return min(last, lease.end) if lease.end else last


def check_strays(book: Book) -> None:
    """Attempts under a fence that no lease had."""
    for fence, records in book.early.items():
        for record in records:
            if isinstance(record, Started):
                columns, row = book.ledger.find(book.owner, record.job)
                if columns.states[row] & STATE_MASK > ALIVE:
                    book.problem("I5", record.job, f"was started under fence {fence} after its end")
                else:
                    book.problem("I6", record.job, f"was started under fence {fence}, which no lease has")
