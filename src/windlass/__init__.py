"""Windlass: a durable job queue on Redis or Valkey. Start with `Windlass()`."""

__version__ = "0.1.0"

from windlass.app import Windlass
from windlass.handle import JobHandle
from windlass.queue import Queue
from windlass.task import Handler, Task
from windlass.tasks.call import TaskCall
from windlass.tasks.context import Job
from windlass.tasks.control import Failure, Retry, Snooze
from windlass.tasks.log_fields import JobLogFilter
from windlass.tasks.signature import current
from windlass.values.audit import Audit
from windlass.values.events import Event, EventKind
from windlass.values.job import (
    Cleaned,
    Counts,
    Ending,
    JobRecord,
    Lease,
    Limits,
    Page,
    Receipt,
    State,
    Status,
    TagCounts,
)
from windlass.values.options import RawJob
from windlass.values.worker_record import WorkerRecord

__all__ = [
    "Audit",
    "Cleaned",
    "Counts",
    "Ending",
    "Event",
    "EventKind",
    "Failure",
    "Handler",
    "Job",
    "JobHandle",
    "JobLogFilter",
    "JobRecord",
    "Lease",
    "Limits",
    "Page",
    "Queue",
    "RawJob",
    "Receipt",
    "Retry",
    "Snooze",
    "State",
    "Status",
    "TagCounts",
    "Task",
    "TaskCall",
    "Windlass",
    "WorkerRecord",
    "__version__",
    "current",
]
