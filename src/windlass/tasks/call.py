"""A call of a task that is ready to be sent."""

from __future__ import annotations

from windlass.values.options import JobOptions
from windlass.values.redacted import Redacted


class TaskCall(Redacted, frozen=True, gc=False):
    """A call of a task that is ready to be sent, alone or with many others."""

    task: str
    queue: str
    data: bytes
    options: JobOptions
