"""`Queue`, the raw API of one queue: bytes in, leases out. Every blocking method `x` has an awaitable twin `ax`.

Each operation is written once, as a flow: a generator that yields I/O steps. The public methods run that flow,
blocking or awaited.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from inspect import iscoroutine
from time import monotonic
from typing import Any, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from msgspec import structs

from windlass.errors import AccessDenied, ForeignLease, InvalidOption, NotApplied, NotDurable, TooManyUndecodable
from windlass.storage.formats import MAX_ITEMS, MAX_REPLY_BYTES
from windlass.storage.port import Call, Capability, Enqueued, Layout, LeaseRequest, Turn
from windlass.transport.enqueue_batcher import EnqueueBatcher
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.io_steps import Flow, Sleep
from windlass.transport.listeners import Listener
from windlass.transport.pipelines import CommandPipeline, append
from windlass.transport.session import Session
from windlass.transport.subscription import FlowRunner
from windlass.values.audit import EXAMPLES, Audit, DamagedPart, Problem
from windlass.values.backoff import after_failure
from windlass.values.decode_guard import DecodeGuard
from windlass.values.durability import Durability
from windlass.values.durations import Duration, Moment, milliseconds, run_time
from windlass.values.ids import random_ids
from windlass.values.job import (
    Cleaned,
    Counts,
    JobRecord,
    Lease,
    NewJob,
    Page,
    Receipt,
    State,
    Status,
    TagCounts,
    write_json,
)
from windlass.values.options import JobOptions, RawJob, UpdateOptions, changed_job, check_tag, new_job
from windlass.values.outcome import Broken, Completed, Failed, Outcome, Released, Retried
from windlass.values.validation import (
    MAX_PAYLOAD,
    check_flag,
    check_id,
    check_name,
    check_payload,
    check_progress,
    check_whole,
    shortened,
)

T = TypeVar("T")
Shortfall = tuple[Durability, Durability]  # the level reached, and the level asked for

MAX_TAG_STEPS = 20  # of `tags`, each over about 1,000 jobs
LEASE_WAIT_POLL_S = 1.0  # a waiting lease tries again after this time, so a lost wake-up costs no more


class Queue:
    """One queue of raw jobs, from `app.queue(name)`.

    Every method raises `NotApplied` (`ServerUnreachable`, `ServerLoading`, …) if the operation did not happen, and
    `OutcomeUnknown` if its reply was lost.
    """

    def __init__(
        self,
        layout: Layout,
        flow_runner: FlowRunner,
        *,
        max_payload: int = MAX_PAYLOAD,
        durability: Durability | None = None,
    ) -> None:
        self._layout = layout
        self._flow_runner = flow_runner
        self._max_payload = max_payload
        self._durability = durability
        self._batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, EnqueueBatcher] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._layout.queue

    @property
    def layout(self) -> str:
        """The name of the queue's layout, such as "native"."""
        return self._layout.name

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} ({self.layout})>"

    # -- enqueue ---------------------------------------------------------------------------------

    def enqueue(self, data: bytes, **options: Unpack[JobOptions]) -> Receipt:
        """Put a job on the queue. When this returns, the server has the job.

        Options:
          id            the job's id; a random one. A waiting job of this id is updated. If one is running, the new job
                        waits until it ends: the receipt's status is `blocked`.
          delay, run_at when the job may run: "5m" from now, or a datetime with a time zone (or seconds since 1970).
          priority      0 (first) to 9 (last); 5.
          max_failures  how many failed attempts are retried, 10.
          max_stalls    how many lost leases and crashes are retried, 3.
          max_snoozes   how often the job may put itself off with `Snooze`, 1,000.
          min_backoff, max_backoff
                        the wait after the first failure, 2 s; it doubles up to 5 min. After a crash it is shorter.
          tags          up to 10 short strings to find the job by: see `jobs`.
          expires       drop the job if its first attempt has not started by then: a time with a zone (datetime), or a
                        duration ("10m"), counted from the run time. An expired job that still waits does not count as
                        an existing job.
          if_exists     "keep" leaves an existing job of this id as it is; "update" is the default.
          update_data, update_priority, update_max_failures, update_max_stalls, update_min_backoff, update_max_backoff
                        False keeps this part of an existing job.
          update_run_at False, or "later" or "earlier" to change the run time only in that direction.
          reset_counts  set the failures, stalls and snoozes of an existing job to 0; by default if its data is updated.
          durability    the level that the job must reach before this returns: "memory", "everysec", "fsync" or
                        "replicated(2)"; the queue's. The receipt states the level reached.

        Raises `InvalidInput` if an argument cannot be used, `NotDurable` if the job is on the queue but did not reach
        the level, `QueueFull`, and `UnsupportedByLayout`.
        """
        return self._flow_runner.run(self._enqueue([self.new_job(data, options)]))[0]

    async def aenqueue(self, data: bytes, **options: Unpack[JobOptions]) -> Receipt:
        """Awaitable `enqueue`. Concurrent calls share one request to the server."""
        job = self.new_job(data, options)
        self._layout.check(job)  # now, so that an invalid job does not fail the others of its batch
        loop = asyncio.get_running_loop()
        batcher = self._batchers.get(loop)
        if batcher is None:
            batcher = self._batchers[loop] = EnqueueBatcher(self._send_awaited, _batches)
        return await batcher.enqueue(job)

    def enqueue_json(self, value: Any, **options: Unpack[JobOptions]) -> Receipt:
        """Enqueue a value as JSON. Options as for `enqueue`; `lease.json()` reads the value."""
        return self.enqueue(write_json(value), **options)

    async def aenqueue_json(self, value: Any, **options: Unpack[JobOptions]) -> Receipt:
        """Awaitable `enqueue_json`."""
        return await self.aenqueue(write_json(value), **options)

    def enqueue_many(self, jobs: Iterable[bytes | RawJob]) -> list[Receipt]:
        """Enqueue many jobs: payloads, or `RawJob(data, **options)`. Returns receipts in the same order.

        Each 1,000 jobs take one atomic step and one round trip; fewer if they are large or an id occurs twice. If a
        step fails, earlier steps stay.
        """
        return self._flow_runner.run(self._enqueue(self._new_jobs(jobs)))

    async def aenqueue_many(self, jobs: Iterable[bytes | RawJob]) -> list[Receipt]:
        """Awaitable `enqueue_many`."""
        return await self._flow_runner.arun(self._enqueue(self._new_jobs(jobs)))

    def _enqueue(self, jobs: list[NewJob]) -> Callable[[Session], Flow[list[Receipt]]]:
        batches = list(_batches(jobs))
        if len(batches) == 1:
            return lambda session: self._send(session, batches[0])
        return lambda session: self._send_one_by_one(session, batches)

    def _send(self, session: Session, batch: list[NewJob]) -> Flow[list[Receipt]]:
        receipts, short = yield from self._deliver(session, batch, self._layout.enqueue(batch))
        if short:
            raise self._not_durable(short, receipts)
        return receipts

    def _send_awaited(self, batch: list[NewJob]) -> Awaitable[list[Receipt]]:
        return self._flow_runner.arun(lambda session: self._send(session, batch))

    def _send_one_by_one(self, session: Session, all_batches: list[list[NewJob]]) -> Flow[list[Receipt]]:
        """Send one call for each batch."""
        receipts: list[Receipt] = []
        shortest: Shortfall | None = None
        batches = iter(all_batches)
        ready: deque[tuple[list[NewJob], Call[Enqueued]] | Exception] = deque()

        def prepare() -> None:
            """Build the next call while the server works on this one. A retry does not build it again."""
            try:
                if not ready and (batch := next(batches, None)):
                    ready.append((batch, structs.replace(self._layout.enqueue(batch), meanwhile=prepare)))
            except Exception as error:  # raised later: the reply to the current batch comes first
                ready.append(error)

        prepare()
        while ready:
            following = ready.popleft()
            if isinstance(following, Exception):
                raise following
            sent, short = yield from self._deliver(session, *following)
            prepare()
            receipts += sent
            shortest = min(shortest, short) if shortest and short else shortest or short
        if shortest:  # raised last: jobs with a lower level must be sent all the same
            raise self._not_durable(shortest, receipts)
        return receipts

    def _deliver(
        self, session: Session, batch: list[NewJob], call: Call[Enqueued]
    ) -> Flow[tuple[list[Receipt], Shortfall | None]]:
        """Send one batch. Returns its receipts, and the shortfall if it did not reach its durability level."""
        level = self._level(batch)
        (statuses, sighting), safe = yield from session.perform_durably(call, level)
        names, durability = map(self._layout.id_of, batch), str(safe)
        receipts = [Receipt(id, cast(Status, s), durability, sighting) for id, s in zip(names, statuses, strict=True)]
        return receipts, (safe, level) if level is not None and safe < level else None

    def _not_durable(self, short: Shortfall, receipts: list[Receipt]) -> NotDurable:
        safe, level = short
        return NotDurable(self.name, str(level), str(safe), receipts)

    def _level(self, batch: list[NewJob]) -> Durability | None:
        """The highest level asked for in a batch. It covers the jobs with a lower one too."""
        return max([level for job in batch if (level := job.durability or self._durability)], default=None)

    def _new_jobs(self, jobs: Iterable[bytes | RawJob]) -> list[NewJob]:
        given = list(jobs)
        return [
            self.new_job(job.data, job.options)
            if isinstance(job, RawJob)
            else NewJob(spare, check_payload(job, self._max_payload), fresh=True)
            for job, spare in zip(given, random_ids(len(given)), strict=True)
        ]

    def new_job(self, data: bytes, options: JobOptions) -> NewJob:
        """Check data and options and return a job with an id, without sending it."""
        return new_job(data, options, self._max_payload)

    def enqueue_in(self, pipeline: CommandPipeline, data: bytes, *, id: str | None = None) -> str | None:
        """Add a job with the commands of your own redis-py pipeline, blocking or asyncio. You execute it.

        In a transaction, the job is added together with your own writes, or not at all. Nobody looks whether a job of
        this id exists. Only for the layouts native and workqueue. Returns the id; None on native queues, which choose
        one later and take none. An idle worker finds the job within a second.
        """
        job = self.new_job(data, {} if id is None else {"id": id})
        if id is not None and self.layout == "native":
            raise InvalidOption(
                f"enqueue_in: native queue {self.name!r} gives the job its id when a worker first sees it. "
                "Leave out id, or use enqueue"
            )
        append(pipeline, self._layout.push(job))
        return None if self.layout == "native" else job.id

    def update(self, id: str, **changes: Unpack[UpdateOptions]) -> bool:
        """Change a waiting job (ready, scheduled or blocked). False if there is none with this id, or it has expired.

        Changes: `data`, `priority`, `run_at` or `delay`, `max_failures`, `max_stalls`, `max_snoozes`, `min_backoff`,
        `max_backoff`, `tags` (an empty list removes them), `expires` (None removes it), `reset_counts`. With
        `when="later"` or `"earlier"` the run time changes only in that direction. An expiry that was given as a
        duration moves with it.
        """
        return self._flow_runner.run(self._update(id, changes))

    async def aupdate(self, id: str, **changes: Unpack[UpdateOptions]) -> bool:
        """Awaitable `update`."""
        return await self._flow_runner.arun(self._update(id, changes))

    def _update(self, id: str, changes: UpdateOptions) -> Callable[[Session], Flow[bool]]:
        job = changed_job(id, changes, self._max_payload)

        def flow(session: Session) -> Flow[bool]:
            ((status,), _) = yield from session.perform(self._layout.enqueue([job]))
            return status is not None

        return flow

    # -- lease -----------------------------------------------------------------------------------

    def lease(self, seconds: Duration = 30, wait: Duration = 0, *, holder: str | None = None) -> Lease | None:
        """Lease the next job for `seconds`. Blocks up to `wait` seconds for one to arrive.

        Returns `None` if there is no job. After `seconds` the lease ends and the job goes to another worker: call
        `extend` before that. With `holder` the lease lasts as long as that holder calls `beat`. Raises
        `TooManyUndecodable` if this program lacks the keys for the queue's payloads.
        """
        leases = self.lease_many(1, seconds, wait, holder=holder)
        return leases[0] if leases else None

    async def alease(self, seconds: Duration = 30, wait: Duration = 0, *, holder: str | None = None) -> Lease | None:
        """Awaitable `lease`."""
        leases = await self.alease_many(1, seconds, wait, holder=holder)
        return leases[0] if leases else None

    def lease_many(
        self, n: int, seconds: Duration = 30, wait: Duration = 0, *, holder: str | None = None
    ) -> list[Lease]:
        """Lease up to `n` jobs in one atomic step. Blocks up to `wait` seconds for the first one to arrive.

        With `holder` all these leases last as long as that holder calls `beat`; without it each ends after `seconds`
        unless `extend` renews it.
        """
        return self._flow_runner.run(self._lease(n, seconds, wait, holder))

    async def alease_many(
        self, n: int, seconds: Duration = 30, wait: Duration = 0, *, holder: str | None = None
    ) -> list[Lease]:
        """Awaitable `lease_many`."""
        return await self._flow_runner.arun(self._lease(n, seconds, wait, holder))

    def _lease(
        self, n: int, seconds: Duration, wait: Duration, holder: str | None
    ) -> Callable[[Session], Flow[list[Lease]]]:
        check_whole(n, "n", 1, MAX_ITEMS)
        length = _lease_seconds(seconds)
        wait_s = milliseconds(wait, "wait") / 1000
        if holder is not None:
            check_name(holder, "holder")
        request = LeaseRequest(want=n, seconds=length, holder=holder)

        def flow(session: Session) -> Flow[list[Lease]]:
            deadline = monotonic() + wait_s
            found = yield from self._try_lease(session, request)
            if found.leases or not wait_s:
                return list(found.leases)
            return (yield from self._wait_for_lease(session, request, deadline))

        return flow

    def _try_lease(self, session: Session, request: LeaseRequest) -> Flow[Turn]:
        """Lease once. Returns only jobs whose payload could be opened; the others become broken.

        If many in a row do not fit, this program may have the wrong keys: the rest is released for other programs.
        """
        found = yield from session.perform(self._layout.turn((), request))
        while found.more and not (found.leases or found.undecodable):
            found = yield from session.perform(self._layout.turn((), request))
        guard = DecodeGuard()
        while found.undecodable and not found.leases:
            if found.broken_over_limit:
                guard.record_broken_limit()
            settled = [
                guard.record_undecodable(each) if isinstance(each, Broken) else each for each in found.undecodable
            ]
            if guard.suspended or guard.suspend_if_too_many():
                yield from session.perform(self._layout.turn(settled))
                raise TooManyUndecodable(
                    f"queue {self.name!r}: {guard.reason}. The other jobs were released. Check this program's keys, "
                    "then revive or purge the broken jobs"
                )
            found = yield from session.perform(self._layout.turn(settled, request))
        if found.undecodable:
            sound = found.leases
            # If the caller stops waiting, the sound jobs must be released too.
            settle = structs.replace(
                self._layout.turn(found.undecodable),
                undo=lambda _: self._layout.turn([Released(lease) for lease in sound]),
            )
            try:
                yield from session.perform(settle)
            except NotApplied:
                pass  # their leases end, and the next lease refuses them again
        return found

    def _wait_for_lease(self, session: Session, request: LeaseRequest, deadline: float) -> Flow[list[Lease]]:
        """Try, register as idle, and sleep until a wake-up, or until the next job is due. Repeat until the deadline."""
        keys = self._layout.turn((), request).keys
        listener: Listener | None = None
        try:
            while True:
                if listener is None:
                    listener = yield from self._listen(session, keys)
                request = structs.replace(request, waiter=listener.name if listener else None)
                found = yield from self._try_lease(session, request)
                left = deadline - monotonic()
                if found.leases or left <= 0:
                    break
                pause = min(left, LEASE_WAIT_POLL_S, math.inf if found.next_work_in is None else found.next_work_in)
                if listener is None:
                    yield Sleep(pause)
                    continue
                try:
                    yield from session.next_message(listener, pause)
                except WireLost:
                    listener.wire.abort()
                    listener = None
            if listener is not None:
                if not found.leases:
                    yield from session.perform(self._layout.unregister_waiter(listener.name))
                session.keep_listener(listener)
                listener = None
            return list(found.leases)
        finally:
            if listener is not None:  # interrupted: once its connection is closed, the server wakes another waiter
                listener.wire.abort()

    def _listen(self, session: Session, keys: tuple[str, ...]) -> Flow[Listener | None]:
        """A listener, or `None` while the server cannot be reached: then polling must do."""
        try:
            return (yield from session.listen(keys, self._layout.wake_channel, self._layout.peek))
        except AccessDenied:
            raise  # polling would hide the missing permission
        except (ConnectFailed, WireLost, NotApplied):
            return None

    # -- settle ----------------------------------------------------------------------------------

    def complete(self, lease: Lease) -> bool:
        """Complete a job: it leaves the queue. True exactly once for a job; False if the lease was lost."""
        return self._flow_runner.run(self._settle([Completed(lease)]))[0]

    async def acomplete(self, lease: Lease) -> bool:
        """Awaitable `complete`."""
        return (await self._flow_runner.arun(self._settle([Completed(lease)])))[0]

    def complete_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Complete many jobs in one step. Returns for each whether its lease was still valid."""
        return self._flow_runner.run(self._settle([Completed(lease) for lease in leases]))

    async def acomplete_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Awaitable `complete_many`."""
        return await self._flow_runner.arun(self._settle([Completed(lease) for lease in leases]))

    def release(self, lease: Lease) -> bool:
        """Put a job back at the front of the queue, without counting a failure. False if the lease was lost."""
        return self._flow_runner.run(self._settle([Released(lease)]))[0]

    async def arelease(self, lease: Lease) -> bool:
        """Awaitable `release`."""
        return (await self._flow_runner.arun(self._settle([Released(lease)])))[0]

    def retry(
        self, lease: Lease, *, delay: Duration | None = None, run_at: Moment | None = None, message: str = ""
    ) -> bool:
        """Record a failed attempt, and schedule the next one after the job's backoff, `delay`, or at `run_at`.

        At failure number `max_failures` + 1 the job becomes dead, with `message`. False if the lease was lost.
        """
        return self._flow_runner.run(self._settle([self._retried(lease, delay, run_at, message)]))[0]

    async def aretry(
        self, lease: Lease, *, delay: Duration | None = None, run_at: Moment | None = None, message: str = ""
    ) -> bool:
        """Awaitable `retry`."""
        return (await self._flow_runner.arun(self._settle([self._retried(lease, delay, run_at, message)])))[0]

    def fail(self, lease: Lease, message: str = "") -> bool:
        """Fail a job for good: it becomes dead, with `message`. False if the lease was lost."""
        return self._flow_runner.run(self._settle([Failed(lease, _message(message))]))[0]

    async def afail(self, lease: Lease, message: str = "") -> bool:
        """Awaitable `fail`."""
        return (await self._flow_runner.arun(self._settle([Failed(lease, _message(message))])))[0]

    def _settle(self, outcomes: Sequence[Outcome]) -> Callable[[Session], Flow[list[bool]]]:
        for outcome in outcomes:
            self._check_lease(outcome.lease)

        def flow(session: Session) -> Flow[list[bool]]:
            settled: list[bool] = []
            for start in range(0, len(outcomes), MAX_ITEMS):
                batch = outcomes[start : start + MAX_ITEMS]
                turn = yield from session.perform(self._layout.turn(batch))
                settled += turn.settled
            return settled

        return flow

    def _retried(self, lease: Lease, delay: Duration | None, run_at: Moment | None, message: str) -> Outcome:
        self._check_lease(lease)
        when = run_time(run_at, delay)
        if delay is None and run_at is None and Capability.RUN_TIME not in self._layout.can:
            return Retried(lease, None, _message(message))
        if when is None and (delay is not None or run_at is not None):
            when = ("in", 0)  # an explicit "at once" replaces the backoff
        return after_failure(lease, when, _message(message))

    def _check_lease(self, lease: Lease) -> None:
        if not isinstance(lease, Lease):
            remedy = "was an await forgotten?" if iscoroutine(lease) else "pass what lease() returned"
            raise ForeignLease(f"{lease!r} is not a lease: {remedy}")
        if lease.queue != self.name:
            raise ForeignLease(
                f"the lease on job {lease.id!r} belongs to queue {lease.queue!r}, not to {self.name!r}: settle it there"
            )

    # -- while a job runs ------------------------------------------------------------------------

    def extend(self, lease: Lease, seconds: Duration) -> bool:
        """Renew a lease for `seconds` from now. False if the lease was lost or the job cancelled: stop the job."""
        return self._flow_runner.run(self._extend(lease, seconds))

    async def aextend(self, lease: Lease, seconds: Duration) -> bool:
        """Awaitable `extend`."""
        return await self._flow_runner.arun(self._extend(lease, seconds))

    def _extend(self, lease: Lease, seconds: Duration) -> Callable[[Session], Flow[bool]]:
        self._check_lease(lease)
        call = self._layout.extend([lease], _lease_seconds(seconds))

        def flow(session: Session) -> Flow[bool]:
            (kept,) = yield from session.perform(call)
            return kept

        return flow

    def progress(self, lease: Lease, value: float) -> bool:
        """Record a job's progress, from 0 to 1. False if the lease was lost or the job cancelled: stop the job."""
        return self._flow_runner.run(self._progress(lease, value))

    async def aprogress(self, lease: Lease, value: float) -> bool:
        """Awaitable `progress`."""
        return await self._flow_runner.arun(self._progress(lease, value))

    def _progress(self, lease: Lease, value: float) -> Callable[[Session], Flow[bool]]:
        self._check_lease(lease)
        check_progress(value)
        return self._call(lambda: self._layout.progress(lease, float(value)))

    def beat(self, holder: str, seconds: Duration = 15, *, register: bool = False) -> bool:
        """Renew all leases of a holder for `seconds` from now.

        False if the server does not know the holder: its leases are lost. `register` adds the holder if it is new.
        """
        return self._flow_runner.run(self._beat(holder, seconds, register))

    async def abeat(self, holder: str, seconds: Duration = 15, *, register: bool = False) -> bool:
        """Awaitable `beat`."""
        return await self._flow_runner.arun(self._beat(holder, seconds, register))

    def _beat(self, holder: str, seconds: Duration, register: bool) -> Callable[[Session], Flow[bool]]:
        check_name(holder, "holder")
        length = _lease_seconds(seconds)
        register = check_flag(register, "register")

        def flow(session: Session) -> Flow[bool]:
            return (yield from session.perform(self._layout.beat(holder, length, register=register))).known

        return flow

    # -- control ---------------------------------------------------------------------------------

    def cancel(self, id: str, *, running: bool = False) -> bool:
        """Cancel a waiting job. True if there was one.

        With `running` a running job is cancelled too: its next `extend` or `progress` returns False, and the job is
        removed when its attempt ends, whatever the outcome.
        """
        return self._flow_runner.run(self._cancel(id, running))

    async def acancel(self, id: str, *, running: bool = False) -> bool:
        """Awaitable `cancel`."""
        return await self._flow_runner.arun(self._cancel(id, running))

    def _cancel(self, id: str, running: bool) -> Callable[[Session], Flow[bool]]:
        call = self._layout.cancel([check_id(id)], running=check_flag(running, "running"))

        def flow(session: Session) -> Flow[bool]:
            (found,) = yield from session.perform(call)
            return found

        return flow

    def revive(self, ids: str | Iterable[str]) -> list[bool]:
        """Put dead or broken jobs back on the queue, with all counts at 0. Returns for each id whether it was found."""
        return self._flow_runner.run(self._revive(ids))

    async def arevive(self, ids: str | Iterable[str]) -> list[bool]:
        """Awaitable `revive`."""
        return await self._flow_runner.arun(self._revive(ids))

    def _revive(self, ids: str | Iterable[str]) -> Callable[[Session], Flow[list[bool]]]:
        chosen = [check_id(id) for id in ([ids] if isinstance(ids, str) else ids)]

        def flow(session: Session) -> Flow[list[bool]]:
            back: list[bool] = []
            for start in range(0, len(chosen), MAX_ITEMS):
                back += yield from session.perform(self._layout.revive(chosen[start : start + MAX_ITEMS]))
            return back

        return flow

    def pause(self) -> bool:
        """Pause the queue: workers lease no more jobs from it. False if it was paused already."""
        return self._flow_runner.run(self._call(lambda: self._layout.pause(True)))

    async def apause(self) -> bool:
        """Awaitable `pause`."""
        return await self._flow_runner.arun(self._call(lambda: self._layout.pause(True)))

    def resume(self) -> bool:
        """Resume a paused queue. False if it was not paused."""
        return self._flow_runner.run(self._call(lambda: self._layout.pause(False)))

    async def aresume(self) -> bool:
        """Awaitable `resume`."""
        return await self._flow_runner.arun(self._call(lambda: self._layout.pause(False)))

    def purge(self, state: State | str | None = None) -> int:
        """Delete the jobs of one state, or the whole queue, and return how many.

        Without `state` it also deletes running jobs and ends a pause; schedules stay. Running jobs cannot be purged
        alone: use `cancel`.
        """
        return self._flow_runner.run(self._purge(state))

    async def apurge(self, state: State | str | None = None) -> int:
        """Awaitable `purge`."""
        return await self._flow_runner.arun(self._purge(state))

    def _purge(self, state: State | str | None) -> Callable[[Session], Flow[int]]:
        chosen = None if state is None else _state(state)
        if chosen is State.RUNNING:
            raise InvalidOption("running jobs cannot be purged alone: cancel them, or purge the whole queue")

        def flow(session: Session) -> Flow[int]:
            deleted = 0
            while True:
                gone, left = yield from session.perform(self._layout.purge(chosen))
                deleted += gone
                if not left or not gone:
                    return deleted

        return flow

    def clean(self) -> Cleaned:
        """Put the jobs of lost holders back on the queue.

        Workers do this by themselves, so a healthy queue does not need it. Safe while workers run. To check and repair
        every index as well, call `audit(repair=True)`.
        """
        return self._flow_runner.run(self._clean())

    async def aclean(self) -> Cleaned:
        """Awaitable `clean`."""
        return await self._flow_runner.arun(self._clean())

    def _clean(self) -> Callable[[Session], Flow[Cleaned]]:
        def flow(session: Session) -> Flow[Cleaned]:
            return Cleaned((yield from self._recover(session)))

        return flow

    def _recover(self, session: Session) -> Flow[int]:
        """Put the jobs of lost holders back on the queue, and return how many."""
        recovered = 0
        while True:
            turn = yield from session.perform(self._layout.turn())
            recovered += turn.swept
            if not (turn.swept or turn.more):
                return recovered

    def audit(self, *, repair: bool = False) -> Audit:
        """Compare every index with every job, and report the problems. Without `repair` it writes nothing.

        With `repair` it also repairs the queue, drops expired entries, and puts the jobs of lost holders back. Each
        step is atomic, so it is safe while workers run.
        """
        return self._flow_runner.run(self._audit(repair))

    async def aaudit(self, *, repair: bool = False) -> Audit:
        """Awaitable `audit`."""
        return await self._flow_runner.arun(self._audit(repair))

    def _audit(self, repair: bool) -> Callable[[Session], Flow[Audit]]:
        check_flag(repair, "repair")

        def flow(session: Session) -> Flow[Audit]:
            jobs = 0
            damaged: list[DamagedPart] = []
            for part in (*self._layout.audit_parts, *(self._layout.leftover_parts if repair else ())):
                checked, found = yield from self._compare(session, part, repair=repair)
                jobs += checked
                if found.problems:
                    damaged.append(found)
            recovered = (yield from self._recover(session)) if repair else 0
            return Audit(self.name, self.layout, jobs, tuple(damaged), recovered)

        return flow

    def _compare(self, session: Session, part: str, *, repair: bool) -> Flow[tuple[int, DamagedPart]]:
        """Check one part of the queue. Returns how many jobs were checked, and the problems."""
        jobs = problems = repaired = 0
        examples: list[Problem] = []
        cursor: bytes | None = b"0"
        while cursor is not None:
            batch = yield from session.perform(self._layout.audit(part, cursor, repair=repair))
            cursor = batch.cursor
            jobs, problems, repaired = jobs + batch.jobs, problems + batch.problems, repaired + batch.repaired
            examples += [Problem(kind, id) for kind, id in batch.examples[: EXAMPLES - len(examples)]]
        return jobs, DamagedPart(part, problems, repaired, tuple(examples))

    # -- inspect ---------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """Count the jobs in each state."""
        return self._flow_runner.run(self._call(self._layout.counts))

    async def acounts(self) -> Counts:
        """Awaitable `counts`."""
        return await self._flow_runner.arun(self._call(self._layout.counts))

    def get(self, id: str) -> JobRecord | None:
        """Return the record of one job, or `None`. A waiting or running job comes before a dead one of the same id."""
        return self._flow_runner.run(self._get(id))

    async def aget(self, id: str) -> JobRecord | None:
        """Awaitable `get`."""
        return await self._flow_runner.arun(self._get(id))

    def _get(self, id: str) -> Callable[[Session], Flow[JobRecord | None]]:
        check_id(id)
        return self._call(lambda: self._layout.get(id))

    def jobs(self, state: State | str, *, tag: str | None = None, cursor: str | None = None, limit: int = 100) -> Page:
        """Return one page of the jobs in a state, in queue order. Pass `page.cursor` to get the next page.

        With a `tag`, only jobs that have it. Such a page searches the next 1,000 jobs: it may have no jobs and still a
        cursor. A scheduled job that has just become due is still listed under "scheduled", with `state` ready.
        """
        return self._flow_runner.run(self._jobs(state, tag, cursor, limit))

    async def ajobs(
        self, state: State | str, *, tag: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """Awaitable `jobs`."""
        return await self._flow_runner.arun(self._jobs(state, tag, cursor, limit))

    def _jobs(
        self, state: State | str, tag: str | None, cursor: str | None, limit: int
    ) -> Callable[[Session], Flow[Page]]:
        chosen = _state(state)
        check_whole(limit, "limit", 1, MAX_ITEMS)
        if tag is not None:
            check_tag(tag)
        return self._call(lambda: self._layout.page(chosen, cursor, limit, tag))

    def all_jobs(self, state: State | str, *, tag: str | None = None) -> Iterator[JobRecord]:
        """Iterate over all jobs in a state, page by page. With a `tag`, only over jobs that have it."""
        page = self.jobs(state, tag=tag)
        yield from page.jobs
        while page.cursor:
            page = self.jobs(state, tag=tag, cursor=page.cursor)
            yield from page.jobs

    async def aall_jobs(self, state: State | str, *, tag: str | None = None) -> AsyncIterator[JobRecord]:
        """`all_jobs` for `async for`."""
        page = await self.ajobs(state, tag=tag)
        while True:
            for job in page.jobs:
                yield job
            if not page.cursor:
                return
            page = await self.ajobs(state, tag=tag, cursor=page.cursor)

    def tags(self) -> TagCounts:
        """Count the waiting and running jobs of each tag. Searches at most about 20,000 jobs that have options."""
        return self._flow_runner.run(self._tags)

    async def atags(self) -> TagCounts:
        """Awaitable `tags`."""
        return await self._flow_runner.arun(self._tags)

    def _tags(self, session: Session) -> Flow[TagCounts]:
        found: Counter[str] = Counter()
        cursor = b"0"
        for _ in range(MAX_TAG_STEPS):
            cursor, jobs = yield from session.perform(self._layout.tags(cursor))
            found.update(jobs)
            if cursor == b"0":
                break
        return TagCounts(dict(found.most_common()), cursor == b"0")

    @staticmethod
    def _call(make: Callable[[], Call[T]]) -> Callable[[Session], Flow[T]]:
        return lambda session: session.perform(make())


def _batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Split jobs into batches for one call each: limited in jobs and bytes, and with no id twice."""
    batch: list[NewJob] = []
    ids: set[str] = set()
    size = 0
    for job in jobs:
        if batch and (len(batch) == MAX_ITEMS or size + len(job.data) > MAX_REPLY_BYTES or job.id in ids):
            yield batch
            batch, ids, size = [], set(), 0
        batch.append(job)
        size += len(job.data)
        if not job.fresh:
            ids.add(job.id)
    if batch:
        yield batch


def _state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        raise InvalidOption(f"{state!r} is not a job state: use one of {', '.join(State)}") from None


def _lease_seconds(seconds: Duration) -> float:
    return milliseconds(seconds, "seconds", least=0.001, most=30 * 86400.0) / 1000


def _message(message: object) -> str:
    if not isinstance(message, str):
        raise InvalidOption(f"message must be text, not {type(message).__name__}")
    return shortened(message)
