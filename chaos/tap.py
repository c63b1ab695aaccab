"""Logs a process's requests to the server and the answers into the event log of a run (see log.py).

The tap sits between the layout and the session: a call is logged when the session takes it up; its answer is parsed
from the raw reply, by other code than the worker's own. `install` wraps the product; the product has no hooks for it.

An environment variable names the log's folder, so every started or forked process writes there, each into its own file.
Without that variable nothing is wrapped.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, TypeVar

from msgspec import structs

from chaos.log import (
    Answered,
    Beaten,
    Claim,
    Ended,
    EnqueueAsked,
    Extended,
    Finished,
    Handed,
    LogWriter,
    Record,
    Refused,
    Sent,
    SettleAsked,
    Started,
    digest,
)
from windlass.errors import OutcomeUnknown, WindlassError
from windlass.storage.formats import CHANGE, META
from windlass.storage.native.layout import NativeLayout
from windlass.storage.port import NO_LEASES, Beat, Call, LeaseRequest, Parcel, Turn
from windlass.tasks.context import Job
from windlass.transport.io_steps import Flow
from windlass.transport.session import Caller, Session
from windlass.values.durability import Durability
from windlass.values.job import Lease, Limits, NewJob
from windlass.values.outcome import Completed, Crashed, HandOver, Outcome, Retried, Snoozed, name_of

T = TypeVar("T")

FOLDER = "WINDLASS_CHAOS_LOG"  # in the environment: where the log is
LEVEL = "WINDLASS_CHAOS_LEVEL"  # the durability of every answer under the server's settings
SINGLETON = "one-"  # prefix of ids that are enqueued repeatedly

_ROLE = "WINDLASS_ROLE"  # set by the forkserver in forked processes: "runner" or "child"
_SLOW_NS = 100_000_000  # ns after which an answer may belong to a repeated call
_UNKNOWN_STATUS = ""  # statuses of an enqueue whose step wrote nothing: its step number is not its own

# Same formats as in lua/shared/meta.lua and changes.lua, decoded here by other code than the worker's own.
_CAUGHT = 2
_CHECKSUM_BYTES = 5  # bytes of the checksum that follows every stored payload


class _Pen:
    """Writes the records of this process; after a fork into a new file."""

    def __init__(self, folder: Path, role: str) -> None:
        self._folder = folder
        self._role = role
        self._writer: LogWriter | None = None
        self._numbers = itertools.count(1)

    def next_call(self) -> int:
        """The next call number of this process. Several threads make calls."""
        return next(self._numbers)

    def write(self, record: Record, holder: str = "") -> None:
        """Append a record; the first one opens the file."""
        writer = self._writer
        if writer is None or not writer.ours:
            writer = self._writer = LogWriter(self._folder, os.environ.get(_ROLE, self._role), holder)
        writer.write(record)


_pen: _Pen | None = None
_leaving: set[str] = set()  # holders whose runner was told to end, or has ended


def install(role: str) -> bool:
    """Log this process and all its forked processes from now on; returns False if no log is configured."""
    global _pen
    folder = os.environ.get(FOLDER)
    if not folder:
        return False
    if _pen is None:
        _pen = _Pen(Path(folder), role)
        _wrap_layout()
        _wrap_session()
    return True


def install_supervisor() -> bool:
    """The same for a supervisor, which also logs how its worker's processes end."""
    if _pen is not None or not install("supervisor"):
        return False
    _wrap_forkserver()
    _wrap_crew()
    return True


def note(record: Record) -> None:
    """Log a record that is not a call."""
    if _pen is not None:
        _pen.write(record)


def note_started(job: Job) -> None:
    """The function of a job begins."""
    if _pen is not None:
        lease = job.lease
        _pen.write(
            Started(monotonic_ns(), os.getpid(), lease.queue, lease.id, lease.fence, digest(lease.data), lease.attempt)
        )


def note_finished(job: Job, how: str) -> None:
    """The function of a job has ended."""
    if _pen is not None:
        _pen.write(Finished(monotonic_ns(), os.getpid(), job.queue, job.id, job.fence, how))


# -- calls ---------------------------------------------------------------------------------------


