"""The log lines of single jobs: read again, only for jobs with a violation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from chaos.checker.frames import decode, frames
from chaos.checker.report import Violation
from chaos.log import Answered, Beaten, Extended, Finished, Left, Refused, Sent, Started

_MAX_JOBS = 40
_MAX_LINES = 60


def histories(folder: Path, violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """The same violations, each with its job's history."""
    violations = tuple(violations)
    wanted = list(dict.fromkeys((one.queue, one.job) for one in violations if one.job))[:_MAX_JOBS]
    if not wanted:
        return violations
    told = _read(folder, wanted)
    return tuple(
        msgspec.structs.replace(one, history=tuple(told[one.queue, one.job])) if (one.queue, one.job) in told else one
        for one in violations
    )


def _read(folder: Path, wanted: list[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    needles = {job.encode(): (queue, job) for queue, job in wanted}
    events: dict[tuple[str, str], list[tuple[int, str]]] = {key: [] for key in wanted}
    for path in sorted(folder.glob("*.log")):
        calls: dict[int, set[tuple[str, str]]] = {}  # calls that name a wanted job
        for _, body in frames(path):
            hits = {key for needle, key in needles.items() if needle in body}
            if not hits and not calls:
                continue
            record = decode(body)
            if isinstance(record, Sent):
                hits = {key for key in hits if key[0] == record.queue}
                if hits:
                    calls[record.call] = hits
            elif isinstance(record, Answered):
                hits = {key for key in hits if key[0] == record.queue} | calls.pop(record.call, set())
            elif isinstance(record, Refused):
                hits = calls.get(record.call, set())
            for key in hits:
                said = _tell(record, *key)
                if said:
                    events[key].append((record.t, f"{record.t / 1e9:.6f} {path.stem.split('-')[0]}: {said}"))
    return {key: _shortened([line for _, line in sorted(found)]) for key, found in events.items()}


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= _MAX_LINES:
        return lines
    half = _MAX_LINES // 2
    return [*lines[:half], f"… {len(lines) - 2 * half} more …", *lines[-half:]]


def _tell(record: Any, queue: str, job: str) -> str:
    match record:
        case Sent():
            return _tell_sent(record, job)
        case Answered():
            given = [
                f"leased with fence {claim.fence} (failures {claim.failures}, stalls {claim.stalls}, "
                f"payload {claim.check:08x}, priority {claim.priority})"
                for claim in record.claims
                if claim.job == job
            ]
            more = f", statuses {record.statuses}" if 0 < len(record.statuses) < 30 else ""
            more += f", reclaimed {record.recovered}" if record.recovered else ""
            refused = record.settled.count(False)
            more += f", rejected {refused} outcomes" if refused else ""
            at = f"step {record.step} (epoch {record.epoch}, now {record.now})"
            return f"answer to call {record.call}, {at}{more}{': ' + '; '.join(given) if given else ''}"
        case Refused():
            return f"call {record.call} was given up ({record.why}{', in doubt' if record.in_doubt else ''})"
        case Started() if (record.queue, record.job) == (queue, job):
            return f"started, attempt {record.attempt}, fence {record.fence}, process {record.pid}"
        case Finished() if (record.queue, record.job) == (queue, job):
            return f"finished ({record.how}), fence {record.fence}, process {record.pid}"
        case Extended() if (record.queue, record.job) == (queue, job):
            kept = "kept" if record.kept else "not kept"
            return f"extended, {kept}, fence {record.fence}, step {record.step}, now {record.now}"
        case Left() if (record.queue, record.job) == (queue, job):
            return f"left: {record.state} {record.reason} (failures {record.failures}, stalls {record.stalls})"
        case Beaten():
            return ""
    return ""


def _tell_sent(sent: Sent, job: str) -> str:
    asked = [f"enqueue {one}" for one in sent.enqueues if one.job == job]
    asked += [f"settle {one}" for one in sent.settles if one.job == job]
    asked += [f"sent to {one.queue} through the outbox" for one in sent.handed if one.asked.job == job]
    asked += ["cancel"] * (job in sent.cancels)
    return f"call {sent.call}: {'; '.join(asked)}" if asked else ""
