"""What the service asks of a layout: the rows of its protocol as calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from windlass.stdio.messages import JobList, What, WorkerList
from windlass.storage.port import Layout


class Assignment(Struct, frozen=True):
    """A job for a worker."""

    worker: str
    uuid: str
    data: bytes
    priority: int
    dispatched_at: str


class Dispatcher(Protocol):
    """Queues of one layout, and workers that speak through messages. `ago`: how many ms ago they spoke."""

    def layout(self, queue: str) -> Layout:
        """The layout of a queue; refuses what can be no name of one."""
        ...

    def waiter(self, queue: str) -> str:
        """Under which name the service waits to be told of new jobs."""
        ...

    async def add(self, queue: str, uuid: str, priority: int, payload: bytes) -> bool:
        """Queue a job; false when there is one of this uuid."""
        ...

    async def idle(self, queue: str, worker: str, ago: int) -> bool:
        """A worker says that it is idle; whether it may be given a job."""
        ...

    async def dispatch(self, queue: str, workers: Sequence[str]) -> list[Assignment]:
        """Assign the next jobs to those of these workers that are idle."""
        ...

    async def accept(self, queue: str, worker: str, ago: int, uuid: str, started_at: str) -> bool:
        """A worker accepts its job; false when it is not its own any more."""
        ...

    async def busy(self, queue: str, worker: str, ago: int, uuid: str | None, progress: float | None) -> bool:
        """A worker's sign of life while it works; false when the job is not its own any more."""
        ...

    async def finish(self, queue: str, worker: str, ago: int, uuid: str, finished_at: str, payload: bytes) -> bool:
        """A worker is done with its job; false when it is not its own any more."""
        ...

    async def tick(self, queue: str) -> int:
        """Take back what is lost; how many jobs."""
        ...

    async def look(self, queue: str, what: What) -> JobList | WorkerList:
        """What there is."""
        ...

    async def forget(self, queue: str, worker: str) -> None:
        """A worker was not heard of for long, or the service ends: it is known no more, unless it holds a job.

        Nor if it goes on through another service.
        """
        ...
