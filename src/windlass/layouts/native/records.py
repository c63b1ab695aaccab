"""The packed records of the native layout, as the Lua scripts write and read them (see lua/shared/)."""

from __future__ import annotations

import base64
import re
import struct
from itertools import accumulate, pairwise
from typing import Any

from windlass.errors import InvalidOption
from windlass.job import PLAIN, Change, JobRecord, Limits, State
from windlass.layout import Parcel

_META = struct.Struct(">BBBIIIIQQQ")
_LEASE = struct.Struct(">BQQB")
_FENCE = struct.Struct(">Q")
_CHANGE = struct.Struct(">BBQIIQQH")
_GRAVE = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
_SHORT_LENGTH = struct.Struct(">H")
_PARCEL = struct.Struct(">QBHB")

PRIORITY_STEP = 2**49
_RUN_AT_MODES = {"never": 0, "always": 1, "later": 2, "earlier": 3}
_WHEN_KINDS = {"at": 1, "in": 2}
_REASONS = {1: "failed", 2: "stalled", 3: "broken", 4: "crashed"}
_PLAIN_LIMITS = Limits()


def pack_change(change: Change) -> bytes:
    """What an enqueue asks for; empty for a plain job, which is most of them."""
    if change is PLAIN:
        return b""
    flags = (
        change.update_data
        | _RUN_AT_MODES[change.update_run_at] << 1
        | change.update_max_failures << 3
        | change.update_max_stalls << 4
        | change.update_min_backoff << 5
        | change.update_max_backoff << 6
        | change.reset_counts << 7
        | change.update_priority << 8
        | change.keep << 9
        | change.must_exist << 10
        | change.limits_given << 11
    )
    kind, ms = pack_when(change.when)
    return _CHANGE.pack(
        change.priority,
        kind,
        ms,
        change.max_failures,
        change.max_stalls,
        change.min_backoff,
        change.max_backoff,
        flags,
    )


def pack_fence(fence: int) -> bytes:
    """A fence as it lies in a lease record."""
    return _FENCE.pack(fence & 0xFFFFFFFFFFFFFFFF)


def pack_when(when: tuple[str, int] | None) -> tuple[int, int]:
    """The kind of a time and its milliseconds."""
    return (_WHEN_KINDS[when[0]], when[1]) if when else (0, 0)


def pack_limits(limits: Limits) -> bytes:
    """A META record with these limits and nothing else."""
    backoffs = round(limits.min_backoff * 1000), round(limits.max_backoff * 1000)
    return _META.pack(2, 0, 5, limits.max_failures, limits.max_stalls, 0, 0, *backoffs, 0)


def read_meta(record: bytes | None) -> tuple[int, int, int, int, Limits]:
    """Marks, priority, failures, stalls and limits; the plain ones where there is no record."""
    if not record or len(record) != _META.size:
        return 0, 5, 0, 0, _PLAIN_LIMITS
    _, marks, priority, max_failures, max_stalls, failures, stalls, min_backoff, max_backoff, _ = _META.unpack(record)
    limits = Limits(max_failures, max_stalls, min_backoff / 1000, max_backoff / 1000)
    return marks, priority, failures, stalls, limits


def priority_of(score: bytes | str) -> int:
    """The priority in a ready score."""
    return int(float(score)) // PRIORITY_STEP


_POSITIONS = {
    State.READY: re.compile(rb"[0-9.e+]+"),
    State.SCHEDULED: re.compile(rb"[0-9.e+]+ .+", re.DOTALL),
    State.DEAD: re.compile(rb"[0-9.e+]+ .+", re.DOTALL),
    State.BROKEN: re.compile(rb"[0-9.e+]+ .+", re.DOTALL),
    State.LEASED: re.compile(rb"[^\0]+\0.+", re.DOTALL),
    State.BLOCKED: re.compile(rb"[^\0]+\0.+", re.DOTALL),
}


def write_cursor(state: State, position: bytes) -> str:
    """A position among the jobs of a state, as text that can be handed around."""
    return base64.urlsafe_b64encode(state.encode() + b":" + position).decode()


