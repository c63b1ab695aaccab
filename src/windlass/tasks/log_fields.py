"""Which job a log record belongs to."""

from __future__ import annotations

import logging
from contextvars import ContextVar

from windlass.tasks.context import Job

JOB_FIELDS = ("job_id", "task", "queue", "attempt")
_NO_JOB = (None,) * len(JOB_FIELDS)

running_job: ContextVar[Job | None] = ContextVar("windlass_job", default=None)


class JobLogFilter(logging.Filter):
    """Adds `job_id`, `task`, `queue` and `attempt` of the running job to log records: `handler.addFilter(…)`.

    Outside of a job they are `None`. A field that the record has already stays as it is. `windlass worker` adds this
    filter to every handler that exists when the app has been imported.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields. Lets every record pass."""
        job = running_job.get()
        values = _NO_JOB if job is None else (job.id, job.task, job.queue, job.attempt)
        for name, value in zip(JOB_FIELDS, values, strict=True):
            record.__dict__.setdefault(name, value)
        return True
