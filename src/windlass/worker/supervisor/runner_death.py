"""What becomes of each job of a dead runner: only the job at fault is charged, and all others go back uncharged."""

from __future__ import annotations

import msgspec

from windlass.errors import Undecodable
from windlass.tasks.envelope import read_envelope
from windlass.values.backoff import after_failure
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
        keep_ms = _keep_ms(record) if group.facts.of(record.queue).tasks else 0
        if lease.fence in group.overdue:
            outcome = after_failure(lease, None, "it did not stop after its timeout; its runner was killed")
            return msgspec.structs.replace(outcome, keep_ms=keep_ms) if isinstance(outcome, Failed) else outcome
        if group.blocked and lease.fence in suspects:
            text = "a job blocked the event loop, perhaps this one; its runner was killed"
            return Crashed(lease, text, is_cause=False)
        if group.why or group.leaving or lease.fence not in suspects:
            return Released(lease)
        is_cause = len(suspects) == 1
        text = crash_report(gone, record.progress)
        text = shortened(text if is_cause else f"one of {len(suspects)} suspects: {text}")
        return Crashed(lease, text, is_cause, keep_ms=keep_ms)

    return decide


def is_final(outcome: Outcome) -> bool:
    """Return whether this outcome ends the job."""
    if isinstance(outcome, Crashed):
        return outcome.is_cause and outcome.lease.stalls >= outcome.lease.limits.max_stalls
    return isinstance(outcome, Failed)


def _keep_ms(record: JobRecord) -> int:
    """Return for how many milliseconds to keep the job's result."""
    try:
        return round(read_envelope(record.data).keep * 1000)
    except Undecodable:
        return 0