def read_cursor(state: State, cursor: str) -> bytes:
    """The position again; a cursor of another state, or none at all, is refused."""
    try:
        kind, _, position = base64.b64decode(cursor, altchars=b"-_", validate=True).partition(b":")
    except (ValueError, TypeError):
        kind, position = b"", b""
    if kind != state.encode() or not _POSITIONS[state].fullmatch(position):
        raise InvalidOption(f"that is no cursor for {state} jobs: pass what page.cursor was, for the same state")
    return position


def read_row(queue: str, row: list[Any]) -> JobRecord:
    """A job as the reading scripts describe it (see lua/shared/rows.lua)."""
    state, id, data = row[:3]
    name = State(state.decode())
    if name in (State.DEAD, State.BROKEN):
        return _read_grave(queue, id.decode(), data, name)
    if name is State.BLOCKED:
        return _read_blocked(queue, id.decode(), data)
    meta, score, run_at, lease, progress, note = row[3:]
    _, priority, failures, stalls, limits = read_meta(meta)
    holder = fence = None
    cancelled = False
    if score is not None:
        priority = priority_of(score)
    if lease is not None and len(lease) >= _LEASE.size:
        flag, fence, place, length = _LEASE.unpack_from(lease)
        cancelled = flag == 1
        priority = place // PRIORITY_STEP
        holder = lease[_LEASE.size : _LEASE.size + length].decode()
    return JobRecord(
        queue=queue,
        id=id.decode(errors="replace"),
        state=name,
        data=data or b"",
        priority=priority,
        run_at=None if run_at is None else float(run_at) / 1000,
        failures=failures,
        stalls=stalls,
        limits=limits,
        progress=_fraction(progress),
        holder=None if holder is None or holder.startswith(".") else holder,
        fence=fence,
        cancelled=cancelled,
        message=None if note is None else note.decode(errors="replace"),
    )


def _fraction(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # not written by us
        return None


def read_failure(queue: str, record: bytes) -> JobRecord:
    """The job that failed, from the data of the job that was made for its failure handler."""
    (length,) = _SHORT_LENGTH.unpack_from(record)
    id = record[_SHORT_LENGTH.size : _SHORT_LENGTH.size + length].decode(errors="replace")
    return _read_grave(queue, id, record[_SHORT_LENGTH.size + length :], State.DEAD)


def read_parcel(record: bytes) -> Parcel:
    """A job in the outbox."""
    seq, queue, id, change = _PARCEL.unpack_from(record)
    ends = list(accumulate((_PARCEL.size, queue, id, change)))
    parts = [record[start:end] for start, end in pairwise(ends)]
    return Parcel(seq, parts[0].decode(), parts[1].decode(), record[ends[-1] :], parts[2])


def _read_grave(queue: str, id: str, grave: bytes, state: State) -> JobRecord:
    if len(grave) < _GRAVE.size + _META.size + _LENGTH.size:  # not written by us
        return JobRecord(queue=queue, id=id, state=state, data=grave)
    reason, died_at = _GRAVE.unpack_from(grave)
    at = _GRAVE.size
    _, priority, failures, stalls, limits = read_meta(grave[at : at + _META.size])
    at += _META.size
    (length,) = _LENGTH.unpack_from(grave, at)
    at += _LENGTH.size
    return JobRecord(
        queue=queue,
        id=id,
        state=state,
        data=grave[at + length :],
        priority=priority,
        failures=failures,
        stalls=stalls,
        limits=limits,
        reason=_REASONS.get(reason),
        message=grave[at : at + length].decode(errors="replace"),
        died_at=died_at / 1000,
    )


def _read_blocked(queue: str, id: str, record: bytes) -> JobRecord:
    if len(record) < _CHANGE.size:  # not written by us
        return JobRecord(queue=queue, id=id, state=State.BLOCKED, data=record)
    priority, kind, ms, max_failures, max_stalls, min_backoff, max_backoff, _ = _CHANGE.unpack_from(record)
    return JobRecord(
        queue=queue,
        id=id,
        state=State.BLOCKED,
        data=record[_CHANGE.size :],
        priority=priority,
        run_at=ms / 1000 if kind else None,
        limits=Limits(max_failures, max_stalls, min_backoff / 1000, max_backoff / 1000),
    )