class _Reading:
    """The clock reading at the head of every answer of a writing script."""

    __slots__ = ("epoch", "now", "step", "wall")

    def __init__(self, reply: list[Any]) -> None:
        self.now, _, self.wall, _, self.epoch, self.step = reply[0]


class _Tap:
    """One call's arguments, and the records written about it.

    It also replaces the call's reply reader, and so sees the raw reply. A call that is never sent leaves no record. An
    answer that is fetched again later (leases of an abandoned call) is logged under the number of the first send.
    """

    def __init__(self, read: Callable[[Any], Any], pen: _Pen) -> None:
        self._read = read
        self._pen = pen
        self._call = 0
        self._sent_at = 0
        self._under_way = False
        self._reply: list[Any] | None = None

    def __call__(self, reply: Any) -> Any:
        self._reply = reply
        if not self._under_way:
            self.answered("")
        return self._read(reply)

    def sent(self) -> None:
        """A session takes up the call."""
        self._sent_at = monotonic_ns()
        self._call = self._pen.next_call()
        self._under_way = True
        self._note_sent()

    def answered(self, level: str) -> None:
        """The reply has arrived, with this durability."""
        self._under_way = False
        assert self._reply is not None
        self._note_answer(self._reply, _Reading(self._reply), level)
        self._reply = None

    def refused(self, error: WindlassError) -> None:
        """The session gave up the call."""
        self._under_way = False
        self._note_refusal(type(error).__name__, isinstance(error, OutcomeUnknown))

    def left(self) -> None:
        """The caller no longer waits; the call is in doubt."""
        self._under_way = False

    def _note_refusal(self, why: str, in_doubt: bool) -> None:
        self._pen.write(Refused(monotonic_ns(), self._call, why, in_doubt))

    def _note_sent(self) -> None:
        raise NotImplementedError

    def _note_answer(self, reply: list[Any], at: _Reading, level: str) -> None:
        raise NotImplementedError

    @property
    def _may_be_a_repeat(self) -> bool:
        """Whether the answer took so long that it may belong to a repeat, and carry the repeat's time."""
        return monotonic_ns() - self._sent_at > _SLOW_NS


class _Enqueue(_Tap):
    def __init__(self, read: Callable[[Any], Any], pen: _Pen, queue: str, jobs: Sequence[NewJob]) -> None:
        super().__init__(read, pen)
        self._queue = queue
        self._jobs = jobs

    def _note_sent(self) -> None:
        asked = tuple(map(_asked, self._jobs))
        self._pen.write(Sent(self._sent_at, self._call, self._queue, asked))

    def _note_answer(self, reply: list[Any], at: _Reading, level: str) -> None:
        self._pen.write(
            Answered(
                monotonic_ns(),
                self._call,
                self._queue,
                at.epoch,
                at.step,
                at.now,
                statuses=reply[1].decode(),
                level=level,
                wall=at.wall,
            )
        )


class _Forward(_Tap):
    """Jobs from the outbox of another queue: an enqueue by the process that forwards them."""

    def __init__(self, read: Callable[[Any], Any], pen: _Pen, queue: str, parcels: Sequence[Parcel]) -> None:
        super().__init__(read, pen)
        self._queue = queue
        self._parcels = parcels

    def _note_sent(self) -> None:
        asked = tuple(_asked_of_parcel(parcel) for parcel in self._parcels)
        self._pen.write(Sent(self._sent_at, self._call, self._queue, asked))

    def _note_answer(self, reply: list[Any], at: _Reading, level: str) -> None:
        # Jobs that arrived before are skipped. They come first, because parcels arrive in order.
        new = int(reply[1])
        statuses = "m" * (len(self._parcels) - new) + "a" * new if new else _UNKNOWN_STATUS
        self._pen.write(
            Answered(
                monotonic_ns(),
                self._call,
                self._queue,
                at.epoch,
                at.step,
                at.now,
                statuses=statuses,
                level=_promised(),
                wall=at.wall,
            )
        )


