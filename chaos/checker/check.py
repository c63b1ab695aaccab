"""The whole check: all files of a folder, merged in the server's order, in one pass."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Iterator
from pathlib import Path

import msgspec

from chaos.checker.book import Book, Limits
from chaos.checker.ending import close, place_of_lost
from chaos.checker.evidence import NEVER, Evidence
from chaos.checker.history import histories
from chaos.checker.index import Index, Step
from chaos.checker.ledger import ACKNOWLEDGED, LOST, STATE_MASK, Ledger
from chaos.checker.lives import CAUSES
from chaos.checker.report import Findings, Report, percentile
from chaos.checker.runs import Runs, check_overlaps, check_strays, note_run
from chaos.checker.steps import reckon_with_unheard, take_step

_PLAIN = Limits()
_GC_THRESHOLD = 200_000  # new objects between collections: most are freed by reference counts


def check(folder: Path, limits: Limits = _PLAIN) -> Report:
    """Check whether a run kept every promise."""
    before = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
    try:
        index = Index(folder)
        evidence = Evidence(index)
        findings = Findings(limits.most)
        books = _books(index, evidence, findings, limits)
        _go_through(index, books)
        for book in books.values():
            reckon_with_unheard(book, NEVER)
            check_overlaps(book, evidence)
            check_strays(book)
            close(book, index, evidence)
            findings.counts["reaped"] += book.reaped
        ledger = next(iter(books.values())).ledger if books else Ledger()
        report = _report(index, evidence, findings, ledger)
        index.shelf.close()
    finally:
        gc.set_threshold(*before)
    return msgspec.structs.replace(report, violations=histories(folder, report.violations))


def _books(index: Index, evidence: Evidence, findings: Findings, limits: Limits) -> dict[str, Book]:
    ledger = Ledger()
    names = sorted({*index.queues, *index.unheard, *index.inspected})
    books = {name: Book(name, number, ledger, evidence, findings, limits) for number, name in enumerate(names, start=1)}
    for name, book in books.items():
        book.unheard = index.unheard.get(name, [])
        book.inspected = name in index.inspected
        book.others = books
    return books


def _go_through(index: Index, books: dict[str, Book]) -> None:
    """Walk all queues' steps, each queue in the server's order, and the attempts in real time alongside."""
    runs = Runs(index)
    pids = {file: process.pid for file, process in index.processes.items()}
    pending: list[tuple[int, int, Step, Iterator[Step], Book]] = []

    def push(number: int, steps: Iterator[Step], book: Book) -> None:
        step = next(steps, None)
        if step is not None:
            heapq.heappush(pending, (step.record.t, number, step, steps, book))

    for number, (name, queue) in enumerate(index.queues.items()):
        push(number, queue.steps(index.shelf), books[name])
    while pending:
        t, number, step, steps, book = heapq.heappop(pending)
        for run in runs.until(t):
            if run.queue in books:
                note_run(books[run.queue], run)
        take_step(book, step, pids.get(step.file, 0))
        push(number, steps, book)
    for run in runs.until(NEVER):
        if run.queue in books:
            note_run(books[run.queue], run)


def _report(index: Index, evidence: Evidence, findings: Findings, ledger: Ledger) -> Report:
    counts = findings.counts
    late = sorted(findings.lateness)
    first, middle, last = _where_lost(ledger) if findings.jobs("lost").count else (0, 0, 0)
    return Report(
        ok=not findings.violated,
        files=len(index.paths),
        processes=len(index.processes),
        queues=len(index.queues),
        calls=index.calls,
        in_doubt=sum(map(len, index.unheard.values())),
        not_applied=index.refused,
        steps=sum(map(len, index.queues.values())),
        asked=counts["asked"],
        acknowledged=counts["acknowledged"],
        completed=counts["completed"],
        dead=counts["dead"],
        broken=counts["broken"],
        cancelled=counts["cancelled"],
        ended_unheard=counts["ended_unheard"],
        claimed_unheard=counts["claimed_unheard"],
        left=counts["left"],
        handled=counts["handled"],
        claims=counts["claims"],
        attempts=counts["attempts"],
        reaped=counts["reaped"],
        stale_refused=counts["stale_refused"],
        settled_then_run_again=counts["settled_then_run_again"],
        rerun_after_rewind=counts["rerun_after_rewind"],
        lost=findings.jobs("lost"),
        unexpected=findings.jobs("unexpected"),
        duplicated=findings.jobs("duplicated"),
        recovered=findings.jobs("recovered"),
        forgotten=findings.jobs("forgotten"),
        lost_first=first,
        lost_middle=middle,
        lost_last=last,
        duplicates={cause: findings.duplicates[cause] for cause in CAUSES},
        overlaps=len(findings.overlaps),
        overlap_ms_total=sum(findings.overlaps),
        overlap_ms_max=max(findings.overlaps, default=0.0),
        late_ms_p50=percentile(late, 0.5),
        late_ms_p99=percentile(late, 0.99),
        late_ms_max=percentile(late, 1.0),
        timed=len(late),
        worker_kills=evidence.worker_kills,
        server_kills=len(evidence.server_kills),
        processes_ended=len(index.ended),
        rewinds=len(index.rewinds),
        faults=evidence.by_name,
        violated=dict(findings.violated),
        violations=tuple(findings.violations),
    )


def _where_lost(ledger: Ledger) -> tuple[int, int, int]:
    """How many lost jobs precede all surviving jobs of their producer, lie between them, and follow them."""
    kept: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    lost: list[tuple[str, tuple[int, ...]]] = []
    for columns in ledger.columns():
        for row, state in enumerate(columns.states):
            if not state & ACKNOWLEDGED:
                continue
            producer, place = place_of_lost(columns, row)
            if state & STATE_MASK == LOST:
                lost.append((producer, place))
            else:
                low, high = kept.get(producer, (place, place))
                kept[producer] = (min(low, place), max(high, place))
    before = sum(producer not in kept or place < kept[producer][0] for producer, place in lost)
    after = sum(producer in kept and place > kept[producer][1] for producer, place in lost)
    return before, len(lost) - before - after, after
