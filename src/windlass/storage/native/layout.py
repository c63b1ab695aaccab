"""The native layout: builds the calls of the Lua scripts and reads their replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from time import monotonic, time
from typing import Any, TypeGuard, TypeVar

from msgspec import structs

from windlass.errors import Undecodable
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.formats import NEEDS_NO_RECORD, NO_META, pack_change, pack_limits, pack_when, read_meta
from windlass.storage.native import keys, scripts
from windlass.storage.native.clock_view import ClockView
from windlass.storage.native.records import (
    add_sum,
    pack_fences,
    payload_of,
    read_cursor,
    read_failure,
    read_parcel,
    read_row,
    take_sum,
    write_cursor,
)
from windlass.storage.native.schedules import NativeSchedules
from windlass.storage.port import (
    NO_LEASES,
    Argument,
    AuditBatch,
    Beat,
    Call,
    Enqueued,
    LeaseRequest,
    Parcel,
    ScheduleBook,
    Script,
    Turn,
)
from windlass.values.ending import Mark, Remains, newer_result
from windlass.values.job import Counts, JobRecord, Lease, Limits, NewJob, Page, Result, Sighting, State, Status
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    Kept,
    NoFailureHandler,
    Outcome,
    Released,
    Retried,
    Snoozed,
    UnknownTask,
)
from windlass.values.validation import MAX_BROKEN, MAX_DEAD, check_name

T = TypeVar("T")
_NO_EPOCH = 0
_NOTHING_KEPT = Kept(b"", 0)
_STALE, _RELEASED_BROKEN = ord("0"), ord("2")  # digits of outcomes that were not simply accepted
_STATUSES = {
    ord("a"): Status.ADDED,
    ord("u"): Status.UPDATED,
    ord("k"): Status.KEPT,
    ord("b"): Status.BLOCKED,
    ord("m"): None,
}


class NativeLayout:
    """One queue in Windlass's own layout."""

    name = "native"
    can = CAPABILITIES[name]
    heartbeat: float | None = None
    largest_turn = 700  # takes a few milliseconds; with larger turns worker and server wait for each other
    peek: tuple[str, ...] | None = None
    peer_cancel_channel: str | None = None
    audit_parts: tuple[str, ...] = (
        "scheduled",
        "data",
        "ready",
        "leases",
        "held",
        "blocked",
        "meta",
        "progress",
        "last_errors",
        "dead",
        "broken",
        "dead_records",
        "ticks",
        "counters",
    )
    leftover_parts: tuple[str, ...] = ("idle", "state", "ended")

    def __init__(
        self, queue: str, *, max_dead: int = MAX_DEAD, max_broken: int = MAX_BROKEN, namespace: str = ""
    ) -> None:
        self.queue = check_name(queue)
        self.namespace = namespace
        self.max_dead = max_dead
        self.max_broken = max_broken
        self._keys: dict[str, tuple[str, ...]] = {}  # script name → its keys
        self._result_prefix = keys.result_key(queue, "", namespace)
        self._clock_view = ClockView()
        self.schedules: ScheduleBook | None = NativeSchedules(self._call, self._write, self._clock_view.evidence)
        # The latest epoch and step that the server reported: a lower step means that it has lost writes.
        self._reached: tuple[int, int] | None = None
        self.data_losses = 0
        # Names that this program registered in the server, to be removed when it leaves.
        self._waiters: set[str] = set()
        self._holders: set[str] = set()

    def check(self, job: NewJob) -> None:
        pass

    def id_of(self, job: NewJob) -> str:
        return job.id

    def enqueue(self, jobs: Sequence[NewJob]) -> Call[Enqueued]:
        args: list[Argument]
        if all(job.fresh and job.change is NEEDS_NO_RECORD for job in jobs):
            args = [2]
            for job in jobs:
                args += (job.id, add_sum(job.data))
            return self._write(scripts.ENQUEUE, "enqueue", args, self._read_enqueued)
        args = [int(all(job.fresh for job in jobs))]
        for job in jobs:
            args += (job.id, add_sum(job.data), pack_change(job.change))
        call = self._write(scripts.ENQUEUE, "enqueue", args, self._read_enqueued)
        # The script deletes kept results of earlier jobs with the same ids.
        named = [self._result_prefix + job.id for job in jobs if not job.fresh and not job.change.must_exist]
        if not named:
            return call
        return structs.replace(call, keys=(*call.keys, keys.queue_key(self.queue, "ended", self.namespace), *named))

    def push(self, job: NewJob) -> list[tuple[Argument, ...]]:
        return [("LPUSH", keys.queue_key(self.queue, "inbox", self.namespace), job.data)]

    def turn(self, outcomes: Sequence[Outcome] = (), request: LeaseRequest = NO_LEASES) -> Call[Turn]:
        holder, waiter = request.holder, request.waiter
        if holder:
            self._holders.add(holder)
        if waiter:
            self._waiters.add(waiter)
            if len(self._waiters) > 100:  # interrupted waits leave names behind; their registrations expire
                self._waiters.pop()
        completed: dict[str, int] = {}
        results: dict[str, Kept] = {}
        others: list[Outcome] = []
        plain: list[bool] = []
        for outcome in outcomes:
            # A second outcome of a job takes the general way, which finds that the lease has ended.
            lease = outcome.lease
            if _is_plain(outcome) and lease.id not in completed:
                plain.append(True)
                completed[lease.id] = lease.fence
                if outcome.result is not None:
                    results[lease.id] = outcome.result
            else:
                plain.append(False)
                others.append(outcome)
        args: list[Argument] = [
            holder or "",
            round(request.seconds * 1000),
            request.want,
            self.max_dead,
            waiter or "",
            int(request.only_if_registered),
            len(completed),
        ]
        args += completed
        args.append(pack_fences(completed.values()))
        args += _pack_results(completed, results)
        args.append(len(others))
        for outcome in others:
            args += _pack_outcome(outcome, self.max_broken)
        args += self._pack_hand_overs(others)
        if request.claims:
            args += (len(request.claims), *request.claims)
        call = self._write(scripts.TURN, "lease or settle", args, lambda reply: self._read_turn(reply, plain, holder))
        kept = [self._result_prefix + id for id, result in results.items() if result.ms]
        kept += [self._result_prefix + outcome.lease.id for outcome in others if _keeps_result(outcome)]
        if kept:
            call = structs.replace(call, keys=(*call.keys, *kept))
        # An empty turn writes nothing, but a retry ("!") always does: its first try may still arrive, and would then
        # lease jobs for a caller that already has its answer.
        return structs.replace(call, undo=self._release, when_repeated=("!",)) if request.want else call

    def probe(self) -> Call[float | None] | None:
        names = ("ready", "inbox", "outbox", "scheduled", "ticks", "held", "holders", "state")
        found = tuple(keys.queue_key(self.queue, name, self.namespace) for name in names)
        return Call(scripts.PROBE, found, self._clock_view.times(), _seconds, False, self._about("probe"))

    def _pack_hand_overs(self, outcomes: Sequence[Outcome]) -> list[Argument]:
        found = [(i, each) for i, o in enumerate(outcomes, 1) if isinstance(o, Completed) for each in o.hand_overs]
        args: list[Argument] = [len(found)]
        for parent, each in found:
            queue = "" if each.queue == self.queue else each.queue
            args += (parent, queue, each.job.id, add_sum(each.job.data), pack_change(each.job.change))
        return args

    def _release(self, turn: Turn) -> Call[Turn] | None:
        leases = [*turn.leases, *(outcome.lease for outcome in turn.undecodable)]  # the next worker refuses them again
        return self.turn([Released(lease) for lease in leases]) if leases else None

    def extend(self, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        args: list[Argument] = [round(seconds * 1000), len(leases)]
        args += [lease.id for lease in leases]
        args += [lease.fence for lease in leases]
        return self._write(scripts.EXTEND, "extend", args, _read_digits)

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        self._holders.add(holder)
        limits = pack_limits(failure_handler) if failure_handler else b""
        args: list[Argument] = [holder, round(seconds * 1000), int(register), limits]
        return self._write(scripts.BEAT, "beat", args, lambda reply: Beat(reply[1] == b"1", reply[2]))

    def held(self, holder: str, after: str | None, limit: int) -> Call[Page]:
        begin = holder.encode() + b"\0"
        return self.page(State.RUNNING, after or write_cursor(State.RUNNING, begin + b"\0"), limit)

    def unpark(self, tasks: Sequence[str]) -> Call[int]:
        return self._write(scripts.UNPARK, "unpark", tasks, lambda reply: int(reply[1]))

    def outbox(self, limit: int, sent: Sequence[int] = (), after: int = 0) -> Call[list[Parcel]]:
        args = [limit, after, *sent]
        return self._write(scripts.OUTBOX, "outbox", args, lambda reply: [read_parcel(r) for r in reply[1]])

    def forward(self, source: str, parcels: Sequence[Parcel]) -> Call[int]:
        args: list[Argument] = []
        for parcel in parcels:
            args += (parcel.seq, parcel.id, parcel.data, parcel.change)
        call = self._write(scripts.FORWARD, "forward", args, lambda reply: int(reply[1]))
        return structs.replace(call, operation=(f"from:{source}", parcels[-1].seq))

    def revive(self, ids: Sequence[str]) -> Call[list[bool]]:
        return self._write(scripts.REVIVE, "revive", ids, _read_digits)

    def watch(self, id: str, seconds: float) -> Call[Sighting | None]:
        return self._write(scripts.WATCH, "watch", [id, round(seconds * 1000)], self._read_sighting)

    def remains(self, id: str) -> Call[Remains]:
        def read(reply: list[Any]) -> Remains:
            left, code, on_queue, has_record, epoch, step, purged_at_step = reply
            mark = None if code < 0 else Mark(code)
            result = newer_result(_read_result(left) if left else None, mark)
            losses = self.data_losses
            return Remains(result, mark, on_queue == 1, has_record == 1, epoch, step, purged_at_step, losses)

        call = self._call(scripts.REMAINS, "result", [id], read)
        return structs.replace(call, keys=(*call.keys, self._result_prefix + id))

    def _read_sighting(self, reply: list[Any], wall: float | None = None) -> Sighting:
        *_, epoch, step = reply[0]
        return Sighting(epoch, step, self.data_losses, monotonic(), time(), wall)

    def _read_enqueued(self, reply: list[Any]) -> Enqueued:
        wall = reply[2] / 1000 if len(reply) > 2 else None
        return Enqueued([_STATUSES[letter] for letter in reply[1]], self._read_sighting(reply, wall))

    def failure(self, lease: Lease) -> JobRecord:
        return read_failure(self.queue, lease.data)

    def progress(self, lease: Lease, value: float) -> Call[bool]:
        return self._write(scripts.PROGRESS, "progress", [lease.id, lease.fence, repr(value)], _read_digit)

    def cancel(self, ids: Sequence[str], *, running: bool) -> Call[list[bool]]:
        return self._write(scripts.CANCEL, "cancel", [int(running), *ids], _read_digits)

    def pause(self, paused: bool) -> Call[bool]:
        return self._write(scripts.PAUSE, "pause" if paused else "resume", [int(paused)], _read_digit)

    def purge(self, state: State | None) -> Call[tuple[int, int]]:
        what = state.value if state else "all"
        return self._write(scripts.PURGE, "purge", [what], lambda reply: (int(reply[1]), int(reply[2])))

    def audit(self, part: str, cursor: str | bytes, *, repair: bool = True) -> Call[AuditBatch]:
        if not repair:
            return self._call(scripts.INSPECT, "audit", [part, cursor], AuditBatch.read)
        return self._write(scripts.AUDIT, "audit", [part, cursor], lambda reply: AuditBatch.read(reply[1:]))

    def unregister_waiter(self, waiter: str) -> Call[bool]:
        self._waiters.discard(waiter)
        return self._unregister([waiter], [], [])

    def unregister_holder(self, holder: str) -> Call[bool]:
        self._holders.discard(holder)
        return self._unregister([], [holder], [])

    def unregister(self, callers: Sequence[str], may_arrive_late: Sequence[str] = ()) -> Call[bool] | None:
        if not (callers or may_arrive_late or self._waiters or self._holders):
            return None
        return self._unregister(list(self._waiters), list(self._holders), callers, may_arrive_late)

    def forget_names(self) -> None:
        self._waiters.clear()
        self._holders.clear()

    def _unregister(
        self,
        waiters: Sequence[str],
        holders: Sequence[str],
        callers: Sequence[str],
        may_arrive_late: Sequence[str] = (),
    ) -> Call[bool]:
        args: list[Argument] = [
            len(waiters),
            *waiters,
            len(holders),
            *holders,
            len(callers),
            *callers,
            len(may_arrive_late),
            *may_arrive_late,
        ]
        return self._call(scripts.UNREGISTER, "unregister", args, lambda reply: reply == 1)

    def counts(self) -> Call[Counts]:
        names = Counts.__struct_fields__

        def read(reply: list[Any]) -> Counts:
            return Counts(
                *(value == b"1" if name == "paused" else value for name, value in zip(names, reply, strict=True))
            )

        return self._call(scripts.COUNTS, "counts", [], read)

    def get(self, id: str) -> Call[JobRecord | None]:
        return self._call(scripts.GET, "get", [id], lambda row: read_row(self.queue, row) if row else None)

    def page(self, state: State, cursor: str | None, limit: int, tag: str | None = None) -> Call[Page]:
        def read(reply: list[Any]) -> Page:
            following, rows = reply
            jobs = tuple(read_row(self.queue, row) for row in rows)
            return Page(jobs, write_cursor(state, following) if following else None)

        position = read_cursor(state, cursor) if cursor is not None else b""
        return self._call(scripts.PAGE, "jobs", [state.value, position, limit, tag or ""], read)

    def tags(self, cursor: bytes) -> Call[tuple[bytes, dict[str, int]]]:
        def read(reply: list[Any]) -> tuple[bytes, dict[str, int]]:
            following, *found = reply
            counts = zip(found[::2], found[1::2], strict=True)
            return following, {tag.decode(errors="replace"): count for tag, count in counts}

        return self._call(scripts.TAGS, "tags", [cursor], read)

    def wake_channel(self, waiter: str) -> str:
        return keys.wake_channel(waiter, self.namespace)

    @property
    def parked_channel(self) -> str | None:
        return keys.parked_channel(self.queue, self.namespace)

    def cancel_channel(self, holder: str) -> str:
        return keys.cancel_channel(holder, self.namespace)

    def obey_cancel(self, holder: str, message: bytes) -> Call[bool]:
        raise AssertionError("a native queue has no peers of another system")

    def event_channel(self, id: str) -> str:
        return keys.event_channel(self.queue, id, self.namespace)

    def _read_turn(self, reply: list[Any], plain: list[bool], holder: str | None) -> Turn:
        _, flags, base, ids, data, metas, priorities, wait, swept, outbox, tick, lost, waiting, *rare = reply
        dropped, expired, more, claimed_all, parked = rare[0] if rare else (0, (), 0, 0, 0)
        leases: list[Lease] = []
        undecodable: list[Broken] = []
        queue, fence = self.queue, int(base)
        if len(priorities) == 1:
            priorities = repeat(priorities[0])
        for id, stored, meta, priority in zip(ids, data, metas or repeat(None), priorities, strict=False):
            fence += 1
            if stored is None:
                continue  # the answer to a retry: this lease was lost meanwhile
            marks, _, failures, stalls, limits, extras = read_meta(meta) if meta else NO_META
            # An id that is not UTF-8 was not written by Windlass. Decoded with replacements it can run but not be
            # settled, so it stalls and ends as dead.
            name = str(id, "utf-8", "replace")
            try:
                payload = payload_of(marks, stored) if marks else take_sum(stored)
            except Undecodable as error:
                lease = Lease(queue, name, b"", fence, priority, failures, stalls, limits, holder, marks, extras)
                undecodable.append(Broken(lease, error.reason))
            else:
                leases.append(
                    Lease(queue, name, payload, fence, priority, failures, stalls, limits, holder, marks, extras)
                )
        return Turn(
            _in_order(flags, plain),
            tuple(leases),
            _seconds(wait),
            swept,
            outbox,
            _seconds(tick),
            lost == 1,
            waiting,
            tuple(undecodable),
            flags.count(_RELEASED_BROKEN),
            dropped,
            tuple(str(id, "utf-8", "replace") for id in expired),
            more == 1,
            claimed_all == 1,
            parked,
        )

    def _write(self, script: Script, verb: str, args: Sequence[Argument], read: Callable[[list[Any]], T]) -> Call[T]:
        """A call that changes the queue. It sends our clock evidence, and its reply has the queue's clock."""

        reached = self._reached

        def read_reply(reply: list[Any]) -> T:
            self._track_reading(reply[0], reached)
            return read(reply)

        sent = (self._clock_view.evidence(), *args)
        return Call(script, self._keys_of(script), sent, read_reply, True, self._about(verb))

    def _track_reading(self, reading: list[int], reached: tuple[int, int] | None) -> None:
        """Store the clock reading, and count a rewind if the server is behind `reached`, its step before the call."""
        step = (reading[4], reading[5])
        self._clock_view.record(reading, new_epoch=self._reached is not None and step[0] != self._reached[0])
        if step[0] == _NO_EPOCH and reached is None:
            return  # an empty queue
        if reached is not None and (step[0] != reached[0] or step[1] < reached[1]):
            self.data_losses += 1
            self._reached = step
        elif self._reached is None or step > self._reached:  # replies may arrive in another order
            self._reached = step

    def _call(self, script: Script, verb: str, args: Sequence[Argument], read: Callable[[Any], T]) -> Call[T]:
        return Call(script, self._keys_of(script), tuple(args), read, False, self._about(verb))

    def _keys_of(self, script: Script) -> tuple[str, ...]:
        """The keys of a script. The first one, `state`, is the same for all scripts."""
        found = self._keys.get(script.name)
        if found is None:
            found = self._keys[script.name] = keys.queue_keys(self.queue, script.keys, self.namespace)
        return found

    def _about(self, verb: str) -> str:
        return f"{verb} on queue {self.queue!r}"


def _is_plain(outcome: Outcome) -> TypeGuard[Completed]:
    """Whether an outcome is a completion without hand-overs: the script settles these in one batch."""
    return type(outcome) is Completed and not outcome.hand_overs


def _in_order(flags: bytes, plain: list[bool]) -> tuple[bool, ...]:
    """Whether each outcome was accepted, in the caller's order: the script answers the plain ones first."""
    accepted = [flag != _STALE for flag in flags]
    if all(plain):
        return tuple(accepted)
    first, second = iter(accepted), iter(accepted[sum(plain) :])
    return tuple(next(first if simple else second) for simple in plain)


def _keeps_result(outcome: Outcome) -> bool:
    """Whether an outcome that is settled by itself has a result to keep, or a failure."""
    match outcome:
        case Completed(result=result):
            return result is not None and result.ms > 0
        case Failed(keep_ms=ms):
            return ms > 0
        case Crashed(is_cause=is_cause, keep_ms=ms):
            return is_cause and ms > 0
    return False


def _pack_results(completed: Iterable[str], results: Mapping[str, Kept]) -> list[Argument]:
    """Pack the results of completed jobs as lua/turn.lua lists them: 0, or a lifetime and a result for each job."""
    if not results:
        return [0]
    kept = [results.get(id, _NOTHING_KEPT) for id in completed]
    return [1, pack_fences([each.ms for each in kept]), *[each.data for each in kept]]


def _pack_outcome(outcome: Outcome, max_broken: int) -> tuple[Argument, ...]:
    """Pack an outcome as lua/turn.lua lists them: id, fence, verb, the number of the verb's arguments, and these."""
    name = (outcome.lease.id, outcome.lease.fence)
    match outcome:
        case Completed(result=result):
            return (*name, "complete", 2, result.ms if result else 0, result.data if result else b"")
        case Released():
            return (*name, "release", 0)
        case Retried(when=when, message=message):
            return (*name, "retry", 3, *pack_when(when), message)
        case Snoozed(when=when, message=message):
            return (*name, "snooze", 3, *pack_when(when), message)
        case Failed(message=message, keep_ms=ms):
            return (*name, "fail", 2, ms, message)
        case Crashed(is_cause=True, message=message, task_max_stalls=task_max_stalls, keep_ms=ms, delay_ms=delay_ms):
            return (*name, "crash", 4, ms, task_max_stalls, delay_ms, message)
        case Crashed(message=message):
            return (*name, "suspect", 1, message)
        case Broken(message=message):
            return (*name, "broken", 2, max_broken, message)
        case UnknownTask(task=task):
            return (*name, "unknown", 1, task)
        case NoFailureHandler():
            return (*name, "unhandled", 0)


def _read_result(text: bytes) -> Result:
    """Read what a job left under its result's key."""
    return Result(text[:1] == b"d", text[1:], "crashed" if text[:1] == b"c" else None)


def _seconds(ms: int) -> float | None:
    return None if ms < 0 else ms / 1000


def _read_digits(reply: list[Any]) -> list[bool]:
    return [digit != ord("0") for digit in reply[1]]


def _read_digit(reply: list[Any]) -> bool:
    return bool(reply[1] != b"0")
