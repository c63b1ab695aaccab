"""Merges the logs of all processes: by the server's order of steps, and by this machine's time.

**Stale writes.** The steps of a queue are sorted by the server's order. An accepted settle or progress report with a
fence lower than that of a later lease already granted is stale. A process that died before it logged an answer leaves a
gap, which can hide such a case but never invent one.

**Overlaps.** An attempt lasts from its start to its last pulse. While its worker was stopped it did not run; for an
attempt that was resumed after another had begun, only the time after the resume counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.log import Answered, Beaten, Extended, Finished, Sent, SettleAsked, Started, read_log
from chaos.pauses.app import RECORD
from chaos.pauses.pausing import Pause
from chaos.pauses.site import worker_of

WAKE_LIMIT_S = 0.25  # seconds that an attempt may run on after its worker was resumed


@dataclass
class Attempt:
    """One started attempt. Times are CLOCK_MONOTONIC seconds."""

    job: str
    fence: int
    worker: str
    began: float
    lived: float
    """When it was last seen running."""


@dataclass(frozen=True)
class Overlap:
    """Two attempts at one job that ran at the same time, counted from the resume of the first one's worker."""

    first: Attempt
    second: Attempt
    seconds: float
    pause: Pause | None
    """The stop that paused the first attempt; None: it was not stopped, and should not have been running."""

    def __str__(self) -> str:
        first, second = self.first, self.second
        return (
            f"{first.job} ran twice at once for {self.seconds * 1e3:.0f} ms: "
            f"by {first.worker} until {first.lived:.3f}, by {second.worker} since {second.began:.3f}"
        )


@dataclass
class Findings:
    """The findings of the logs."""

    attempts: int = 0
    done: set[str] = field(default_factory=set)
    """Jobs whose completion was accepted and acknowledged."""
    perhaps_done: set[str] = field(default_factory=set)
    """Jobs whose completion was sent by a process that died before it logged the answer."""
    stale_refused: int = 0
    stale_accepted: list[str] = field(default_factory=list)
    done_twice: list[str] = field(default_factory=list)
    fences_fell: list[str] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    ran_on: list[float] = field(default_factory=list)
    """For each attempt that was resumed with a stale lease, how long it ran on."""
    queues_began_anew: list[str] = field(default_factory=list)
    heard_after: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """For each kind of pause: seconds from its end to the worker's first answer."""

    @property
    def unexplained(self) -> list[Overlap]:
        return [overlap for overlap in self.overlaps if overlap.pause is None]


def judge(folder: Path, pauses: Sequence[Pause]) -> Findings:
    """Read a folder of logs and pulses."""
    findings = Findings()
    log = _read(folder)
    owners = _follow_steps(log, findings)
    attempts = _attempts(log, _pulses(folder), owners)
    findings.attempts = len(attempts)
    _find_overlaps(attempts, pauses, findings)
    for pause in pauses:
        later = [at - pause.ended for at in log.answered[pause.worker] if at > pause.ended]
        findings.heard_after[pause.kind] += [min(later)] if later else []
    return findings


# -- the server's order ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """One answer, with its call."""

    answer: Answered | Extended
    settles: tuple[SettleAsked, ...] = ()


