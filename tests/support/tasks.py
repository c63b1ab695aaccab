"""Support for tests of tasks: a job, access to a call's payload, and awkward functions and types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from windlass import Job, Lease, Task, TaskCall
from windlass.tasks.envelope import read_envelope

A_JOB = Job(Lease("emails", "a", b"{}", fence=7, priority=2, failures=1, stalls=2), "welcome")


def payload(data: bytes) -> Any:
    return json.loads(data)


def args_of(call: TaskCall) -> Any:
    return payload(call.data)["args"]


def round_trip(task: Task[..., Any, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments that the function will receive."""
    return task.decode(read_envelope(task.call(*args, **kwargs).data).args).arguments


def named(value: object) -> str:
    """A name of a value for test ids, equal in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", getattr(value, "__name__", str(value)))


def starred(*names: str) -> None: ...


def slashed(a: int, /) -> None: ...


def yielding() -> Iterator[int]:
    yield 1


class Home:
    pass
