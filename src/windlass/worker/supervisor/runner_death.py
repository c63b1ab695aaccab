"""What becomes of each job of a dead runner: only the job at fault is charged, and all others go back uncharged."""

from __future__ import annotations

import msgspec

from windlass.errors import Undecodable
from windlass.tasks.envelope import Envelope, read_envelope
from windlass.values.backoff import after_crash, after_failure
from windlass.values.job import JobRecord, Lease
from windlass.values.outcome import Crashed, Failed, Outcome, Released
from windlass.values.validation import shortened
from windlass.worker.executors.processes import Gone, crash_report
from windlass.worker.reclaim import Decide
from windlass.worker.supervisor.forkserver import Ending
from windlass.worker.supervisor.runner_group import RunnerGroup


def judge(group: RunnerGroup, ending: Ending) -> Decide:
    """Return the function that decides for each lease of a group whose runner has ended."""
    suspects = {entry.fence for entry in group.suspects()}
    rss = (ending.rss_kb or 0) * 1024 or group.rss
    gone = Gone(ending.code, ending.signal, group.why, 0, rss, group.output.last)

    def decide(lease: Lease, record: JobRecord) -> Outcome:
        envelope = _envelope(record) if group.facts.of(record.queue).tasks else None
        task, keep_ms = (envelope.task, round(envelope.keep * 1000)) if envelope else (None, 0)
        lease = msgspec.structs.replace(lease, limits=group.facts.limits_of(lease, task))
        if lease.fence in group.overdue:
            outcome = after_failure(lease, None, "it did not stop after its timeout; its runner was killed")
            return msgspec.structs.replace(outcome, keep_ms=keep_ms) if isinstance(outcome, Failed) else outcome
        if group.blocked and lease.fence in suspects:
            text = "a job blocked the event loop, perhaps this one; its runner was killed"
            return Crashed(lease, text, is_cause=False)
        if group.why or group.leaving or lease.fence not in suspects:
            return Released(lease)
        text = crash_report(gone, record.progress)
        if len(suspects) == 1:
            return after_crash(lease, shortened(text), keep_ms)
        return Crashed(lease, shortened(f"one of {len(suspects)} suspects: {text}"), is_cause=False)

    return decide


def is_final(outcome: Outcome) -> bool:
    """Return whether this outcome ends the job."""
    if isinstance(outcome, Crashed):
        return outcome.is_cause and outcome.lease.stalls >= outcome.lease.limits.max_stalls
    return isinstance(outcome, Failed)


def _envelope(record: JobRecord) -> Envelope | None:
    """Return the envelope of a task's job; None for any other payload."""
    try:
        return read_envelope(record.data)
    except Undecodable:
        return None
