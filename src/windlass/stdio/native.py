"""The protocol on native queues: dispatching a job leases it to the worker.

The server knows which worker holds a job, so a worker may continue through another service. But the server does not
know which dispatched jobs are accepted: each service remembers its own, and releases a job that is not accepted in
time, which counts as no stall. If the service dies, the leases end, which counts as a stall.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic, time
from typing import TypeVar

from msgspec import Struct

from windlass.app import Windlass
from windlass.queue import Queue
from windlass.stdio.dispatcher import Assignment
from windlass.stdio.messages import JobList, KnownWorker, ListKind, QueuedJob, RunningJob, WorkerList, iso
from windlass.storage.compat.processor import LOST_AFTER_S, TICK_S
from windlass.storage.port import Call, Layout, LeaseRequest
from windlass.values.decode_guard import DecodeGuard
from windlass.values.ids import random_id
from windlass.values.job import JobRecord, Lease, State, Status
from windlass.values.outcome import Broken, NoFailureHandler, Outcome
from windlass.worker.reclaim import all_held

log = logging.getLogger("windlass.stdio")
T = TypeVar("T")
_MAX_LISTED = 1000


class _Pending(Struct, frozen=True):
    """A job that this service dispatched, and that is not accepted yet."""

    lease: Lease
    until: float


class NativeDispatcher:
    """Native queues. A worker must accept a job within `accept_timeout` seconds."""

    def __init__(self, app: Windlass, accept_timeout: float = LOST_AFTER_S) -> None:
        self._app = app
        self._accept_timeout = accept_timeout
        self._guards: dict[str, DecodeGuard] = {}
        self._waiters: dict[str, str] = {}
        self._pending: dict[tuple[str, str], _Pending] = {}  # by queue and uuid
        self._seen: dict[str, dict[str, float]] = {}  # by queue and worker, while it is idle

    def layout(self, queue: str) -> Layout:
        return self._app.layout(queue, "native")

    def waiter(self, queue: str) -> str:
        return self._waiters.setdefault(queue, random_id())

    async def add(self, queue: str, uuid: str, priority: int, payload: bytes) -> bool:
        receipt = await self._queue(queue).aenqueue(payload, id=uuid, priority=priority, if_exists="keep")
        return receipt.status is Status.ADDED

    async def idle(self, queue: str, worker: str, ago: int) -> bool:
        if await self._held(queue, worker):  # it must finish or lose its job first
            return False
        self._seen.setdefault(queue, {})[worker] = time() - ago / 1000
        return True

    async def dispatch(self, queue: str, workers: Sequence[str]) -> list[Assignment]:
        layout, found = self.layout(queue), []
        guard = self._guards.setdefault(queue, DecodeGuard())
        if guard.suspended:
            if monotonic() < guard.retry_at:
                return []
            guard.begin_trial()
            workers = workers[:1]
        for worker in workers:
            # One tick longer than needed: a lease that ends before the tick releases it would count as a stall.
            seconds = self._accept_timeout + TICK_S
            request = LeaseRequest(want=1, seconds=seconds, holder=worker, waiter=self.waiter(queue))
            turn = await self._perform(layout.turn((), request))
            if turn.undecodable:  # jobs with a wrong signature or encryption
                await self._settle_undecodable(layout, guard, turn.undecodable)
                if guard.suspended:
                    break
                continue
            if not turn.leases:
                break
            (lease,) = turn.leases
            if guard.record_decoded():
                log.warning("Queue %s resumed: a job could be decoded", queue)
            if lease.is_failure_job:  # only a worker in Python has failure handlers
                await self._perform(layout.turn([NoFailureHandler(lease)]))
                continue
            self._pending[queue, lease.id] = _Pending(lease, monotonic() + self._accept_timeout)
            self._seen.get(queue, {}).pop(worker, None)
            found.append(Assignment(worker, lease.id, lease.data, lease.priority, iso(time() * 1000)))
        return found

    async def _settle_undecodable(self, layout: Layout, guard: DecodeGuard, undecodable: Sequence[Outcome]) -> None:
        """Settle jobs that cannot be decoded. Too many in a row suspend the queue: this service may have wrong keys."""
        settled = [guard.record_undecodable(each) if isinstance(each, Broken) else each for each in undecodable]
        turn = await self._perform(layout.turn(settled))
        if guard.record_broken_limit() if turn.broken_over_limit else guard.suspend_if_too_many():
            log.error("Queue %s suspended: %s. %s", layout.queue, guard.reason, guard.remedy)

    async def accept(self, queue: str, worker: str, ago: int, uuid: str, started_at: str) -> bool:
        return await self.busy(queue, worker, ago, uuid, 0.0)

    async def busy(self, queue: str, worker: str, ago: int, uuid: str | None, progress: float | None) -> bool:
        self._seen.get(queue, {}).pop(worker, None)
        if uuid is None:
            held = await self._held(queue, worker)
        else:
            held = [job for job in [await self._find(queue, worker, uuid)] if job]
            if not held:
                return False
        kept = True
        for record in held:
            lease = _lease(record)
            self._pending.pop((queue, record.id), None)
            kept = await self._queue(queue).aextend(lease, LOST_AFTER_S) and kept
            if progress is not None and kept:
                kept = await self._queue(queue).aprogress(lease, progress)
        return kept

    async def finish(self, queue: str, worker: str, ago: int, uuid: str, finished_at: str, payload: bytes) -> bool:
        record = await self._find(queue, worker, uuid)
        if record is None:
            return False
        self._pending.pop((queue, uuid), None)
        return await self._queue(queue).acomplete(_lease(record))

    async def find_queues(self) -> list[str]:
        return []  # whoever next leases from a native queue takes its lost jobs back

    async def tick(self, queue: str) -> int:
        back = 0
        for key, pending in list(self._pending.items()):
            if key[0] == queue and pending.until <= monotonic():
                back += await self._release(key)
        return back + (await self._queue(queue).aclean()).recovered

    async def list_entries(self, queue: str, kind: ListKind) -> JobList | WorkerList:
        if kind == "queued":
            page = await self._queue(queue).ajobs(State.READY, limit=_MAX_LISTED)
            total = (await self._queue(queue).acounts()).ready
            return JobList(queue, total, [QueuedJob(job.id, job.priority) for job in page.jobs])
        leased = (await self._queue(queue).ajobs(State.RUNNING, limit=_MAX_LISTED)).jobs
        if kind == "workers":
            known = [KnownWorker(worker, "idle", iso(at * 1000)) for worker, at in self._seen.get(queue, {}).items()]
            known += [KnownWorker(worker, "busy") for worker in sorted({job.holder for job in leased if job.holder})]
            return WorkerList(queue, len(known), known[:_MAX_LISTED])
        # Accepting a job sets its progress to 0. Jobs of other workers may have no progress: they count as dispatched.
        chosen = [job for job in leased if (job.progress is None) == (kind == "dispatched")]
        return JobList(queue, len(chosen), [RunningJob(job.id, job.holder, progress=job.progress) for job in chosen])

    async def forget(self, queue: str, worker: str) -> None:
        self._seen.get(queue, {}).pop(worker, None)
        for key, pending in list(self._pending.items()):
            if key[0] == queue and pending.lease.holder == worker:  # no acceptance can come through this service now
                await self._release(key)
        await self._perform(self.layout(queue).unregister_holder(worker))

    async def _release(self, key: tuple[str, str]) -> bool:
        """Release a job that was not accepted here, unless it was accepted through another service."""
        queue, uuid = key
        lease = self._pending.pop(key).lease
        record = await self._queue(queue).aget(uuid)
        if record and record.fence == lease.fence and record.progress is not None:
            return False
        return await self._queue(queue).arelease(lease)

    async def _find(self, queue: str, worker: str, uuid: str) -> JobRecord | None:
        """The job, if this worker holds it."""
        record = await self._queue(queue).aget(uuid)
        return record if record and record.state is State.RUNNING and record.holder == worker else None

    async def _held(self, queue: str, worker: str) -> list[JobRecord]:
        layout = self.layout(queue)
        return await self._app._flows.arun(lambda session: all_held(session, layout, worker))

    def _queue(self, queue: str) -> Queue:
        return self._app.queue(queue, layout="native")

    async def _perform(self, call: Call[T]) -> T:
        return await self._app._flows.arun(lambda session: session.perform(call))


def _lease(record: JobRecord) -> Lease:
    assert record.fence is not None, "a leased job has a fence"
    return Lease(record.queue, record.id, record.data, record.fence, record.priority, holder=record.holder)
