"""Compares the actors' logs with CLOCK_MONOTONIC.

A lease is valid from its request until its seconds are over; an accepted extension or heartbeat restarts it. A job
leased to another holder before that was reclaimed too early, and one leased only after twice that time too late.
Between request and answer the exact moment is unknown: only certain violations count.

A jump ahead may advance the queue's clock by a second (`STEP_CAP_S` in clock.lua), and so shorten every active lease by
that much. This is the only accepted reason for a short lease, and it is counted. With callers on several machines the
elapsed time is not known to the millisecond: then a small part of a lease is tolerated.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROUNDING_S = 0.005  # seconds: all times of the queue are whole milliseconds, and several are added up
MAX_LEASE_LENGTHS = 2.0  # leases
STEP_CAP_S = 1.0  # seconds by which each jump ahead may shorten a lease
TOLERATED_SHARE = 0.05  # share of a lease, with several machines; a worker stops its jobs at 0.85


class Jump(NamedTuple):
    """One jump of the server's clock."""

    at: float
    seconds: float


class Line(NamedTuple):
    """One line of a journal."""

    what: str
    id: str
    asked: float
    answered: float
    more: dict[str, Any]


@dataclass
class Held:
    """One lease, from its certain start to its certain end."""

    id: str
    fence: int
    holder: str | None
    seconds: float
    asked: float
    answered: float
    renewed_asked: float
    renewed_answered: float
    """Its last renewal was between these two times."""
    completed: bool | None = None
    completed_asked: float = 0.0


@dataclass
class Findings:
    """Figures and problems."""

    jobs: int = 0
    leases: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    """First leases of jobs, by how they were enqueued."""
    early: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    taken_over: list[float] = field(default_factory=list)
    """For abandoned leases: time until the next lease, in lease lengths."""
    too_long: list[str] = field(default_factory=list)
    cut_by_jump: list[float] = field(default_factory=list)
    """Seconds by which leases were cut short during jumps ahead."""
    forgiven: list[float] = field(default_factory=list)
    """Seconds by which leases were slightly too short."""
    too_short: list[str] = field(default_factory=list)
    """Jobs leased to another holder during a valid lease: unexplained duplicates."""
    lost_unduly: list[str] = field(default_factory=list)
    """Refused completions within a valid lease."""
    done: set[str] = field(default_factory=set)
    done_twice: list[str] = field(default_factory=list)
    enqueued: set[str] = field(default_factory=set)

    @property
    def faults(self) -> list[str]:
        done_twice = [f"{id} was done twice" for id in self.done_twice]
        return [*self.early, *self.too_short, *self.too_long, *self.lost_unduly, *done_twice]


def read(paths: Iterable[Path]) -> list[Line]:
    """All lines, by the time of their answers."""
    lines = [Line(*json.loads(text)) for path in paths for text in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: line.answered)


def judge(lines: Iterable[Line], jumps: Sequence[Jump] = (), forgiven: float = 0.0) -> Findings:
    """One pass over all actions, then job by job. `forgiven` is a share of a lease."""
    found = Findings()
    enqueued: dict[str, Line] = {}
    by_fence: dict[tuple[str, int], Held] = {}
    by_holder: dict[str, list[Held]] = defaultdict(list)
    for line in lines:
        match line.what:
            case "enqueue":
                enqueued[line.id] = line
            case "lease":
                held = _held(line)
                by_fence[line.id, held.fence] = held
                if held.holder is not None:
                    by_holder[held.holder].append(held)
            case "extend" if line.more["told"]:
                _renew(by_fence[line.id, line.more["fence"]], line)
            case "beat" if line.more["told"]:
                for held in by_holder[line.more["holder"]]:
                    if held.answered < line.asked:  # otherwise it may not have had the lease yet
                        _renew(held, line)
            case "complete":
                held = by_fence[line.id, line.more["fence"]]
                held.completed, held.completed_asked = line.more["told"], line.asked
            case _:
                pass
    found.jobs, found.leases, found.enqueued = len(enqueued), len(by_fence), set(enqueued)
    by_job: dict[str, list[Held]] = defaultdict(list)
    for held in by_fence.values():
        by_job[held.id].append(held)
    for id, leases in by_job.items():
        leases.sort(key=lambda held: held.fence)
        _judge_start(found, enqueued[id], leases[0])
        _judge_leases(found, leases, jumps, forgiven)
    return found


def _held(line: Line) -> Held:
    more = line.more
    times = line.asked, line.answered
    return Held(line.id, more["fence"], more["holder"], more["seconds"], *times, *times)


def _renew(held: Held, line: Line) -> None:
    held.renewed_asked, held.renewed_answered = line.asked, line.answered


def _judge_start(found: Findings, enqueued: Line, first: Held) -> None:
    kind, wait = enqueued.more["kind"], enqueued.more["wait"]
    found.starts[kind] = found.starts.get(kind, 0) + 1
    due = enqueued.asked + wait
    if first.answered < due - ROUNDING_S:
        found.early.append(f"{enqueued.id} ({kind}) began {due - first.answered:.3f} s early")
    found.late.append(max(0.0, first.answered - due))


def _ahead(jumps: Sequence[Jump], begin: float, end: float) -> list[Jump]:
    return [jump for jump in jumps if jump.seconds > 0 and begin <= jump.at <= end]


def _judge_leases(found: Findings, leases: list[Held], jumps: Sequence[Jump], forgiven: float) -> None:
    for held, following in pairwise(leases):
        # The other request may have waited at the server: it may have got the job just before its answer.
        least, most = following.answered - held.renewed_answered, following.answered - held.renewed_asked
        if held.completed:
            found.done_twice.append(held.id)
        ahead = _ahead(jumps, held.renewed_asked, following.answered)
        missing = held.seconds - most - ROUNDING_S
        if missing > STEP_CAP_S * len(ahead) + forgiven * held.seconds:
            found.too_short.append(f"{held.id} was taken over after {most:.3f} s of a lease of {held.seconds:g} s")
        elif missing > 0:
            (found.cut_by_jump if ahead else found.forgiven).append(missing)
        if least > held.seconds * MAX_LEASE_LENGTHS:
            found.too_long.append(f"{held.id} was taken over only after {least:.3f} s, lease {held.seconds:g} s")
        found.taken_over.append(most / held.seconds)
    for held in leases:
        if held.completed:
            found.done.add(held.id)
        elif held.completed is False:
            # A lease cut short by a jump may belong to another holder before the first one is done.
            cut = STEP_CAP_S * len(_ahead(jumps, held.renewed_asked, held.completed_asked))
            if held.completed_asked - held.renewed_asked < held.seconds * 0.9 - cut:
                found.lost_unduly.append(f"{held.id} was lost during its lease")