@dataclass
class _Log:
    steps: list[_Step] = field(default_factory=list)
    unanswered: list[SettleAsked] = field(default_factory=list)
    starts: list[Started] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)
    answered: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Worker → times of answers to its calls."""


def _read(folder: Path) -> _Log:
    log = _Log()
    for path in folder.glob("*.log"):
        asked: dict[int, tuple[SettleAsked, ...]] = {}
        for record in read_log(path):
            _sort_in(log, asked, record)
        log.unanswered += [settle for settles in asked.values() for settle in settles]
    return log


def _sort_in(log: _Log, asked: dict[int, tuple[SettleAsked, ...]], record: Any) -> None:
    match record:
        case Sent():
            asked[record.call] = record.settles
        case Answered():
            log.steps.append(_Step(record, asked.pop(record.call, ())))
            log.answered[worker_of(record.holder)].append(record.t / 1e9)
        case Beaten():
            log.answered[worker_of(record.holder)].append(record.t / 1e9)
        case Extended():
            log.steps.append(_Step(record))
        case Started():
            log.starts.append(record)
        case Finished():
            log.ends[record.fence] = record.t / 1e9
        case _:
            pass


def _follow_steps(log: _Log, findings: Findings) -> dict[int, str]:
    """Walk through the steps of all queues; returns the worker of each fence."""
    owners: dict[int, str] = {}
    latest: dict[tuple[str, str], int] = {}
    epochs: dict[str, set[int]] = defaultdict(set)
    for step in sorted(log.steps, key=lambda step: (step.answer.queue, step.answer.epoch, step.answer.step)):
        answer = step.answer
        epochs[answer.queue].add(answer.epoch)
        if isinstance(answer, Extended):
            _judge_write(findings, latest, answer.queue, answer.job, answer.fence, "progress", answer.kept)
            continue
        for settle, ours in zip(step.settles, answer.settled, strict=False):
            _judge_write(findings, latest, answer.queue, settle.job, settle.fence, settle.outcome, ours)
            if ours and settle.outcome == "completed":
                if settle.job in findings.done:
                    findings.done_twice.append(settle.job)
                findings.done.add(settle.job)
        for claim in answer.claims:
            owners[claim.fence] = worker_of(answer.holder)
            key = answer.queue, claim.job
            if claim.fence <= latest.get(key, 0):
                findings.fences_fell.append(claim.job)
            if claim.job in findings.done:
                findings.done_twice.append(claim.job)
            latest[key] = claim.fence
    findings.perhaps_done = {each.job for each in log.unanswered if each.outcome == "completed"} - findings.done
    findings.queues_began_anew = [queue for queue, known in epochs.items() if len(known) > 1]
    return owners


def _judge_write(
    findings: Findings, latest: dict[tuple[str, str], int], queue: str, job: str, fence: int, what: str, accepted: bool
) -> None:
    if fence >= latest.get((queue, job), 0):
        return
    if accepted:
        findings.stale_accepted.append(f"{what} of {queue}/{job} under fence {fence}")
    else:
        findings.stale_refused += 1


# -- the time of this machine ------------------------------------------------------------------------


def _pulses(folder: Path) -> dict[int, float]:
    """The last pulse of each fence."""
    last: dict[int, float] = {}
    for path in folder.glob("*.pulse"):
        data = path.read_bytes()
        for fence, at in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
            last[fence] = at / 1e9
    return last


def _attempts(log: _Log, pulses: dict[int, float], owners: dict[int, str]) -> list[Attempt]:
    return [
        Attempt(
            start.job,
            start.fence,
            owners.get(start.fence, ""),
            start.t / 1e9,
            max(start.t / 1e9, pulses.get(start.fence, 0.0), log.ends.get(start.fence, 0.0)),
        )
        for start in log.starts
    ]


def _find_overlaps(attempts: Iterable[Attempt], pauses: Sequence[Pause], findings: Findings) -> None:
    by_job: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_job[attempt.job].append(attempt)
    stops: dict[str, list[Pause]] = defaultdict(list)
    for pause in pauses:
        if pause.kind == "stop":
            stops[pause.worker].append(pause)
    for tried in by_job.values():
        tried.sort(key=lambda attempt: attempt.fence)
        for number, first in enumerate(tried):
            for second in tried[number + 1 :]:
                _compare(first, second, stops[first.worker], findings)


def _compare(first: Attempt, second: Attempt, stops: Sequence[Pause], findings: Findings) -> None:
    if first.lived <= second.began:
        return
    # The stop during which the second attempt was leased; the first one did not run during it. The second may have
    # begun just after the stop.
    woken = next((pause for pause in stops if pause.began <= second.began <= pause.ended + WAKE_LIMIT_S), None)
    since = max(second.began, woken.ended if woken else 0.0)
    if woken is not None:
        findings.ran_on.append(max(0.0, first.lived - woken.ended))
    together = min(first.lived, second.lived) - since
    if together > 0:
        findings.overlaps.append(Overlap(first, second, together, woken))
