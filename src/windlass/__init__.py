"""Windlass: a job queue on Redis or Valkey that does not let a job slip."""

__version__ = "0.1.0"

from windlass.app import Windlass
from windlass.audit import Audit
from windlass.fleet import WorkerRecord
from windlass.handle import Event, EventKind, JobHandle
from windlass.job import Cleaned, Counts, JobRecord, Lease, Limits, Page, Receipt, State, Status
from windlass.options import RawJob
from windlass.queue import Queue
from windlass.running import Job
from windlass.signature import current
from windlass.task import Handler, Task, TaskCall
from windlass.verdict import Failure, Retry

__all__ = [
    "Audit",
    "Cleaned",
    "Counts",
    "Event",
    "EventKind",
    "Failure",
    "Handler",
    "Job",
    "JobHandle",
    "JobRecord",
    "Lease",
    "Limits",
    "Page",
    "Queue",
    "RawJob",
    "Receipt",
    "Retry",
    "State",
    "Status",
    "Task",
    "TaskCall",
    "Windlass",
    "WorkerRecord",
    "__version__",
    "current",
]
