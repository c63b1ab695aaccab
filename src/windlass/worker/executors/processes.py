"""Runs jobs in child processes, one at a time in each. The supervisor kills children and reports how they ended.

A round trip between runner and child takes longer than a short job. So the runner puts short jobs into the child's
prefetch: the child takes the next job by itself, and the runner learns of it from the answer to the one before. The
runner can withdraw jobs that the child has not started, and does so when the current job takes long.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import copy_context
from itertools import count
from time import monotonic
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from windlass.tasks.context import Job
from windlass.values.job import Lease
from windlass.values.outcome import Completed, Outcome, Released
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors.base import Attempt, Executor, Key, Stop, key_of
from windlass.worker.executors.child import RUN
from windlass.worker.ipc.frames import FrameError, FrameStream, Header
from windlass.worker.ipc.prefetch import MAX_JOB_BYTES, Prefetch
from windlass.worker.tracebacks import error_in_child, error_text

log = logging.getLogger("windlass.worker")

_read_outcome = msgspec.json.Decoder(Outcome).decode
_pack_lease = msgspec.msgpack.Encoder().encode
_read_lease = msgspec.msgpack.Decoder(Lease).decode
_DONE = {"end": "done"}  # the short answer of most jobs: a completed job without result or hand-overs

MAX_PREFETCHED = 16  # jobs per child, however short: other children need some too
PREFETCH_WORK_S = 0.004  # work per child: covers the time until the runner's loop handles its answer
WITHDRAW_AFTER_S = 0.05  # without an answer for this long, prefetched jobs go to other children


class Gone(Struct, frozen=True):
    """How a child ended, as the supervisor saw it.

    `why` is set if the supervisor killed it, `fence` if it did so because of one job.
    """

    code: int | None = None
    signal: int | None = None
    why: str = ""
    fence: int = 0
    rss: int | None = None
    output: tuple[str, ...] = ()


class NewChild(NamedTuple):
    """A child that was just forked, with its socket and prefetch."""

    pid: int
    socket: socket.socket
    prefetch: Prefetch | None


class ChildSource(Protocol):
    """Forks and kills children: the supervisor, as the runner sees it."""

    async def child(self, slot: int) -> NewChild:
        """Fork a child for a slot."""
        ...

    async def ending(self, pid: int) -> Gone:
        """Wait until a child has ended, and return how."""
        ...

    def forget(self, pid: int) -> None:
        """Drop the ending of this child: `ending` will not be called for it."""
        ...

    def kill(self, slot: int, why: str) -> None:
        """Kill the child of a slot."""
        ...


class ChildConnection:
    """A running child, as its runner sees it."""

    def __init__(self, new: NewChild) -> None:
        self.pid = new.pid
        self.stream = FrameStream(new.socket)
        self.current: Plan | None = None  # the job whose answer we await
        self.ready: dict[int, Plan] = {}  # prefetched jobs, including those that the child took since its last answer
        self.heard_at = monotonic()
        self.done = 0
        self.retiring = False
        self.progress: float | None = None
        self._prefetch = new.prefetch
        self._numbers = count(1)
        self._number = 0  # of the current job
        self._order: deque[int] = deque()  # the numbers in the order in which the child takes its jobs, and answers
        self._early: dict[int, tuple[Header, bytes]] = {}  # answers that came before that of the current job

    async def send(self, plan: Plan) -> None:
        """Send a job to the child, which is idle."""
        self.current, self._number = plan, next(self._numbers)
        self.heard_at = monotonic()
        self._order.append(self._number)
        job = _pack_lease(plan.lease)
        if self._prefetch is not None and len(job) <= MAX_JOB_BYTES and self._prefetch.put(self._number, job):
            return
        if self._prefetch is not None and not self._prefetch.put(self._number, b""):
            raise BrokenPipeError("the prefetch of an idle child refuses a job: the child is gone")
        try:
            await self.stream.send(RUN, job)
        except OSError:
            self.stream.unread_by_peer = True
            raise

    def offer(self, plan: Plan) -> bool:
        """Put a job into the prefetch. Returns False if there is none or the job does not fit."""
        if self._prefetch is None or len(plan.lease.data) > MAX_JOB_BYTES:
            return False
        job, number = _pack_lease(plan.lease), next(self._numbers)
        if len(job) > MAX_JOB_BYTES or not self._prefetch.put(number, job):
            return False
        self.ready[number] = plan
        self._order.append(number)
        return True

    def next_ready(self) -> Plan:
        """Make the first prefetched job the current one, after the child has answered."""
        self._number = next(iter(self.ready))
        self.current = plan = self.ready.pop(self._number)
        return plan

    async def answer(self) -> tuple[Header, bytes] | None:
        """Wait for the next frame about the current job; None when the child is gone."""
        if self._number in self._early:
            return self._early.pop(self._number)
        while (frame := await self.stream.receive()) is not None:
            about = self._order[0]
            if "progress" not in frame[0]:
                self._order.popleft()
            if about == self._number:
                return frame
            if "progress" not in frame[0]:
                self._early[about] = frame
        return None

    def withdraw(self) -> list[Plan]:
        """Withdraw and return the prefetched jobs that the child has not started."""
        if self._prefetch is None or not self.ready:
            return []
        left = self._prefetch.withdraw()
        self._order = deque(number for number in self._order if number not in left)
        if self.current is not None and self._number in left:
            # The current job was not started either. It goes back in, behind a job that the child may just have taken.
            left.remove(self._number)
            self._order.append(self._number)
            job = _pack_lease(self.current.lease)
            self._prefetch.put(self._number, job if len(job) <= MAX_JOB_BYTES else b"")
        return [self.ready.pop(number) for number in sorted(left)]

    def discard(self) -> tuple[bool, list[Plan]]:
        """Close a dead child. Returns whether the current job surely never started, and the other unstarted jobs.

        A child that dies before its first answer counts as killed by that job: otherwise a job that kills every child
        would come back without end.
        """
        left = self._prefetch.withdraw() if self._prefetch is not None else set()
        self.close()
        not_started = self._number in left or self.stream.unread_by_peer
        return not_started and self.done > 0, [self.ready.pop(number) for number in sorted(left & self.ready.keys())]

    def close(self) -> None:
        """Close the socket and the prefetch. The child ends after its current job."""
        self.stream.close()
        if self._prefetch is not None:
            self._prefetch.close()


class ProcessExecutor(Executor):
    """Runs jobs in child processes, one child per slot, forked on demand. Short jobs are prefetched."""

    def __init__(self, *given: Any, source: ChildSource, max_jobs: int | None = None) -> None:
        super().__init__(*given)
        self._source = source
        self._max_jobs = max_jobs
        self._children: dict[int, ChildConnection] = {}
        self._to_stop: dict[Key, Stop] = {}  # jobs to stop that a child may have taken from its prefetch already

    async def _drive(self, one: Attempt) -> None:
        """Drive one attempt, and then the prefetched jobs of the same child, which it starts by itself."""
        await super()._drive(one)
        while (child := self._children.get(one.slot)) is not None and child.ready:
            self._prefetched -= 1
            one = self._start(child.next_ready())  # takes the same slot, which was just freed
            await super()._drive(one)

    async def _run(self, one: Attempt) -> Outcome | None:
        plan, child = one.plan, self._children.get(one.slot)
        has_it = child is not None and child.current is plan
        if (why := self._to_stop.pop(one.key, None)) is not None:
            one.stop = why
            if not has_it:
                return self._stop_outcome(one)
            self._interrupt(one)
        if child is not None and child.stream.ended and not has_it:
            self._release(one.slot)  # the child died between two jobs, so this job did not kill it
            child = None
        try:
            if child is None:
                child = self._children[one.slot] = ChildConnection(await self._source.child(one.slot))
            if not has_it:
                await child.send(plan)
            self._prefetch_jobs(child)
            outcome = await self._answer(child, one)
        except (OSError, FrameError):
            outcome = None
        if outcome is None:
            return await self._death_outcome(one)
        self._count_done(one.slot)
        return outcome

    async def _answer(self, child: ChildConnection, one: Attempt) -> Outcome | None:
        """Wait for the outcome of the job; None if the child dies."""
        while (frame := await child.answer()) is not None:
            header, body = frame
            if "progress" in header:
                child.progress = header["progress"]
                one.job.progress(header["progress"])
            elif header == _DONE:
                return Completed(one.plan.lease)
            elif header.get("end") == "outcome":
                if "error" in header:
                    one.job.raised = error_in_child(header["error"])
                return replace_lease(_read_outcome(body), one.plan.lease)
            else:  # `run_job` itself failed: a bug, reported as the job's failure
                log.error("%s: could not be run in a child\n%s", one.plan.title, header.get("traceback"))
                return attempt.retry_or_fail(one.plan, f"{header.get('type')}: {header.get('message')}")
        return None

    async def _death_outcome(self, one: Attempt) -> Outcome | None:
        """Return the outcome of a job whose child is gone."""
        lease = one.plan.lease
        child = self._children.pop(one.slot, None)
        never_started, gone = True, Gone()
        if child is not None:
            never_started, others = child.discard()
            self._to_standby(others)
            self._starter.wake()
            gone = await self._source.ending(child.pid)
            self._to_standby(child.ready.values())  # the child took these, but sent no valid answer
        if one.stop is Stop.ABANDONED:
            return None
        if never_started or one.stop in (Stop.CANCELLED, Stop.SHUTDOWN) or gone.why in ("cancelled", "shutdown"):
            return Released(lease)
        if gone.why and gone.fence != lease.fence:
            return Released(lease)  # the kill was meant for the job before, which had just ended
        if gone.why == "timeout":
            return attempt.retry_or_fail(
                one.plan, f"timed out after {one.plan.timeout or 0:g} s; its process was killed"
            )
        return attempt.crash(one.plan, crash_report(gone, child.progress if child is not None else None))

    def _count_done(self, slot: int) -> None:
        child = self._children[slot]
        child.current = child.progress = None
        child.heard_at = monotonic()
        child.done += 1
        if child.retiring or (self._max_jobs and child.done >= self._max_jobs):
            self._withdraw_prefetched(child)
            if not child.ready:
                self._release(slot)

    def retire(self, slot: int) -> None:
        """Close the child of a slot after its current job."""
        child = self._children.get(slot)
        if child is not None and (child.current is not None or child.ready):
            child.retiring = True
            self._withdraw_prefetched(child)
        elif child is not None:
            self._release(slot)

    def _release(self, slot: int) -> None:
        child = self._children.pop(slot)
        child.close()
        self._source.forget(child.pid)

    def _interrupt(self, one: Attempt) -> None:
        self._source.kill(one.slot, "cancelled" if one.stop is Stop.CANCELLED else "shutdown")

    def close(self) -> None:
        """Close all children."""
        for slot in list(self._children):
            self._release(slot)

    # -- prefetched jobs --------------------------------------------------------------------------------

    def _prefetch_jobs(self, child: ChildConnection) -> None:
        """Fill a child's prefetch if jobs are so short that the child would wait longer for us than it works."""
        most = min(
            MAX_PREFETCHED, int(PREFETCH_WORK_S / max(self._typical, 1e-6)), len(self._standby) // max(1, self.limit)
        )
        if self._max_jobs:
            most = min(most, self._max_jobs - child.done - 1)
        while len(child.ready) < most and not child.retiring and child.offer(self._standby[0]):
            self._standby.popleft()
            self._prefetched += 1

    def _withdraw_prefetched(self, *children: ChildConnection) -> None:
        for child in children:
            self._to_standby(child.withdraw())

    def _to_standby(self, plans: Collection[Plan]) -> None:
        self._prefetched -= len(plans)
        self._standby.extendleft(reversed([*plans]))

    def _startable(self) -> int:
        """None unless a slot is really free: a child with prefetched jobs goes on with those."""
        if any(slot not in self._children or not self._children[slot].ready for slot in self._free):
            return super()._startable()
        return 0

    def _prefetched_plans(self) -> list[Plan]:
        return [plan for child in self._children.values() for plan in child.ready.values()]

    def running_keys(self, queue: str, id: str | None = None) -> list[Key]:
        leases = [plan.lease for plan in self._prefetched_plans()]
        prefetched_keys = [key_of(lease) for lease in leases if lease.queue == queue and id in (None, lease.id)]
        return super().running_keys(queue, id) + prefetched_keys

    def stop(self, key: Key, why: Stop) -> bool:
        if super().stop(key, why):
            return True
        if any(key_of(plan.lease) == key for plan in self._prefetched_plans()):
            self._to_stop.setdefault(key, why)
            return True
        return False

    def withdraw(self, queue: str, id: str) -> Plan | None:
        self._withdraw_prefetched(*self._children.values())
        plan = super().withdraw(queue, id)
        if plan is not None:
            self._to_stop.pop(key_of(plan.lease), None)
        return plan

    def withdraw_standby(self, queue: str | None = None, fence: int | None = None) -> list[Plan]:
        self._withdraw_prefetched(*self._children.values())
        plans = super().withdraw_standby(queue, fence)
        for plan in plans:
            self._to_stop.pop(key_of(plan.lease), None)
        return plans

    def withdraw_stuck(self) -> list[Plan]:
        late = monotonic() - WITHDRAW_AFTER_S
        self._withdraw_prefetched(
            *(child for child in self._children.values() if child.ready and child.heard_at < late)
        )
        self._starter.wake()
        return super().withdraw_stuck()


