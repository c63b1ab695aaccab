"""A queue's raw face: bytes in, leases out. Every blocking verb `x` has an awaitable twin `ax`.

Each verb is written once, as a flow: a generator that asks its session for calls. The public method of a
verb runs that flow blocking or awaited.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from inspect import iscoroutine
from time import monotonic
from typing import Any, Protocol, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from msgspec import structs

from windlass.errors import AccessDenied, ForeignLease, InvalidOption, NotApplied, NotDurable, TooManyUndecodable
from windlass.storage.port import Call, Capability, Layout, Turn
from windlass.transport.enqueue_batcher import EnqueueBatcher
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.session import Listener, Session
from windlass.transport.wire import Flow, Sleep
from windlass.values.audit import EXAMPLES, Audit, Drift, Mismatch
from windlass.values.backoff import after_failure
from windlass.values.decode_guard import DecodeGuard
from windlass.values.durability import Durability
from windlass.values.durations import Duration, Moment, milliseconds, run_time
from windlass.values.ids import random_ids
from windlass.values.job import Cleaned, Counts, JobRecord, Lease, NewJob, Page, Receipt, State, Status, write_json
from windlass.values.options import JobOptions, RawJob, UpdateOptions, changed_job, new_job
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
Shortfall = tuple[Durability, Durability]  # how safe it is, and how safe it was to be

BATCH = 1000  # jobs in one call: keeps every script at a few milliseconds
BATCH_BYTES = 8 * 1024 * 1024
POLL_FLOOR = 1.0  # a lost announcement costs at most this many seconds


class FlowRunner(Protocol):
    """What a queue needs of its app: to have a flow run, blocking or awaited."""

    def run(self, flow: Callable[[Session], Flow[T]]) -> T: ...

    async def arun(self, flow: Callable[[Session], Flow[T]]) -> T: ...


class _MakesTurn(Protocol):
    """How a lease looks for jobs: for a waiter that is to be woken, and settling what it refused before."""

    def __call__(self, waiter: str | None = None, refused: Sequence[Outcome] = ()) -> Call[Turn]: ...


class Queue:
    """One queue of raw jobs."""

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
        """The queue's name."""
        return self._layout.queue

    @property
    def layout(self) -> str:
        """The name of its layout."""
        return self._layout.name

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} ({self.layout})>"

    # -- putting jobs on the queue ---------------------------------------------------------------

    def enqueue(self, data: bytes, **options: Unpack[JobOptions]) -> Receipt:
        """Put a job on the queue, or change the one that has this id. When it returns, the server has it.

        Options: `id`, `priority` (0 first, 9 last), `run_at` or `delay`, `max_failures`, `max_stalls`, `min_backoff`,
        `max_backoff`, `if_exists`, and for an id that is there already `update_data`, `update_run_at`,
        `update_priority`, `update_max_failures`, `update_max_stalls`, `update_min_backoff`, `update_max_backoff`,
        `reset_counts`, `durability`.

        A job of the same id that waits is updated (`update_…` say in what); while one runs, this one waits
        behind it, `blocked`. With `if_exists="keep"` whatever is there stays as it is.

        `durability` is how safe it must be when this returns: "memory", "everysec", "fsync", "replicated(2)"; by
        default what was said for the queue. The receipt states what was reached; if that is less, `NotDurable` comes.
        """
        return self._flow_runner.run(self._enqueue([self.new_job(data, options)]))[0]

    async def aenqueue(self, data: bytes, **options: Unpack[JobOptions]) -> Receipt:
        """Awaitable `enqueue`. Those that are awaited at the same time go to the server together."""
        job = self.new_job(data, options)
        self._layout.check(job)  # now, for what is wrong with this one is not to meet those that go with it
        loop = asyncio.get_running_loop()
        batcher = self._batchers.get(loop)
        if batcher is None:
            batcher = self._batchers[loop] = EnqueueBatcher(self._send_awaited, _batches)
        return await batcher.enqueue(job)

    def enqueue_json(self, value: Any, **options: Unpack[JobOptions]) -> Receipt:
        """`enqueue` with anything that JSON can say as the payload; `lease.json()` reads it."""
        return self.enqueue(write_json(value), **options)

    async def aenqueue_json(self, value: Any, **options: Unpack[JobOptions]) -> Receipt:
        """Awaitable `enqueue_json`."""
        return await self.aenqueue(write_json(value), **options)

    def enqueue_many(self, jobs: Iterable[bytes | RawJob]) -> list[Receipt]:
        """Put many jobs on the queue: payloads, or `RawJob(data, **options)`.

        One round trip, and one atomic step, for each 1,000 of them; for fewer if they are large or an id comes twice.
        """
        return self._flow_runner.run(self._enqueue(self._new_jobs(jobs)))

    async def aenqueue_many(self, jobs: Iterable[bytes | RawJob]) -> list[Receipt]:
        """Awaitable `enqueue_many`."""
        return await self._flow_runner.arun(self._enqueue(self._new_jobs(jobs)))

    def _enqueue(self, jobs: list[NewJob]) -> Callable[[Session], Flow[list[Receipt]]]:
        batches = list(_batches(jobs))
        if len(batches) == 1:
            return lambda session: self._send(session, batches[0])
        return lambda session: self._send_in_turn(session, batches)

    def _send(self, session: Session, batch: list[NewJob]) -> Flow[list[Receipt]]:
        receipts, short = yield from self._deliver(session, batch, self._layout.enqueue(batch))
        if short:
            raise self._not_durable(short, receipts)
        return receipts

    def _send_awaited(self, batch: list[NewJob]) -> Awaitable[list[Receipt]]:
        return self._flow_runner.arun(lambda session: self._send(session, batch))

    def _send_in_turn(self, session: Session, all_batches: list[list[NewJob]]) -> Flow[list[Receipt]]:
        """One call for each batch."""
        receipts: list[Receipt] = []
        shortest: Shortfall | None = None
        batches = iter(all_batches)
        ready: deque[tuple[list[NewJob], Call[list[Status | None]]] | Exception] = deque()

        def prepare() -> None:
            """The next batch, while the server is at work on this one. Done once, however often it is asked for."""
            try:
                if not ready and (batch := next(batches, None)):
                    ready.append((batch, structs.replace(self._layout.enqueue(batch), meanwhile=prepare)))
            except Exception as error:  # told when it is its turn: an answer is awaited now
                ready.append(error)

        prepare()
        while ready:
            following = ready.popleft()
            if isinstance(following, Exception):
                raise following
            told, short = yield from self._deliver(session, *following)
            prepare()
            receipts += told
            shortest = min(shortest, short) if shortest and short else shortest or short
        if shortest:  # all of them are sent first: what was not asked to be safer has a right to be there
            raise self._not_durable(shortest, receipts)
        return receipts

    def _deliver(
        self, session: Session, batch: list[NewJob], call: Call[list[Status | None]]
    ) -> Flow[tuple[list[Receipt], Shortfall | None]]:
        """Send one batch; what became of it, and whether it is less safe than was asked for."""
        level = self._level(batch)
        statuses, safe = yield from session.perform_durably(call, level)
        names, told = map(self._layout.id_of, batch), str(safe)
        receipts = [Receipt(id, cast(Status, s), told) for id, s in zip(names, statuses, strict=True)]
        return receipts, (safe, level) if level is not None and safe < level else None

    def _not_durable(self, short: Shortfall, receipts: list[Receipt]) -> NotDurable:
        safe, level = short
        return NotDurable(self.name, str(level), str(safe), receipts)

    def _level(self, batch: list[NewJob]) -> Durability | None:
        """The safest level that is asked for in a batch: the others lose nothing by it."""
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
        """A job that could be enqueued: everything about it is checked, and it has an id."""
        return new_job(data, options, self._max_payload)

    def update(self, id: str, **changes: Unpack[UpdateOptions]) -> bool:
        """Change a job that waits (or is blocked behind a running one); false when there is none.

        `when="later"` or `"earlier"` changes the run time only if the new one is that.
        """
        return self._flow_runner.run(self._update(id, changes))

    async def aupdate(self, id: str, **changes: Unpack[UpdateOptions]) -> bool:
        """Awaitable `update`."""
        return await self._flow_runner.arun(self._update(id, changes))

    def _update(self, id: str, changes: UpdateOptions) -> Callable[[Session], Flow[bool]]:
        job = changed_job(id, changes, self._max_payload)

        def flow(session: Session) -> Flow[bool]:
            (status,) = yield from session.perform(self._layout.enqueue([job]))
            return status is not None

        return flow

    # -- leasing ---------------------------------------------------------------------------------

    def lease(self, seconds: Duration = 30, wait: Duration = 0, *, holder: str | None = None) -> Lease | None:
        """Take the next job, for so many seconds. `wait` blocks until there is one, so long at most."""
        leases = self.lease_many(1, seconds, wait, holder=holder)
        return leases[0] if leases else None

    async def alease(self, seconds: Duration = 30, wait: Duration = 0, *, holder: str | None = None) -> Lease | None:
        """Awaitable `lease`."""
        leases = await self.alease_many(1, seconds, wait, holder=holder)
        return leases[0] if leases else None

    def lease_many(
        self, n: int, seconds: Duration = 30, wait: Duration = 0, *, holder: str | None = None
    ) -> list[Lease]:
        """Take up to `n` jobs in one step.

        With a `holder` the leases live as long as that holder beats (`beat`), however many they are; without
        one they end after `seconds` unless extended.
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
        check_whole(n, "n", 1, BATCH)
        length = _lease_seconds(seconds)
        patience = milliseconds(wait, "wait") / 1000
        if holder is not None:
            check_name(holder, "holder")

        def turn(waiter: str | None = None, refused: Sequence[Outcome] = ()) -> Call[Turn]:
            return self._layout.turn(refused, want=n, seconds=length, holder=holder, waiter=waiter)

        def flow(session: Session) -> Flow[list[Lease]]:
            deadline = monotonic() + patience
            found = yield from self._look(session, turn)
            if found.leases or not patience:
                return list(found.leases)
            return (yield from self._await_turn(session, turn, deadline))

        return flow

    def _look(self, session: Session, turn: _MakesTurn, waiter: str | None = None) -> Flow[Turn]:
        """One turn. What does not bear its seal is put among the broken and is not handed out, but what is sound is.

        Where many in a row do not, this program may have the wrong keys: the others are given back for other programs.
        """
        found = yield from session.perform(turn(waiter))
        guard = DecodeGuard()
        while found.refused and not found.leases:
            if found.returned:
                guard.no_room()
            settled = [guard.undecodable(each) if isinstance(each, Broken) else each for each in found.refused]
            if guard.suspended or guard.check_run():
                yield from session.perform(self._layout.turn(settled))
                raise TooManyUndecodable(
                    f"queue {self.name!r}: {guard.reason}. The other jobs were given back: check the keys of this "
                    "program, then revive or purge the broken jobs"
                )
            found = yield from session.perform(turn(waiter, settled))
        if found.refused:
            sound = found.leases
            # Should nobody wait for this any more, the sound ones must go back as well.
            settle = structs.replace(
                self._layout.turn(found.refused), undo=lambda _: self._layout.turn([Released(lease) for lease in sound])
            )
            try:
                yield from session.perform(settle)
            except NotApplied:
                pass  # they come back when their leases end, and are refused again
        return found

    def _await_turn(self, session: Session, turn: _MakesTurn, deadline: float) -> Flow[list[Lease]]:
        """Look, register as idle, sleep until woken or until something is due by itself; again until time is up."""
        keys = turn(None).keys
        listener: Listener | None = None
        try:
            while True:
                if listener is None:
                    listener = yield from self._listen(session, keys)
                found = yield from self._look(session, turn, listener.name if listener else None)
                left = deadline - monotonic()
                if found.leases or left <= 0:
                    break
                pause = min(left, POLL_FLOOR, math.inf if found.idle_for is None else found.idle_for)
                if listener is None:
                    yield Sleep(pause)
                    continue
                try:
                    yield from session.hear(listener, pause)
                except WireLost:
                    listener.wire.abort()
                    listener = None
            if listener is not None:
                if not found.leases:
                    yield from session.perform(self._layout.leave(listener.name))
                session.keep_listener(listener)
                listener = None
            return list(found.leases)
        finally:
            if listener is not None:  # interrupted: without its wire nobody counts on this waiter
                listener.wire.abort()

    def _listen(self, session: Session, keys: tuple[str, ...]) -> Flow[Listener | None]:
        """A listener; none while the server cannot be reached, then the poll floor has to do."""
        try:
            return (yield from session.listen(keys, self._layout.wake_channel, self._layout.peek))
        except AccessDenied:
            raise  # polling would hide that this user may not subscribe
        except (ConnectFailed, WireLost, NotApplied):
            return None

    # -- settling --------------------------------------------------------------------------------

    def complete(self, lease: Lease) -> bool:
        """The job is done and leaves the queue. True exactly once for a job; false if the lease was lost."""
        return self._flow_runner.run(self._settle([Completed(lease)]))[0]

    async def acomplete(self, lease: Lease) -> bool:
        """Awaitable `complete`."""
        return (await self._flow_runner.arun(self._settle([Completed(lease)])))[0]

    def complete_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Complete many jobs in one step."""
        return self._flow_runner.run(self._settle([Completed(lease) for lease in leases]))

    async def acomplete_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Awaitable `complete_many`."""
        return await self._flow_runner.arun(self._settle([Completed(lease) for lease in leases]))

    def release(self, lease: Lease) -> bool:
        """Give the job back, unharmed and uncharged: it is at the front again."""
        return self._flow_runner.run(self._settle([Released(lease)]))[0]

    async def arelease(self, lease: Lease) -> bool:
        """Awaitable `release`."""
        return (await self._flow_runner.arun(self._settle([Released(lease)])))[0]

    def retry(
        self, lease: Lease, *, delay: Duration | None = None, run_at: Moment | None = None, message: str = ""
    ) -> bool:
        """The attempt failed; try again, after the job's backoff or when told. After `max_failures` it is dead."""
        return self._flow_runner.run(self._settle([self._retried(lease, delay, run_at, message)]))[0]

    async def aretry(
        self, lease: Lease, *, delay: Duration | None = None, run_at: Moment | None = None, message: str = ""
    ) -> bool:
        """Awaitable `retry`."""
        return (await self._flow_runner.arun(self._settle([self._retried(lease, delay, run_at, message)])))[0]

    def fail(self, lease: Lease, message: str = "") -> bool:
        """The job failed for good; it is kept among the dead."""
        return self._flow_runner.run(self._settle([Failed(lease, _message(message))]))[0]

    async def afail(self, lease: Lease, message: str = "") -> bool:
        """Awaitable `fail`."""
        return (await self._flow_runner.arun(self._settle([Failed(lease, _message(message))])))[0]

    def _settle(self, outcomes: Sequence[Outcome]) -> Callable[[Session], Flow[list[bool]]]:
        for outcome in outcomes:
            self._check_lease(outcome.lease)

        def flow(session: Session) -> Flow[list[bool]]:
            settled: list[bool] = []
            for start in range(0, len(outcomes), BATCH):
                turn = yield from session.perform(self._layout.turn(outcomes[start : start + BATCH]))
                settled += turn.settled
            return settled

        return flow

    def _retried(self, lease: Lease, delay: Duration | None, run_at: Moment | None, message: str) -> Outcome:
        self._check_lease(lease)
        when = run_time(run_at, delay)
        if delay is None and run_at is None and Capability.RUN_TIME not in self._layout.can:
            return Retried(lease, None, _message(message))
        if when is None and (delay is not None or run_at is not None):
            when = ("in", 0)  # an explicit "at once" is not "by the backoff"
        return after_failure(lease, when, _message(message))

    def _check_lease(self, lease: Lease) -> None:
        if not isinstance(lease, Lease):
            forgot = ": was an await forgotten?" if iscoroutine(lease) else ": pass what lease() returned"
            raise ForeignLease(f"{lease!r} is no lease{forgot}")
        if lease.queue != self.name:
            raise ForeignLease(
                f"the lease on job {lease.id!r} belongs to queue {lease.queue!r}, not to {self.name!r}: settle it there"
            )

    # -- while a job runs ------------------------------------------------------------------------

    def extend(self, lease: Lease, seconds: Duration) -> bool:
        """More time for a lease, counted from now. False when it is lost or the job was cancelled: drop it."""
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
        """Say how far a job has come, 0 to 1. False when the lease is lost or the job was cancelled: drop it."""
        return self._flow_runner.run(self._progress(lease, value))

    async def aprogress(self, lease: Lease, value: float) -> bool:
        """Awaitable `progress`."""
        return await self._flow_runner.arun(self._progress(lease, value))

    def _progress(self, lease: Lease, value: float) -> Callable[[Session], Flow[bool]]:
        self._check_lease(lease)
        check_progress(value)
        return self._call(lambda: self._layout.progress(lease, float(value)))

    def beat(self, holder: str, seconds: Duration = 15, *, register: bool = False) -> bool:
        """A holder's sign of life: all it holds is safe for so many seconds more.

        False when the holder is not known: it was lost, and so are its leases. `register` makes it known.
        """
        return self._flow_runner.run(self._beat(holder, seconds, register))

    async def abeat(self, holder: str, seconds: Duration = 15, *, register: bool = False) -> bool:
        """Awaitable `beat`."""
        return await self._flow_runner.arun(self._beat(holder, seconds, register))

    def _beat(self, holder: str, seconds: Duration, register: bool) -> Callable[[Session], Flow[bool]]:
        check_name(holder, "holder")
        length = _lease_seconds(seconds)
        known = check_flag(register, "register")

        def flow(session: Session) -> Flow[bool]:
            return (yield from session.perform(self._layout.beat(holder, length, register=known))).known

        return flow

    # -- orders ----------------------------------------------------------------------------------

    def cancel(self, id: str, *, running: bool = False) -> bool:
        """Take a waiting job away; true if there was one.

        With `running` a job that runs is cancelled too: it keeps its lease, but is gone however its attempt
        ends, and its next `extend` or `progress` says so.
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
        """Bring dead or broken jobs back, with all counts at zero; for each id whether there was one to bring back."""
        return self._flow_runner.run(self._revive(ids))

    async def arevive(self, ids: str | Iterable[str]) -> list[bool]:
        """Awaitable `revive`."""
        return await self._flow_runner.arun(self._revive(ids))

    def _revive(self, ids: str | Iterable[str]) -> Callable[[Session], Flow[list[bool]]]:
        chosen = [check_id(id) for id in ([ids] if isinstance(ids, str) else ids)]

        def flow(session: Session) -> Flow[list[bool]]:
            back: list[bool] = []
            for start in range(0, len(chosen), BATCH):
                back += yield from session.perform(self._layout.revive(chosen[start : start + BATCH]))
            return back

        return flow

    def pause(self) -> bool:
        """Stop giving out jobs; false if it was paused already."""
        return self._flow_runner.run(self._call(lambda: self._layout.pause(True)))

    async def apause(self) -> bool:
        """Awaitable `pause`."""
        return await self._flow_runner.arun(self._call(lambda: self._layout.pause(True)))

    def resume(self) -> bool:
        """Give out jobs again; false if it was not paused."""
        return self._flow_runner.run(self._call(lambda: self._layout.pause(False)))

    async def aresume(self) -> bool:
        """Awaitable `resume`."""
        return await self._flow_runner.arun(self._call(lambda: self._layout.pause(False)))

    def purge(self, state: State | str | None = None) -> int:
        """Delete all jobs of a state; or all, running ones and a pause included, but no schedules. How many."""
        return self._flow_runner.run(self._purge(state))

    async def apurge(self, state: State | str | None = None) -> int:
        """Awaitable `purge`."""
        return await self._flow_runner.arun(self._purge(state))

    def _purge(self, state: State | str | None) -> Callable[[Session], Flow[int]]:
        chosen = None if state is None else _state(state)
        if chosen is State.LEASED:
            raise InvalidOption("leased jobs cannot be purged by themselves: cancel them, or purge the whole queue")

        def flow(session: Session) -> Flow[int]:
            deleted = 0
            while True:
                gone, left = yield from session.perform(self._layout.purge(chosen))
                deleted += gone
                if not left or not gone:
                    return deleted

        return flow

    def clean(self, *, deep: bool = False) -> Cleaned:
        """Take back what lost holders held. `deep` also compares every index with every job and mends what differs.

        Workers do the first by themselves, so a healthy queue needs neither. Safe at any time, beside live workers.
        """
        return self._flow_runner.run(self._clean(deep))

    async def aclean(self, *, deep: bool = False) -> Cleaned:
        """Awaitable `clean`."""
        return await self._flow_runner.arun(self._clean(deep))

    def _clean(self, deep: bool) -> Callable[[Session], Flow[Cleaned]]:
        parts = (*self._layout.audit_parts, *self._layout.leftover_parts) if deep else ()

        def flow(session: Session) -> Flow[Cleaned]:
            mended = 0
            for part in parts:
                _, drift = yield from self._compare(session, part, repair=True)
                mended += drift.mended
            return Cleaned((yield from self._take_back(session)), mended)

        return flow

    def _take_back(self, session: Session) -> Flow[int]:
        """What lost holders held comes back; how many jobs."""
        recovered = 0
        while True:
            turn = yield from session.perform(self._layout.turn())
            recovered += turn.recovered
            if not turn.recovered:
                return recovered

    def audit(self, *, repair: bool = False) -> Audit:
        """Compare every index with every job, and tell what does not fit. Without `repair` nothing at all is written.

        Each step is atomic and judges by what it sees then, so it is safe at any time, beside live workers. With
        `repair` it mends what it finds, as `clean(deep=True)` does, and takes back what lost holders held.
        """
        return self._flow_runner.run(self._audit(repair))

    async def aaudit(self, *, repair: bool = False) -> Audit:
        """Awaitable `audit`."""
        return await self._flow_runner.arun(self._audit(repair))

    def _audit(self, repair: bool) -> Callable[[Session], Flow[Audit]]:
        check_flag(repair, "repair")

        def flow(session: Session) -> Flow[Audit]:
            jobs = 0
            drifts: list[Drift] = []
            for part in self._layout.audit_parts:
                looked, drift = yield from self._compare(session, part, repair=repair)
                jobs += looked
                if drift.amiss:
                    drifts.append(drift)
            recovered = (yield from self._take_back(session)) if repair else 0
            return Audit(self.name, self.layout, jobs, tuple(drifts), recovered)

        return flow

    def _compare(self, session: Session, part: str, *, repair: bool) -> Flow[tuple[int, Drift]]:
        """One part of the queue, step by step: how many jobs were looked at, and what is amiss."""
        jobs = amiss = mended = 0
        examples: list[Mismatch] = []
        cursor: bytes | None = b"0"
        while cursor is not None:
            step = yield from session.perform(self._layout.audit(part, cursor, repair=repair))
            cursor = step.cursor
            jobs, amiss, mended = jobs + step.jobs, amiss + step.amiss, mended + step.mended
            examples += [Mismatch(kind, id) for kind, id in step.examples[: EXAMPLES - len(examples)]]
        return jobs, Drift(part, amiss, mended, tuple(examples))

    # -- questions -------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """How many jobs there are in each state."""
        return self._flow_runner.run(self._call(self._layout.counts))

    async def acounts(self) -> Counts:
        """Awaitable `counts`."""
        return await self._flow_runner.arun(self._call(self._layout.counts))

    def get(self, id: str) -> JobRecord | None:
        """Everything about one job: the one that waits or runs, else the dead one of this id."""
        return self._flow_runner.run(self._get(id))

    async def aget(self, id: str) -> JobRecord | None:
        """Awaitable `get`."""
        return await self._flow_runner.arun(self._get(id))

    def _get(self, id: str) -> Callable[[Session], Flow[JobRecord | None]]:
        check_id(id)
        return self._call(lambda: self._layout.get(id))

    def jobs(self, state: State | str, *, cursor: str | None = None, limit: int = 100) -> Page:
        """One page of the jobs of a state, in their order; `page.cursor` asks for the next.

        A scheduled job that has just become due is still listed among the scheduled, with `state` ready.
        """
        return self._flow_runner.run(self._jobs(state, cursor, limit))

    async def ajobs(self, state: State | str, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Awaitable `jobs`."""
        return await self._flow_runner.arun(self._jobs(state, cursor, limit))

    def _jobs(self, state: State | str, cursor: str | None, limit: int) -> Callable[[Session], Flow[Page]]:
        chosen = _state(state)
        check_whole(limit, "limit", 1, BATCH)
        return self._call(lambda: self._layout.page(chosen, cursor, limit))

    def all_jobs(self, state: State | str) -> Iterator[JobRecord]:
        """Every job of a state, page after page."""
        page = self.jobs(state)
        yield from page.jobs
        while page.cursor:
            page = self.jobs(state, cursor=page.cursor)
            yield from page.jobs

    async def aall_jobs(self, state: State | str) -> AsyncIterator[JobRecord]:
        """Awaitable `all_jobs`."""
        page = await self.ajobs(state)
        while True:
            for job in page.jobs:
                yield job
            if not page.cursor:
                return
            page = await self.ajobs(state, cursor=page.cursor)

    @staticmethod
    def _call(make: Callable[[], Call[T]]) -> Callable[[Session], Flow[T]]:
        return lambda session: session.perform(make())


def _batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Batches that one call can take: bounded in number and bytes, and no id twice in one of them."""
    batch: list[NewJob] = []
    ids: set[str] = set()
    size = 0
    for job in jobs:
        if batch and (len(batch) == BATCH or size + len(job.data) > BATCH_BYTES or job.id in ids):
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
        raise InvalidOption(f"there is no state {state!r}: use one of {', '.join(State)}") from None


def _lease_seconds(seconds: Duration) -> float:
    return milliseconds(seconds, "seconds", least=0.001, most=30 * 86400.0) / 1000


def _message(message: object) -> str:
    if not isinstance(message, str):
        raise InvalidOption(f"message must be text, not {type(message).__name__}")
    return shortened(message)