class _Turn(_Tap):
    def __init__(
        self,
        read: Callable[[Any], Any],
        pen: _Pen,
        queue: str,
        outcomes: Sequence[Outcome],
        want: int,
        seconds: float,
        holder: str,
    ) -> None:
        super().__init__(read, pen)
        self._queue = queue
        # In the order of the answer: the script handles completed jobs first, each lease once.
        first = {outcome.lease.id: outcome for outcome in reversed(outcomes) if _is_plain(outcome)}
        self._outcomes = sorted(outcomes, key=lambda outcome: first.get(outcome.lease.id) is not outcome)
        self._want = want
        self._lease_ms = round(seconds * 1000)
        self._holder = holder

    def _note_sent(self) -> None:
        settles = tuple(map(_settle, self._outcomes))
        # Children on the same queue are enqueued in the same step; for other queues see `_Forward`.
        here = tuple(_asked(each.job) for _, each in self._hand_overs(here=True))
        handed = tuple(
            Handed(outcome.lease.id, each.queue, _asked(each.job)) for outcome, each in self._hand_overs(here=False)
        )
        self._pen.write(
            Sent(
                self._sent_at,
                self._call,
                self._queue,
                here,
                settles,
                want=self._want,
                holder=self._holder,
                handed=handed,
            ),
            self._holder,
        )

    def _hand_overs(self, *, here: bool) -> Iterator[tuple[Completed, HandOver]]:
        """Handed-over jobs, on this queue or on other queues."""
        for outcome in self._outcomes:
            if isinstance(outcome, Completed):
                yield from ((outcome, each) for each in outcome.hand_overs if (each.queue == self._queue) == here)

    def _note_answer(self, reply: list[Any], at: _Reading, level: str) -> None:
        _, flags, base, ids, data, metas, priorities, _, recovered, *_ = reply
        settled = tuple(digit != ord("0") for digit in flags)
        answers = zip(self._outcomes, flags, strict=True)
        returned = tuple(outcome.lease.fence for outcome, digit in answers if digit == ord("2"))
        accepted = {outcome.lease.fence for outcome, ours in zip(self._outcomes, settled, strict=True) if ours}
        statuses = "".join("a" if parent.lease.fence in accepted else "m" for parent, _ in self._hand_overs(here=True))
        priorities = itertools.repeat(priorities[0]) if len(priorities) == 1 else priorities
        rows = zip(itertools.count(int(base) + 1), ids, data, metas or itertools.repeat(None), priorities, strict=False)
        # An empty place in a repeated answer: this caller had lost the lease.
        claims = tuple(_claim(*row) for row in rows if row[2] is not None)
        self._pen.write(
            Answered(
                monotonic_ns(),
                self._call,
                self._queue,
                at.epoch,
                at.step,
                at.now,
                statuses=statuses,
                level=_promised() if statuses else "",
                settled=settled,
                returned=returned,
                claims=claims,
                recovered=recovered,
                holder=self._holder,
                lease=self._lease_ms if claims else 0,
                wall=at.wall,
            )
        )


class _Cancel(_Tap):
    def __init__(self, read: Callable[[Any], Any], pen: _Pen, queue: str, ids: Sequence[str]) -> None:
        super().__init__(read, pen)
        self._queue = queue
        self._ids = tuple(ids)

    def _note_sent(self) -> None:
        self._pen.write(Sent(self._sent_at, self._call, self._queue, cancels=self._ids))

    def _note_answer(self, reply: list[Any], at: _Reading, level: str) -> None:
        cancelled = tuple(digit != ord("0") for digit in reply[1])
        self._pen.write(
            Answered(
                monotonic_ns(), self._call, self._queue, at.epoch, at.step, at.now, cancelled=cancelled, wall=at.wall
            )
        )


class _Beat(_Tap):
    def __init__(
        self, read: Callable[[Any], Any], pen: _Pen, queue: str, holder: str, seconds: float, register: bool
    ) -> None:
        super().__init__(read, pen)
        self._queue = queue
        self._holder = holder
        self._lease_ms = round(seconds * 1000)
        self._register = register

    def _note_sent(self) -> None:
        pass  # only answered heartbeats count

    def _note_refusal(self, why: str, in_doubt: bool) -> None:
        pass

    def _note_answer(self, reply: list[Any], at: _Reading, level: str) -> None:
        known = self._register or reply[1] == b"1"
        if not known and self._holder in _leaving:
            return  # its runner has deregistered, or its jobs were returned: not a loss
        if not self._may_be_a_repeat:
            told = (at.epoch, at.step, at.now, self._lease_ms, known)
            self._pen.write(Beaten(monotonic_ns(), self._queue, self._holder, *told))