def replace_lease(outcome: Outcome, lease: Lease) -> Outcome:
    """Put the full lease into a child's outcome, whose copy of the lease has no data."""
    return msgspec.structs.replace(outcome, lease=lease)


def crash_report(gone: Gone, progress: float | None) -> str:
    """Describe how a process died together with its job."""
    if gone.signal is not None:
        try:
            how = f"was killed by {signal.Signals(gone.signal).name}"
        except ValueError:
            how = f"was killed by signal {gone.signal}"
    else:
        how = f"ended with exit code {gone.code}"
    facts = [f"its process {how}"]
    if gone.rss:
        facts.append(f"memory {gone.rss / 1e6:,.0f} MB")
    if progress is not None:
        facts.append(f"progress {progress:g}")
    text = "; ".join(facts)
    return text + ("\nlast output:\n" + "\n".join(gone.output) if gone.output else "")


# -- in the child --------------------------------------------------------------------------------


class ChildJobServices:
    """The services of a job in a child. They go through the runner."""

    def __init__(self, app: Any, send: Callable[[Mapping[str, Any]], bool]) -> None:
        self._app = app
        self._send = send

    def is_cancelled(self, lease: Lease) -> bool:
        return False  # a child whose job is cancelled is killed

    def progress(self, lease: Lease, value: float) -> None:
        self._send({"progress": value})

    async def aprogress(self, lease: Lease, value: float) -> bool:
        return self._send({"progress": value})

    def prepare(self, lease: Lease, call: Any) -> Any:
        return self._app.hand_over(lease.queue, call)


