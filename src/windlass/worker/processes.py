"""Runs jobs in child processes, one at a time in each. Who kills them, and why, is the keeper's business: it tells."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from windlass.job import Lease
from windlass.limits import shortened
from windlass.outcome import Completed, Crashed, Outcome, Released
from windlass.running import Job
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executor import Attempt, Executor, Stop
from windlass.worker.frames import FrameError, FrameStream

_read_outcome = msgspec.json.Decoder(Outcome).decode
_pack_lease = msgspec.msgpack.Encoder().encode
_read_lease = msgspec.msgpack.Decoder(Lease).decode
_RUN = {"run": "a lease"}
_DONE = {"end": "done"}  # what most jobs come to, without more words


class Gone(Struct, frozen=True):
    """A child's end, as the keeper saw it. `why` is set when the keeper killed it, `fence` if that was for a job."""

    code: int | None = None
    signal: int | None = None
    why: str = ""
    fence: int = 0
    rss: int | None = None
    output: tuple[str, ...] = ()


class ChildSource(Protocol):
    """Where children come from, and who ends them: the keeper."""

    async def child(self, slot: int) -> tuple[socket.socket, int]:
        """A new child for a slot: the runner's end of its socket, and its pid."""
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


class ProcessExecutor(Executor):
    """Children, one for each slot, forked when they are needed."""

    def __init__(self, *given: Any, source: ChildSource, max_jobs: int | None = None) -> None:
        super().__init__(*given)
        self._source = source
        self._max_jobs = max_jobs
        self._streams: dict[int, FrameStream] = {}
        self._pids: dict[int, int] = {}
        self._done: dict[int, int] = {}
        self._retiring: set[int] = set()
        self._progress: dict[int, float] = {}

    async def _run(self, one: Attempt) -> Outcome | None:
        slot, lease = one.slot, one.plan.lease
        if slot in self._streams and self._streams[slot].ended:
            self._drop(slot)  # it died between two jobs: this one is not to blame
        try:
            stream = self._streams.get(slot) or await self._open(slot)
            try:
                await stream.send(_RUN, _pack_lease(lease))
            except OSError:
                stream.unheard = True
                raise
            outcome = await self._answer(stream, one)
        except (OSError, FrameError):
            outcome = None
        if outcome is None:
            return await self._explain(one)
        self._count(slot)
        return outcome

    async def _open(self, slot: int) -> FrameStream:
        sock, pid = await self._source.child(slot)
        stream = self._streams[slot] = FrameStream(sock)
        self._pids[slot] = pid
        self._done[slot] = 0
        return stream

    async def _answer(self, stream: FrameStream, one: Attempt) -> Outcome | None:
        """What the child makes of the job; None when it dies instead."""
        while (frame := await stream.receive()) is not None:
            header, body = frame
            if "progress" in header:
                self._progress[one.slot] = header["progress"]
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
        stream = self._streams.pop(one.slot, None)
        progress = self._progress.pop(one.slot, None)
        pid = self._pids.pop(one.slot, None)
        never_begun = stream is None or (stream.unheard and self._done[one.slot] > 0)
        if stream is not None:
            stream.close()
        gone = await self._source.ending(pid) if pid is not None else Gone()
        if one.stop is Stop.LOST:
            return None
        if never_begun or one.stop in (Stop.CANCELLED, Stop.SHUTDOWN) or gone.why in ("cancelled", "shutdown"):
            return Released(lease)
        if gone.why and gone.fence != lease.fence:
            return Released(lease)  # it was killed for the job before, which had just ended
        if gone.why == "timeout":
            return attempt.fall_back(one.plan, f"timed out after {one.plan.timeout or 0:g} s, and was killed")
        text = shortened(obituary(gone, progress))
        plan = one.plan
        return Crashed(lease, text, alone=True, allowed=plan.limits.max_stalls, keep_ms=plan.keep_ms)

    def _count(self, slot: int) -> None:
        self._progress.pop(slot, None)
        self._done[slot] += 1
        if slot in self._retiring or (self._max_jobs and self._done[slot] >= self._max_jobs):
            self._retiring.discard(slot)
            self._drop(slot)

    def retire(self, slot: int) -> None:
        """Let the child of a slot go after its present job."""
        if any(one.slot == slot for one in self.running.values()):
            self._retiring.add(slot)
        else:
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        stream = self._streams.pop(slot, None)
        if stream is not None:
            stream.close()
            self._source.forget(self._pids.pop(slot))

    def _interrupt(self, one: Attempt) -> None:
        self._source.kill(one.slot, "cancelled" if one.stop is Stop.CANCELLED else "shutdown")

    def close(self) -> None:
        """Let all children go."""
        for slot in list(self._streams):
            self._drop(slot)


def replace_lease(outcome: Outcome, lease: Lease) -> Outcome:
    """A child answers with a lease that has no data: this is the real one."""
    return msgspec.structs.replace(outcome, lease=lease)


def obituary(gone: Gone, progress: float | None) -> str:
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


class ChildTies:
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
    return attempt.run(plan, Job(plan.lease, plan.task, ChildTies(app, link.send)), _wait_for)


_loops: list[asyncio.Runner] = []  # the child's own, kept from job to job so that what belongs to it lives on


def _wait_for(returned: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await returned

    if not _loops:
        _loops.append(asyncio.Runner())
    return _loops[0].run(wait())
