"""`TaskCall`: a task call that is ready to be sent."""

from __future__ import annotations

from typing import Any

from windlass.values.options import JobOptions
from windlass.values.redacted import Redacted


class TaskCall(Redacted, frozen=True, gc=False):
    """A task call that is ready to be sent, from `task.call(…)`: for `enqueue_many`, a schedule or `job.enqueue`."""

    task: str
    queue: str
    data: bytes
    options: JobOptions
    returns: Any = Any  # the type of its result
    keeps: bool | None = None  # whether its result is kept; None if unknown
