"""Logs how attempts end, and what a turn reports."""

from __future__ import annotations

import logging
from time import monotonic
from types import TracebackType

from windlass.storage.port import Turn
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    NoFailureHandler,
    Outcome,
    Released,
    Retried,
    Snoozed,
    UnknownTask,
    name_of,
)
from windlass.values.printable import in_one_line
from windlass.worker.executors.base import Attempt
from windlass.worker.settings import Settings
from windlass.worker.tracebacks import user_traceback

log = logging.getLogger("windlass.worker")


class OutcomeLog:
    """The log of one runner's jobs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.includes_completed = settings.log_jobs or log.isEnabledFor(logging.DEBUG)

    def add(self, outcome: Outcome, one: Attempt | None = None) -> None:
        """Log an outcome, and the attempt that it ended, if there was one."""
        if isinstance(outcome, Completed) and not self.includes_completed:
            return
        lease = outcome.lease
        level, text = _describe(outcome)
        error = _take_error(outcome, one)
        if isinstance(outcome, Completed) and one is not None:
            text = f"done in {monotonic() - one.began:.2f} s"
            level = logging.INFO if self._settings.log_jobs else level
        elif error is not None:
            text = text.partition("\n")[0]  # the rest of the message is the traceback
        title = one.plan.title if one else in_one_line(f"{lease.queue}/{lease.id}")
        fields = _fields(outcome, one)
        if self._settings.log_arguments:
            fields["data"] = lease.data.decode("utf-8", "backslashreplace")
            title += f" {fields['data']}"
        log.log(level, "%s: %s", title, text, exc_info=error, extra=fields)


ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def _take_error(outcome: Outcome, one: Attempt | None) -> ExcInfo | None:
    """Take the error that made an attempt fail: its frames refer to the attempt, and would keep it alive."""
    error: BaseException | None = getattr(one.job, "raised", None) if one is not None else None
    if one is None or error is None:
        return None
    one.job.raised = None
    return (type(error), error, user_traceback(error)) if isinstance(outcome, Retried | Failed) else None


def _fields(outcome: Outcome, one: Attempt | None) -> dict[str, object]:
    """What a log record tells of a job, beside its text."""
    lease = outcome.lease
    fields: dict[str, object] = {
        "job_id": lease.id,
        "task": one.plan.task if one is not None else None,
        "queue": lease.queue,
        "attempt": lease.attempt,
        "outcome": name_of(outcome),
    }
    if one is not None and one.plan.failed_id:
        fields["failed_id"] = one.plan.failed_id
    return fields


def log_turn(queue: str, sent: list[Outcome], turn: Turn) -> None:
    """Log what the server dropped, and the outcomes that it refused."""
    if turn.dropped:
        log.warning("Queue %s has more than max_dead dead jobs; dropped the %d oldest", queue, turn.dropped)
    for id in turn.expired:
        log.warning("%s: expired before it could start; it was dropped", in_one_line(f"{queue}/{id}"))
    if all(turn.settled):
        return
    for outcome, is_settled in zip(sent, turn.settled, strict=True):
        if not is_settled:
            title = in_one_line(f"{outcome.lease.queue}/{outcome.lease.id}")
            log.warning("%s: lease lost; its outcome is ignored", title)


def _describe(outcome: Outcome) -> tuple[int, str]:
    """Return the log level and the text for an outcome."""
    match outcome:
        case Retried(message=message):
            return logging.WARNING, f"failed (attempt {outcome.lease.attempt}), will be retried: {message}"
        case Snoozed(message=message):
            return logging.INFO, f"snoozed: {message}" if message else "snoozed"
        case Failed(message=message):
            return logging.ERROR, f"failed for good: {message}"
        case Crashed(message=message):
            return logging.ERROR, f"crashed: {message.partition(chr(10))[0]}"
        case Broken(message=message):
            return logging.ERROR, f"cannot be decoded: {message}"
        case UnknownTask(task=task):
            return logging.WARNING, f"this worker has no task {task!r}; left for a worker that has it"
        case Released():
            return logging.INFO, "released"
        case NoFailureHandler():
            return logging.DEBUG, "has no failure handler; moved to dead"
        case Completed():
            return logging.DEBUG, "done"
