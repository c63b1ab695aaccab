"""Windlass: a job queue on Redis or Valkey that does not let a job slip."""

__version__ = "0.1.0"

from windlass.app import Windlass
from windlass.job import Cleaned, Counts, JobRecord, Lease, Limits, Page, Receipt, State, Status
from windlass.queue import Queue, RawJob

__all__ = [
    "Cleaned",
    "Counts",
    "JobRecord",
    "Lease",
    "Limits",
    "Page",
    "Queue",
    "RawJob",
    "Receipt",
    "State",
    "Status",
    "Windlass",
    "__version__",
]