class _Extend(_Tap):
    """An extension or a progress report: both tell whether the caller still owns the leases."""

    def __init__(
        self, read: Callable[[Any], Any], pen: _Pen, queue: str, leases: Sequence[Lease], seconds: float
    ) -> None:
        super().__init__(read, pen)
        self._queue = queue
        self._leases = leases
        self._lease_ms = round(seconds * 1000)

    def _note_sent(self) -> None:
        pass

    def _note_refusal(self, why: str, in_doubt: bool) -> None:
        pass

    def _note_answer(self, reply: list[Any], at: _Reading, level: str) -> None:
        if self._may_be_a_repeat:
            return
        for lease, digit in zip(self._leases, reply[1], strict=True):
            told = (digit != ord("0"), at.epoch, at.step, at.now, self._lease_ms)
            self._pen.write(Extended(monotonic_ns(), self._queue, lease.id, lease.fence, *told))


# -- arguments as log records ----------------------------------------------------------------------


def _asked(job: NewJob) -> EnqueueAsked:
    change = job.change
    kind, ms = change.when or ("", 0)
    return EnqueueAsked(
        job.id,
        digest(job.data),
        change.priority,
        ms if kind == "at" else 0,
        ms if kind == "in" else 0,
        change.max_failures,
        change.max_stalls,
        job.id.startswith(SINGLETON),
    )


def _asked_of_parcel(parcel: Parcel) -> EnqueueAsked:
    check = digest(parcel.data[:-_CHECKSUM_BYTES])
    if not parcel.change:
        return EnqueueAsked(parcel.id, check)
    priority, kind, ms, max_failures, max_stalls, *_ = CHANGE.unpack_from(parcel.change)
    return EnqueueAsked(
        parcel.id,
        check,
        priority,
        ms if kind == 1 else 0,
        ms if kind == 2 else 0,
        max_failures,
        max_stalls,
        parcel.id.startswith(SINGLETON),
    )


def _settle(outcome: Outcome) -> SettleAsked:
    lease = outcome.lease
    alone = outcome.is_cause if isinstance(outcome, Crashed) else True
    return SettleAsked(lease.id, lease.fence, name_of(outcome), _delay(outcome), alone)


def _delay(outcome: Outcome) -> int:
    match outcome:
        case Retried(when=("in", ms)) | Snoozed(when=("in", ms)) | Crashed(delay_ms=ms):
            return ms
    return 0


def _promised() -> str:
    """The durability of every answer of this server; no call asks for more when a job enqueues another."""
    return os.environ.get(LEVEL, "")


def _is_plain(outcome: Outcome) -> bool:
    return isinstance(outcome, Completed) and outcome.result is None and not outcome.hand_overs


def _claim(fence: int, id: bytes, data: bytes, meta: bytes | None, priority: int) -> Claim:
    marks = failures = stalls = 0
    if meta:
        _, marks, _, _, _, failures, stalls, *_ = META.unpack_from(meta)
    return Claim(id.decode(), fence, digest(data[:-_CHECKSUM_BYTES]), priority, failures, stalls, bool(marks & _CAUGHT))


# -- wrapping ------------------------------------------------------------------------------------


class _TappedCall(Call[T], frozen=True):
    """A call with its tap; copies made with `replace` keep the tap."""

    tap: _Tap | None = None


def _tapped(call: Call[T], make: Callable[..., _Tap], *given: Any) -> Call[T]:
    assert _pen is not None
    tap = make(call.read, _pen, *given)
    return _TappedCall(**{**structs.asdict(call), "read": tap, "tap": tap})


