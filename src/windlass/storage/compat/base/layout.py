"""The base of the layouts that use the keys of another system. Each subclass has its own keys and Lua part.

Such a layout raises `UnsupportedByLayout` for what it cannot do, before it sends anything.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from msgspec import structs

from windlass.errors import InvalidName, InvalidOption
from windlass.storage.capabilities import CAPABILITIES, unsupported
from windlass.storage.compat.base import keys
from windlass.storage.compat.base.scripts import script
from windlass.storage.formats import IMPLIED, pack_change, pack_limits, pack_when, read_meta
from windlass.storage.port import (
    NO_LEASES,
    Argument,
    AuditBatch,
    Beat,
    Call,
    Capability,
    Enqueued,
    LeaseRequest,
    Parcel,
    ScheduleBook,
    Turn,
)
from windlass.values.ending import Remains
from windlass.values.job import FAILURE_JOB, Counts, JobRecord, Lease, Limits, NewJob, Page, Sighting, State, Status
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    NoFailureHandler,
    Outcome,
    Released,
    Retried,
    Snoozed,
    UnknownTask,
)
from windlass.values.validation import MAX_DEAD

T = TypeVar("T")
_NAME = re.compile(r"[^\s{}\x00-\x1f\x7f]{1,128}")
_KEEPING: dict[State | None, Capability] = {
    State.SCHEDULED: Capability.RUN_TIME,
    State.BLOCKED: Capability.SINGLETON,
    State.DEAD: Capability.DEAD,
    State.BROKEN: Capability.BROKEN,
}
_STATUSES = {"a": Status.ADDED, "u": Status.UPDATED, "k": Status.KEPT, "b": Status.BLOCKED, "m": None}


class ForeignLayout:
    """One queue of another system."""

    name = ""
    can: frozenset[Capability] = frozenset()
    heartbeat: float | None = None
    largest_turn = 500  # takes 15 to 20 ms, because their keys allow fewer jobs per command
    data_losses = 0  # always 0: the keys have no step number
    audit_parts: tuple[str, ...] = ("runs", "held")
    leftover_parts: tuple[str, ...] = ()
    schedules: ScheduleBook | None = None
    setting: Argument = ""  # a value for its part in Lua

    def __init_subclass__(cls) -> None:
        cls.can = CAPABILITIES[cls.name]

    def __init__(self, queue: str, *, max_dead: int = MAX_DEAD) -> None:
        if not isinstance(queue, str) or not _NAME.fullmatch(queue):
            raise InvalidName(
                f"{queue!r} is not a queue name for layout {self.name!r}. Use 1 to 128 characters, no spaces or braces"
            )
        self.queue = queue
        self.max_dead = max_dead
        self._keys = (*keys.ledger_keys(self.name, queue), *self.own_keys(), keys.ledger_key(self.name, queue, "held"))
        self._holders: set[str] = set()

    # -- for subclasses --------------------------------------------------------------------------

    @property
    def peek(self) -> tuple[str, ...] | None:
        """See `Layout`. Moving the next element of a list to its own place waits for one and changes nothing."""
        place = self.waits_at()
        return ("BLMOVE", place, place, "RIGHT", "RIGHT") if place else None

    def waits_at(self) -> str | None:
        """The list from whose right end jobs are taken, if the layout has one."""
        return None

    def own_keys(self) -> tuple[str, ...]:
        """The keys of the queue, in the order that its part in Lua expects."""
        raise NotImplementedError

    def encode(self, job: NewJob) -> bytes:
        """Convert a payload to the form that the other system stores."""
        return job.data

    def decode(self, data: bytes) -> bytes:
        """Extract the payload from the form that the other system stores."""
        return data

    def id_of(self, job: NewJob) -> str:
        """The id of a job in the queue."""
        return job.id

    @property
    def peer_cancel_channel(self) -> str | None:
        """The channel on which its peers publish cancellations, if they do."""
        return None

    def obey_cancel(self, holder: str, message: bytes) -> Call[bool]:
        """Cancel the runs of this holder that a message on `peer_cancel_channel` names."""
        raise NotImplementedError

    # -- putting jobs on the queue ---------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> Call[Enqueued]:
        args: list[Argument] = []
        for job in jobs:
            self.check(job)
            args += (job.id, self.encode(job), pack_change(job.change))
        return self._write("enqueue", "enqueue", args, _read_statuses)

    def push(self, job: NewJob) -> list[tuple[Argument, ...]]:
        self._cannot(Capability.PIPELINE, "enqueue in a pipeline")

    def check(self, job: NewJob) -> None:
        change = job.change
        if change.must_exist:
            self._need(Capability.UPDATE, "update")
        if not job.fresh:
            self._need(Capability.IDS, "enqueue with an id")
        if job.has_update_options:
            self._need(Capability.UPDATE, "enqueue that updates an existing job")
        if change.when is not None:
            self._need(Capability.RUN_TIME, "enqueue with a run time")
        if change.priority != IMPLIED.priority:
            self._need(Capability.PRIORITY, "enqueue with a priority")
        if change.limits_given:
            self._need(Capability.LIMITS, "enqueue with limits")
        for name in change.extras:
            self._need(Capability[name.upper()], f"enqueue with {name}")

    # -- one turn --------------------------------------------------------------------------------

    def turn(self, outcomes: Sequence[Outcome] = (), request: LeaseRequest = NO_LEASES) -> Call[Turn]:
        holder, want = request.holder, request.want
        if holder:
            self._holders.add(holder)
        sweep = not outcomes and not want
        args: list[Argument] = [
            holder or "",
            round(request.seconds * 1000),
            want,
            int(request.only_if_registered),
            int(sweep),
        ]
        for outcome in outcomes:
            args += (outcome.lease.fence, *self._pack_outcome(outcome))
        call = self._write("turn", "lease or settle", args, lambda reply: self._read_turn(reply, holder))
        if not want:
            return call
        return structs.replace(call, undo=self._release, when_in_order=() if outcomes else ("1",))

    def _pack_outcome(self, outcome: Outcome) -> tuple[Argument, ...]:
        """Pack the verb and its three arguments."""
        match outcome:
            case Completed(result=result, hand_overs=hand_overs):
                if hand_overs:
                    self._need(Capability.HAND_OVER, "hand a job over")
                if result is not None:
                    self._need(Capability.RESULTS, "keep a result")
                return ("complete", 0, 0, "")
            case Released():
                return ("release", 0, 0, "")
            case Retried(when=when, message=message):
                if when is not None and when != ("in", 0):
                    self._need(Capability.RUN_TIME, "retry at a time")
                return ("retry", *pack_when(when), message)
            case Snoozed(when=when, message=message):
                if Capability.RUN_TIME not in self.can:  # such a layout counts no failures: a retry is not charged
                    return ("retry", 0, 0, message)
                return ("snooze", *pack_when(when), message)
            case Failed(message=message):
                return ("fail", 0, 0, message)
            case Crashed(is_cause=True, message=message, task_max_stalls=task_max_stalls, delay_ms=delay_ms):
                return ("crash", task_max_stalls, delay_ms, message)
            case Crashed(message=message):
                return ("suspect", 0, 0, message)
            case Broken(message=message):
                return ("broken", 0, 0, message)
            case UnknownTask(task=task):
                return ("unknown", 0, 0, task)
            case NoFailureHandler():
                return ("unhandled", 0, 0, "")

    def _read_turn(self, reply: list[Any], holder: str | None) -> Turn:
        flags, base, ids, data, metas, wait, swept, lost = reply
        leases = tuple(
            self._read_lease(int(base) + place, id, payload, meta, holder)
            for place, (id, payload, meta) in enumerate(zip(ids, data, metas, strict=True), 1)
            if payload is not None  # the answer to a retry: this lease was lost meanwhile
        )
        settled = tuple(digit == ord("1") for digit in flags)
        return Turn(settled, leases, None if wait < 0 else wait / 1000, swept, lost=lost == 1)

    def _read_lease(self, fence: int, id: bytes, data: bytes, meta: bytes, holder: str | None) -> Lease:
        marks, priority, failures, stalls, limits, _ = read_meta(meta)
        name = id.decode(errors="replace")
        payload = data if marks & FAILURE_JOB else self.decode(data)
        return Lease(self.queue, name, payload, fence, priority, failures, stalls, limits, holder, marks)

    def _release(self, turn: Turn) -> Call[Turn] | None:
        return self.turn([Released(lease) for lease in turn.leases]) if turn.leases else None

    # -- while a job runs ------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        args: list[Argument] = [round(seconds * 1000), *(lease.fence for lease in leases)]
        return self._write("extend", "extend", args, _read_digits)

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        if failure_handler is not None:
            self._need(Capability.FAILURE_HANDLERS, "run a failure handler")
        self._holders.add(holder)
        limits = pack_limits(failure_handler) if failure_handler else b""
        args: list[Argument] = [holder, round(seconds * 1000), int(register), limits]
        return self._write("beat", "beat", args, lambda reply: Beat(reply == 1, 0))

    def held(self, holder: str, after: str | None, limit: int) -> Call[Page]:
        def read(reply: list[Any]) -> Page:
            following, rows = reply
            return Page(tuple(map(self._read_row, rows)), following.decode() or None)

        return self._read("held", "held", [holder, after or "", limit], read)

    def progress(self, lease: Lease, value: float) -> Call[bool]:
        self._need(Capability.PROGRESS, "progress")
        return self._write("progress", "progress", [lease.fence, repr(value)], lambda reply: reply == 1)

    # -- orders ----------------------------------------------------------------------------------

    def cancel(self, ids: Sequence[str], *, running: bool) -> Call[list[bool]]:
        self._need(Capability.CANCEL, "cancel")
        if running:
            self._need(Capability.CANCEL_RUNNING, "cancel a running job")
        return self._write("cancel", "cancel", [int(running), *ids], _read_digits)

    def revive(self, ids: Sequence[str]) -> Call[list[bool]]:
        self._need(Capability.DEAD, "revive a job")
        return self._write("revive", "revive", list(ids), _read_digits)

    def pause(self, paused: bool) -> Call[bool]:
        self._cannot(Capability.PAUSE, "pause" if paused else "resume")

    def purge(self, state: State | None) -> Call[tuple[int, int]]:
        if state in _KEEPING:
            self._need(_KEEPING[state], f"purge {state} jobs")
        what = state.value if state else "all"
        return self._write("purge", "purge", [what], lambda reply: (int(reply[0]), int(reply[1])))

    def audit(self, part: str, cursor: str | bytes, *, repair: bool = True) -> Call[AuditBatch]:
        if not repair:
            return self._read("inspect", "audit", [part, cursor], AuditBatch.read)
        return self._write("audit", "audit", [part, cursor], AuditBatch.read)

    # -- questions -------------------------------------------------------------------------------

    def counts(self) -> Call[Counts]:
        def read(reply: list[Any]) -> Counts:
            ready, scheduled, blocked, running, dead, broken, holders = map(int, reply)
            return Counts(ready, scheduled, blocked, running, dead, holders=holders, broken=broken)

        return self._read("counts", "counts", [], read)

    def get(self, id: str) -> Call[JobRecord | None]:
        self._need(Capability.IDS, "get a job by its id")
        return self._read("get", "get", [id], lambda row: self._read_row(row) if row else None)

    def tags(self, cursor: bytes) -> Call[tuple[bytes, dict[str, int]]]:
        self._need(Capability.TAGS, "count tags")
        raise AssertionError("no layout but the native one has tags")

    def page(self, state: State, cursor: str | None, limit: int, tag: str | None = None) -> Call[Page]:
        if tag is not None:
            self._need(Capability.TAGS, "list jobs by a tag")
        offset = _read_cursor(state, cursor) if cursor is not None else 0

        def read(rows: list[Any]) -> Page:
            following = _write_cursor(state, offset + limit) if len(rows) == limit else None
            return Page(tuple(map(self._read_row, rows)), following)

        return self._read("page", "jobs", [state.value, offset, limit], read)

    def _read_row(self, row: list[Any]) -> JobRecord:
        state, id, data, meta, run_at, holder, fence, progress, message, died_at, cancelled = row
        marks, priority, failures, stalls, limits, _ = read_meta(meta)
        dead = State(state.decode()) in (State.DEAD, State.BROKEN)
        return JobRecord(
            queue=self.queue,
            id=id.decode(errors="replace"),
            state=State(state.decode()),
            data=data if dead or marks & FAILURE_JOB else self.decode(data),
            priority=priority,
            run_at=float(run_at) / 1000 if run_at else None,
            failures=failures,
            stalls=stalls,
            limits=limits,
            progress=float(progress) if progress else None,
            holder=holder.decode(errors="replace") if holder and not holder.startswith(b".") else None,
            fence=int(fence) if fence else None,
            cancelled=cancelled == 1,
            message=message.decode(errors="replace") if message else None,
            reason=("broken" if state == b"broken" else "failed") if dead else None,
            died_at=float(died_at) / 1000 if died_at else None,
            marks=marks,
        )

    # -- waiters, holders and callers ------------------------------------------------------------

    def probe(self) -> Call[float | None] | None:
        return None

    def unregister_waiter(self, waiter: str) -> Call[bool]:
        return self._unregister([], [])  # waiters are not registered: all hear of new work

    def unregister_holder(self, holder: str) -> Call[bool]:
        self._holders.discard(holder)
        return self._unregister([holder], [])

    def unregister(self, callers: Sequence[str], may_arrive_late: Sequence[str] = ()) -> Call[bool] | None:
        # Lossy callers stay in the ledger, which drops them after a while.
        return self._unregister(sorted(self._holders), callers) if callers or self._holders else None

    def _unregister(self, holders: Sequence[str], callers: Sequence[str]) -> Call[bool]:
        args: list[Argument] = [len(holders), *holders, len(callers), *callers]
        return self._read("unregister", "unregister", args, lambda reply: reply == 1)

    def forget_names(self) -> None:
        self._holders.clear()

    def wake_channel(self, waiter: str) -> str:
        return keys.wake_channel(self.name, self.queue)

    @property
    def parked_channel(self) -> str | None:
        return None

    def cancel_channel(self, holder: str) -> str:
        return keys.cancel_channel(holder)

    # -- not supported by any of them ------------------------------------------------------------

    def unpark(self, tasks: Sequence[str]) -> Call[int]:
        raise AssertionError("only native queues park jobs")

    def outbox(self, limit: int, sent: Sequence[int] = (), after: int = 0) -> Call[list[Parcel]]:
        self._cannot(Capability.HAND_OVER, "hand a job over")

    def forward(self, source: str, parcels: Sequence[Parcel]) -> Call[int]:
        self._cannot(Capability.HAND_OVER, "hand a job over")

    def watch(self, id: str, seconds: float) -> Call[Sighting | None]:
        self._cannot(Capability.RESULTS, "watch a job")

    def remains(self, id: str) -> Call[Remains]:
        self._cannot(Capability.RESULTS, "read a result")

    def event_channel(self, id: str) -> str:
        self._cannot(Capability.RESULTS, "watch a job")

    def failure(self, lease: Lease) -> JobRecord:
        self._cannot(Capability.FAILURE_HANDLERS, "run a failure handler")

    # -- calls -----------------------------------------------------------------------------------

    def _need(self, capability: Capability, operation: str) -> None:
        if capability not in self.can:
            self._cannot(capability, operation)

    def _cannot(self, capability: Capability, operation: str) -> NoReturn:
        raise unsupported(self.name, self.queue, operation, capability)

    def _write(self, verb: str, about: str, args: Sequence[Argument], read: Callable[[Any], T]) -> Call[T]:
        return Call(script(self.name, verb), self._keys, (self.setting, *args), read, True, self._about(about))

    def _read(self, verb: str, about: str, args: Sequence[Argument], read: Callable[[Any], T]) -> Call[T]:
        return Call(script(self.name, verb), self._keys, (self.setting, *args), read, False, self._about(about))

    def _about(self, verb: str) -> str:
        return f"{verb} on queue {self.queue!r} ({self.name})"


def _read_statuses(reply: bytes) -> Enqueued:
    return Enqueued([_STATUSES[letter] for letter in reply.decode()], None)


def _read_digits(reply: bytes) -> list[bool]:
    return [digit != ord("0") for digit in reply]


def _write_cursor(state: State, offset: int) -> str:
    return base64.urlsafe_b64encode(f"{state}:{offset}".encode()).decode()


def _read_cursor(state: State, cursor: str) -> int:
    try:
        kind, _, offset = base64.b64decode(cursor, altchars=b"-_", validate=True).partition(b":")
    except (ValueError, TypeError):
        kind, offset = b"", b""
    if kind != state.encode() or not offset.isdigit():
        raise InvalidOption(f"invalid cursor for {state} jobs. Pass page.cursor of the page before, of the same state")
    return int(offset)
