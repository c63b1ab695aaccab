"""The interface between the service and a layout: each message of the protocol is a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from windlass.stdio.messages import JobList, ListKind, WorkerList
from windlass.storage.port import Layout


class Assignment(Struct, frozen=True):
    """A job that was assigned to a worker."""

    worker: str
    uuid: str
    data: bytes
    priority: int
    dispatched_at: str


class Dispatcher(Protocol):
    """The queues of one layout, and their workers. `ago` is the age of a worker's message, in milliseconds."""

    def layout(self, queue: str) -> Layout:
        """The layout of a queue. Refuses an invalid queue name."""
        ...

    def waiter(self, queue: str) -> str:
        """The name under which the service waits for wake-ups."""
        ...

    async def add(self, queue: str, uuid: str, priority: int, payload: bytes) -> bool:
        """Enqueue a job. False if a job with this uuid exists."""
        ...

    async def idle(self, queue: str, worker: str, ago: int) -> bool:
        """A worker reports that it is idle. True if it may get a job."""
        ...

    async def dispatch(self, queue: str, workers: Sequence[str]) -> list[Assignment]:
        """Assign the next jobs to the idle workers among these."""
        ...

    async def accept(self, queue: str, worker: str, ago: int, uuid: str, started_at: str) -> bool:
        """A worker accepts its job. False if the job no longer belongs to it."""
        ...

    async def busy(self, queue: str, worker: str, ago: int, uuid: str | None, progress: float | None) -> bool:
        """A heartbeat of a busy worker. False if the job no longer belongs to it."""
        ...

    async def finish(self, queue: str, worker: str, ago: int, uuid: str, finished_at: str, payload: bytes) -> bool:
        """A worker has finished its job. False if the job no longer belongs to it."""
        ...

    async def find_queues(self) -> list[str]:
        """Queues that may have lost jobs or workers, though no message of this service names them."""
        ...

    async def tick(self, queue: str) -> int:
        """Queue lost jobs again. Returns their number."""
        ...

    async def list_entries(self, queue: str, kind: ListKind) -> JobList | WorkerList:
        """List jobs or workers of a queue."""
        ...

    async def forget(self, queue: str, worker: str) -> None:
        """Forget a worker that is silent, or when the service ends.

        A worker stays known if it holds a job, or if it uses another service now.
        """
        ...