def _wrap_layout() -> None:
    """Wrap every method whose call moves jobs, or names their holders."""
    enqueue, turn, extend, beat = NativeLayout.enqueue, NativeLayout.turn, NativeLayout.extend, NativeLayout.beat
    progress, cancel, forward = NativeLayout.progress, NativeLayout.cancel, NativeLayout.forward

    def tapped_enqueue(self: NativeLayout, jobs: Sequence[NewJob], *more: Any, **others: Any) -> Call[Any]:
        return _tapped(enqueue(self, jobs, *more, **others), _Enqueue, self.queue, jobs)

    def tapped_turn(
        self: NativeLayout, outcomes: Sequence[Outcome] = (), request: LeaseRequest = NO_LEASES
    ) -> Call[Turn]:
        want, seconds, holder = request.want, request.seconds, request.holder or ""
        return _tapped(turn(self, outcomes, request), _Turn, self.queue, outcomes, want, seconds, holder)

    def tapped_extend(self: NativeLayout, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        return _tapped(extend(self, leases, seconds), _Extend, self.queue, leases, seconds)

    def tapped_beat(
        self: NativeLayout, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None
    ) -> Call[Beat]:
        call = beat(self, holder, seconds, register=register, failure_handler=failure_handler)
        return _tapped(call, _Beat, self.queue, holder, seconds, register)

    def tapped_progress(self: NativeLayout, lease: Lease, value: float) -> Call[bool]:
        return _tapped(progress(self, lease, value), _Extend, self.queue, [lease], 0)

    def tapped_cancel(self: NativeLayout, ids: Sequence[str], *, running: bool) -> Call[list[bool]]:
        return _tapped(cancel(self, ids, running=running), _Cancel, self.queue, ids)

    def tapped_forward(self: NativeLayout, source: str, parcels: Sequence[Parcel]) -> Call[int]:
        return _tapped(forward(self, source, parcels), _Forward, self.queue, parcels)

    for name, function in {
        "enqueue": tapped_enqueue,
        "turn": tapped_turn,
        "extend": tapped_extend,
        "beat": tapped_beat,
        "progress": tapped_progress,
        "cancel": tapped_cancel,
        "forward": tapped_forward,
    }.items():
        setattr(NativeLayout, name, function)


def _wrap_session() -> None:
    """Log when the session sends a call. The repeat of an abandoned call bypasses this; only its answer is logged."""
    carry_out = Session._execute

    def tapped_carry_out(self: Session, caller: Caller, call: Call[T], *more: Any) -> Flow[tuple[T, Durability]]:
        tap = call.tap if isinstance(call, _TappedCall) else None
        if tap is None:
            return (yield from carry_out(self, caller, call, *more))
        tap.sent()
        try:
            value, level = yield from carry_out(self, caller, call, *more)
        except WindlassError as error:
            tap.refused(error)
            raise
        except BaseException:
            tap.left()
            raise
        tap.answered(str(level))
        return value, level

    setattr(Session, "_execute", tapped_carry_out)  # noqa: B010  # mypy would not have it assigned


def _wrap_forkserver() -> None:
    """Log the end of a forked process before the supervisor reacts to it, so that consequences are logged later."""
    from windlass.worker.supervisor.forkserver import Ending, ForkServer

    handle, on_gone = ForkServer._handle, ForkServer._on_gone

    def tapped_handle(self: ForkServer, header: dict[str, Any]) -> None:
        if "exited" in header:
            note(Ended(monotonic_ns(), header["exited"], _how(header["code"], header["signal"])))
        handle(self, header)

    def tapped_on_gone(self: ForkServer, ending: Ending) -> None:
        for pid in self._forked:
            note(Ended(monotonic_ns(), pid, "signal 9"))
        note(Ended(monotonic_ns(), self.pid, _how(ending.code, ending.signal)))
        on_gone(self, ending)

    setattr(ForkServer, "_handle", tapped_handle)  # noqa: B010
    setattr(ForkServer, "_on_gone", tapped_on_gone)  # noqa: B010


def _wrap_crew() -> None:
    """A holder that leaves is deregistered; an unknown-holder answer to its next heartbeat is not a loss."""
    from windlass.worker.supervisor.runner_group import RunnerGroup

    drain, kill_children = RunnerGroup.drain, RunnerGroup.kill_children

    def tapped_drain(self: RunnerGroup, grace: float) -> None:
        _leaving.add(self.holder)
        drain(self, grace)

    def tapped_kill_children(self: RunnerGroup) -> None:
        _leaving.add(self.holder)
        kill_children(self)

    setattr(RunnerGroup, "drain", tapped_drain)  # noqa: B010
    setattr(RunnerGroup, "kill_children", tapped_kill_children)  # noqa: B010


def _how(code: int | None, signal: int | None) -> str:
    return f"signal {signal}" if signal is not None else f"exit {code}"