def run_job(app: Any, header: Mapping[str, Any], body: bytes, link: Any) -> tuple[dict[str, Any], bytes]:
    """Run one job in a child: plan, run, answer with the outcome."""
    lease = _read_lease(body)  # a function cannot be sent, so the child plans again from the lease
    planned = attempt.plan(app, lease)
    if not isinstance(planned, Plan):
        return _answer(planned)
    job = Job(planned.lease, planned.task, ChildJobServices(app, link.send))
    outcome = attempt.run(planned, job, _wait_for)
    if type(outcome) is Completed and outcome.result is None and not outcome.hand_overs:
        return _DONE, b""
    header, body = _answer(outcome)
    if (error := getattr(job, "raised", None)) is not None:
        header["error"] = error_text(error)
        job.raised = None  # its frames refer to the job
    return header, body


def _answer(outcome: Outcome) -> tuple[dict[str, Any], bytes]:
    answer = msgspec.structs.replace(outcome, lease=msgspec.structs.replace(outcome.lease, data=b""))
    return {"end": "outcome"}, msgspec.json.encode(answer)


_loops: list[asyncio.Runner] = []  # one loop for all jobs of the child, so that the app's clients stay usable


def _wait_for(returned: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await returned

    if not _loops:
        _loops.append(asyncio.Runner())
    return _loops[0].run(wait(), context=copy_context())  # its log records tell of this job, not of the first one
