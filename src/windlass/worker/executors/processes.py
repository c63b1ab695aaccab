"""Runs jobs in child processes, one at a time in each. Who kills them, and why, is the supervisor's business: it tells.

To wake a child, and to be woken by its answer, takes longer than a short job does. So some of them lie ready in a
prefetch:
it goes on by itself, and we hear of the next one with the answer to the one before. What it has not begun can be taken
back at any time, and is, when the job before it takes long.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import count
from time import monotonic
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from windlass.tasks.context import Job
from windlass.values.job import Lease
from windlass.values.outcome import Completed, Crashed, Outcome, Released
from windlass.values.validation import shortened
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors.base import Attempt, Executor, Key, Stop, key_of
from windlass.worker.executors.child import RUN
from windlass.worker.ipc.frames import FrameError, FrameStream, Header
from windlass.worker.ipc.prefetch import LARGEST, Prefetch

_read_outcome = msgspec.json.Decoder(Outcome).decode
_pack_lease = msgspec.msgpack.Encoder().encode
_read_lease = msgspec.msgpack.Decoder(Lease).decode
_DONE = {"end": "done"}  # what most jobs come to, without more words

MAX_PREFETCHED = 16
PREFETCH_WORK_S = 0.004  # seconds of work that lie ready for a child
OVERDUE = 0.05  # seconds without an answer after which what lies ready goes to other children


class Gone(Struct, frozen=True):
    """A child's end, as the supervisor saw it. `why` is set when the supervisor killed it, `fence` if that was for a
    job."""

    code: int | None = None
    signal: int | None = None
    why: str = ""
    fence: int = 0
    rss: int | None = None
    output: tuple[str, ...] = ()


class NewChild(NamedTuple):
    """A child that was just forked, and how it is reached."""

    pid: int
    socket: socket.socket
    prefetch: Prefetch | None


class ChildSource(Protocol):
    """Where children come from, and who ends them: the supervisor."""

    async def child(self, slot: int) -> NewChild:
        """A new child for a slot."""
        ...

    async def ending(self, pid: int) -> Gone:
        """How a child ended; waits until it is known."""
        ...

    def forget(self, pid: int) -> None:
        """Nobody will ask how this child ended."""
        ...

    def kill(self, slot: int, why: str) -> None:
        """End the child of a slot."""
        ...


class BusyChild:
    """A child at work, as its runner sees it."""

    def __init__(self, new: NewChild) -> None:
        self.pid = new.pid
        self.stream = FrameStream(new.socket)
        self.now: Plan | None = None  # whose answer is waited for
        self.ready: dict[int, Plan] = {}  # what lies in its prefetch, or was taken from there since we last heard of it
        self.heard_at = monotonic()
        self.done = 0
        self.retiring = False
        self.progress: float | None = None
        self._prefetch = new.prefetch
        self._numbers = count(1)
        self._number = 0  # of the job whose answer is waited for
        self._order: deque[int] = deque()  # in which it takes its jobs, and answers
        self._early: dict[int, tuple[Header, bytes]] = {}  # answers that came before the one that is waited for

    async def send(self, plan: Plan) -> None:
        """Give it a job, for it has none."""
        self.now, self._number = plan, next(self._numbers)
        self.heard_at = monotonic()
        self._order.append(self._number)
        job = _pack_lease(plan.lease)
        if self._prefetch is not None and len(job) <= LARGEST and self._prefetch.put(self._number, job):
            return
        if self._prefetch is not None and not self._prefetch.put(self._number, b""):
            raise BrokenPipeError("an empty prefetch takes nothing")
        try:
            await self.stream.send(RUN, job)
        except OSError:
            self.stream.unheard = True
            raise

    def lay_ready(self, plan: Plan) -> bool:
        """Give it a job for later, if there is a prefetch that it fits into."""
        if self._prefetch is None or len(plan.lease.data) > LARGEST:
            return False
        job, number = _pack_lease(plan.lease), next(self._numbers)
        if len(job) > LARGEST or not self._prefetch.put(number, job):
            return False
        self.ready[number] = plan
        self._order.append(number)
        return True

    def go_on(self) -> Plan:
        """It has answered, and goes on with what lies ready."""
        self._number = next(iter(self.ready))
        self.now = plan = self.ready.pop(self._number)
        return plan

    async def answer(self) -> tuple[Header, bytes] | None:
        """The next frame about the job whose answer is waited for; None when the child is gone."""
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

    def take_back(self) -> list[Plan]:
        """What it has not begun of what lies ready."""
        if self._prefetch is None or not self.ready:
            return []
        left = self._prefetch.take_back()
        self._order = deque(number for number in self._order if number not in left)
        if self.now is not None and self._number in left:
            # Not even that one: it stays the child's, and comes behind what the child may have taken up meanwhile.
            left.remove(self._number)
            self._order.append(self._number)
            job = _pack_lease(self.now.lease)
            self._prefetch.put(self._number, job if len(job) <= LARGEST else b"")
        return [self.ready.pop(number) for number in sorted(left)]

    def bury(self) -> tuple[bool, list[Plan]]:
        """It is gone: whether the job whose answer is waited for was certainly not begun, and what of the others.

        One that dies before its first job may have died of that all the same, and would else do so for ever.
        """
        left = self._prefetch.take_back() if self._prefetch is not None else set()
        self.close()
        not_begun = self._number in left or self.stream.unheard
        return not_begun and self.done > 0, [self.ready.pop(number) for number in sorted(left & self.ready.keys())]

    def close(self) -> None:
        """Let it go: it ends when it has done what it has begun."""
        self.stream.close()
        if self._prefetch is not None:
            self._prefetch.close()


class ProcessExecutor(Executor):
    """Children, one for each slot, forked when they are needed. Short jobs lie ready for them, some for each."""

    def __init__(self, *given: Any, source: ChildSource, max_jobs: int | None = None) -> None:
        super().__init__(*given)
        self._source = source
        self._max_jobs = max_jobs
        self._children: dict[int, BusyChild] = {}
        self._condemned: dict[Key, Stop] = {}  # what children have begun already, and we have not heard of yet

    async def _drive(self, one: Attempt) -> None:
        """One attempt, and those at what lies ready for the same child: it is about to begin them, or has begun."""
        await super()._drive(one)
        while (child := self._children.get(one.slot)) is not None and child.ready:
            self._handed -= 1
            one = self._start(child.go_on(), one.task)  # in the same slot: it became free just now
            await super()._drive(one)

    async def _run(self, one: Attempt) -> Outcome | None:
        plan, child = one.plan, self._children.get(one.slot)
        has_it = child is not None and child.now is plan
        if (why := self._condemned.pop(one.key, None)) is not None:
            one.stop = why
            if not has_it:
                return self._stopped(one)
            self._interrupt(one)
        if child is not None and child.stream.ended and not has_it:
            self._drop(one.slot)  # it died between two jobs: this one is not to blame
            child = None
        try:
            if child is None:
                child = self._children[one.slot] = BusyChild(await self._source.child(one.slot))
            if not has_it:
                await child.send(plan)
            self._lay_ready(child)
            outcome = await self._answer(child, one)
        except (OSError, FrameError):
            outcome = None
        if outcome is None:
            return await self._explain(one)
        self._count(one.slot)
        return outcome

    async def _answer(self, child: BusyChild, one: Attempt) -> Outcome | None:
        """What the child makes of the job; None when it dies instead."""
        while (frame := await child.answer()) is not None:
            header, body = frame
            if "progress" in header:
                child.progress = header["progress"]
                one.job.progress(header["progress"])
            elif header == _DONE:
                return Completed(one.plan.lease)
            elif header.get("end") == "outcome":
                return replace_lease(_read_outcome(body), one.plan.lease)
            else:  # perform itself failed: not the job's fault, but all that is known of it
                return attempt.fall_back(one.plan, f"{header.get('type')}: {header.get('message')}")
        return None

    async def _explain(self, one: Attempt) -> Outcome | None:
        """The child is gone: what that means for the job."""
        lease = one.plan.lease
        child = self._children.pop(one.slot, None)
        never_begun, gone = True, Gone()
        if child is not None:
            never_begun, others = child.bury()
            self._to_standby(others)
            self._start_row()
            gone = await self._source.ending(child.pid)
            self._to_standby(child.ready.values())  # it took them up, and we could not understand what it made of them
        if one.stop is Stop.LOST:
            return None
        if never_begun or one.stop in (Stop.CANCELLED, Stop.SHUTDOWN) or gone.why in ("cancelled", "shutdown"):
            return Released(lease)
        if gone.why and gone.fence != lease.fence:
            return Released(lease)  # it was killed for the job before, which had just ended
        if gone.why == "timeout":
            return attempt.fall_back(one.plan, f"timed out after {one.plan.timeout or 0:g} s, and was killed")
        text = shortened(crash_report(gone, child.progress if child is not None else None))
        plan = one.plan
        return Crashed(lease, text, alone=True, allowed=plan.limits.max_stalls, keep_ms=plan.keep_ms)

    def _count(self, slot: int) -> None:
        child = self._children[slot]
        child.now = child.progress = None
        child.heard_at = monotonic()
        child.done += 1
        if child.retiring or (self._max_jobs and child.done >= self._max_jobs):
            self._take_back(child)
            if not child.ready:
                self._drop(slot)

    def retire(self, slot: int) -> None:
        """Let the child of a slot go after its present job."""
        child = self._children.get(slot)
        if child is not None and (child.now is not None or child.ready):
            child.retiring = True
            self._take_back(child)
        elif child is not None:
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        child = self._children.pop(slot)
        child.close()
        self._source.forget(child.pid)

    def _interrupt(self, one: Attempt) -> None:
        self._source.kill(one.slot, "cancelled" if one.stop is Stop.CANCELLED else "shutdown")

    def close(self) -> None:
        """Let all children go."""
        for slot in list(self._children):
            self._drop(slot)

    # -- jobs that lie ready for a child ----------------------------------------------------------------

    def _lay_ready(self, child: BusyChild) -> None:
        """Give a child more to do where jobs are so short that it would wait for us longer than it works."""
        most = min(
            MAX_PREFETCHED, int(PREFETCH_WORK_S / max(self._typical, 1e-6)), len(self._standby) // max(1, self.limit)
        )
        if self._max_jobs:
            most = min(most, self._max_jobs - child.done - 1)
        while len(child.ready) < most and not child.retiring and child.lay_ready(self._standby[0]):
            self._standby.popleft()
            self._handed += 1

    def _take_back(self, *children: BusyChild) -> None:
        for child in children:
            self._to_standby(child.take_back())

    def _to_standby(self, plans: Collection[Plan]) -> None:
        self._handed -= len(plans)
        self._standby.extendleft(reversed([*plans]))

    def _start_row(self) -> None:
        """Only if a slot is free for it: one whose child has something ready goes on with that."""
        if any(slot not in self._children or not self._children[slot].ready for slot in self._free):
            super()._start_row()

    def _with_children(self) -> list[Plan]:
        return [plan for child in self._children.values() for plan in child.ready.values()]

    def begun(self, queue: str, id: str | None = None) -> list[Key]:
        leases = [plan.lease for plan in self._with_children()]
        unheard = [key_of(lease) for lease in leases if lease.queue == queue and id in (None, lease.id)]
        return super().begun(queue, id) + unheard

    def stop(self, key: Key, why: Stop) -> bool:
        if super().stop(key, why):
            return True
        if any(key_of(plan.lease) == key for plan in self._with_children()):
            self._condemned.setdefault(key, why)
            return True
        return False

    def give_up(self, queue: str, id: str) -> Plan | None:
        self._take_back(*self._children.values())
        plan = super().give_up(queue, id)
        if plan is not None:
            self._condemned.pop(key_of(plan.lease), None)
        return plan

    def give_up_standby(self, queue: str | None = None, fence: int | None = None) -> list[Plan]:
        self._take_back(*self._children.values())
        plans = super().give_up_standby(queue, fence)
        for plan in plans:
            self._condemned.pop(key_of(plan.lease), None)
        return plans

    def give_up_stuck(self) -> list[Plan]:
        late = monotonic() - OVERDUE
        self._take_back(*(child for child in self._children.values() if child.ready and child.heard_at < late))
        self._start_row()
        return super().give_up_stuck()


def replace_lease(outcome: Outcome, lease: Lease) -> Outcome:
    """A child answers with a lease that has no data: this is the real one."""
    return msgspec.structs.replace(outcome, lease=lease)


def crash_report(gone: Gone, progress: float | None) -> str:
    """What is known of a process that died with its job."""
    if gone.signal is not None:
        try:
            how = f"was killed by {signal.Signals(gone.signal).name}"
        except ValueError:
            how = f"was killed by signal {gone.signal}"
    else:
        how = f"ended with exit code {gone.code}"
    facts = [f"its process {how}"]
    if gone.rss:
        facts.append(f"it had {gone.rss / 1e6:,.0f} MB of memory")
    if progress is not None:
        facts.append(f"its progress was {progress:g}")
    text = "; ".join(facts)
    return text + ("\nlast output:\n" + "\n".join(gone.output) if gone.output else "")


# -- in the child --------------------------------------------------------------------------------


class ChildJobServices:
    """How a job in a child reaches the world: through the runner."""

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


def perform(app: Any, header: Mapping[str, Any], body: bytes, link: Any) -> tuple[dict[str, Any], bytes]:
    """What a child does with a job: the same line as in the runner."""
    lease = _read_lease(body)
    planned = attempt.plan(app, lease)
    outcome = _run_plan(app, planned, link) if isinstance(planned, Plan) else planned
    if type(outcome) is Completed and outcome.result is None and not outcome.children:
        return _DONE, b""
    answer = msgspec.structs.replace(outcome, lease=msgspec.structs.replace(lease, data=b""))
    return {"end": "outcome"}, msgspec.json.encode(answer)


def _run_plan(app: Any, plan: Plan, link: Any) -> Outcome:
    return attempt.run(plan, Job(plan.lease, plan.task, ChildJobServices(app, link.send)), _wait_for)


_loops: list[asyncio.Runner] = []  # the child's own, kept from job to job so that what belongs to it lives on


def _wait_for(returned: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await returned

    if not _loops:
        _loops.append(asyncio.Runner())
    return _loops[0].run(wait())
