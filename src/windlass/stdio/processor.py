"""The protocol on queues of Processor Job Queue: each message is one call of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from windlass.app import Windlass
from windlass.errors import InvalidName
from windlass.stdio.dispatcher import Assignment
from windlass.stdio.messages import JobList, KnownWorker, ListKind, QueuedJob, RunningJob, WorkerList, iso
from windlass.storage.compat.processor import ANY_QUEUE, ProcessorLayout, unfinished_queue
from windlass.storage.port import Call
from windlass.values.ids import random_id
from windlass.values.job import Status

T = TypeVar("T")


class ProcessorDispatcher:
    """Queues in the layout of Processor Job Queue."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._name = random_id()

    def layout(self, queue: str) -> ProcessorLayout:
        return cast(ProcessorLayout, self._app.layout(queue, "processor"))

    def waiter(self, queue: str) -> str:
        return ""  # the layout wakes all waiters

    async def add(self, queue: str, uuid: str, priority: int, payload: bytes) -> bool:
        receipt = await self._app.queue(queue, layout="processor").aenqueue(payload, id=uuid, priority=priority)
        return receipt.status is Status.ADDED

    async def idle(self, queue: str, worker: str, ago: int) -> bool:
        return await self._perform(self.layout(queue).hail(worker, ago, busy=False, service=self._name))

    async def dispatch(self, queue: str, workers: Sequence[str]) -> list[Assignment]:
        found = await self._perform(self.layout(queue).dispatch(workers))
        return [Assignment(job.worker, job.id, job.json, job.priority, job.at) for job in found]

    async def accept(self, queue: str, worker: str, ago: int, uuid: str, started_at: str) -> bool:
        return await self._perform(self.layout(queue).accept(worker, ago, uuid, started_at, self._name))

    async def busy(self, queue: str, worker: str, ago: int, uuid: str | None, progress: float | None) -> bool:
        call = self.layout(queue).hail(worker, ago, busy=True, job=uuid, progress=progress, service=self._name)
        return await self._perform(call)

    async def finish(self, queue: str, worker: str, ago: int, uuid: str, finished_at: str, payload: bytes) -> bool:
        return await self._perform(self.layout(queue).finish(worker, ago, uuid, finished_at, payload, self._name))

    async def find_queues(self) -> list[str]:
        keys = await self._app._flows.arun(lambda session: session.scan(ANY_QUEUE))
        return sorted({name for key in keys if (name := unfinished_queue(key)) and self._is_valid(name)})

    def _is_valid(self, queue: str) -> bool:
        try:
            return bool(self.layout(queue))
        except InvalidName:
            return False

    async def tick(self, queue: str) -> int:
        return (await self._app.queue(queue, layout="processor").aclean()).recovered

    async def list_entries(self, queue: str, kind: ListKind) -> JobList | WorkerList:
        total, rows = await self._perform(self.layout(queue).look(kind))
        match kind:
            case "queued":
                return JobList(queue, total, [QueuedJob(_text(id), priority) for id, priority in rows])
            case "dispatched":
                dispatched = [RunningJob(_text(id), _text(who), dispatched_at=_time(at)) for id, who, at in rows]
                return JobList(queue, total, dispatched)
            case "processing":
                processing = [
                    RunningJob(_text(id), _text(who), last_seen=_time(at), progress=float(far))
                    for id, who, at, far in rows
                ]
                return JobList(queue, total, processing)
            case "workers":
                return WorkerList(queue, total, [KnownWorker(_text(w), _text(s), _time(at)) for w, s, at in rows])

    async def forget(self, queue: str, worker: str) -> None:
        await self._perform(self.layout(queue).forget(worker, self._name))

    async def _perform(self, call: Call[T]) -> T:
        return await self._app._flows.arun(lambda session: session.perform(call))


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _time(score: bytes) -> str:
    return iso(float(score) * 1000)
