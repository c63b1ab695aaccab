"""The packed records of the native layout, as the Lua scripts write and read them (see lua/shared/)."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Collection
from hashlib import sha1
from itertools import accumulate, pairwise
from typing import Any
from zlib import crc32

from windlass.errors import InvalidOption, Undecodable
from windlass.storage.formats import (
    CHANGE,
    DEAD_RECORD,
    LEASE,
    PARCEL,
    PRIORITY_STEP,
    REASONS,
    meta_length,
    read_meta,
    unpack_change,
)
from windlass.storage.port import Parcel
from windlass.values.job import FAILURE_JOB, JobRecord, State

_LENGTH = struct.Struct(">I")
_SHORT_LENGTH = struct.Struct(">H")

_CRC, _SHA1 = b"c", b"s"  # the letter of each kind of checksum
_WITH_CRC = struct.Struct(">Ic")
_SUM = _WITH_CRC.size


def pack_fences(fences: Collection[int]) -> bytes:
    """Pack fences as lease records have them, one after the other."""
    return struct.pack(f">{len(fences)}Q", *(fence & 0xFFFFFFFFFFFFFFFF for fence in fences))


def add_sum(data: bytes) -> bytes:
    """Append the checksum with which payloads are stored, because the server's append-only file has none."""
    return data + _WITH_CRC.pack(crc32(data), _CRC)


def take_sum(stored: bytes) -> bytes:
    """Remove and verify the checksum (SHA-1 for inbox payloads). Raises `Undecodable` if the payload was damaged."""
    data = stored[:-_SUM]
    if stored[-_SUM:] == _WITH_CRC.pack(crc32(data), _CRC):
        return data
    if stored[-_SUM:] == sha1(data, usedforsecurity=False).digest()[:4] + _SHA1:
        return data
    raise Undecodable(
        "its data was damaged in the server: the checksum does not match. Check the server's disk and memory"
    )


def payload_of(marks: int, stored: bytes) -> bytes:
    """The data of a job. A failure job's data is a record that the scripts made; the failed job's data is its end."""
    if not marks & FAILURE_JOB:
        return take_sum(stored)
    found = failure_data_at(stored)
    if found is None:
        raise Undecodable("it is a failure job, and the record of the failed job is damaged")
    return stored[: found[1]] + take_sum(stored[found[1] :])


def priority_of(score: bytes | str) -> int:
    """The priority in a ready score."""
    return int(float(score)) // PRIORITY_STEP


_POSITIONS = {
    State.READY: re.compile(rb"[0-9.e+]+"),
    State.SCHEDULED: re.compile(rb"[0-9.e+]+ .+", re.DOTALL),
    State.DEAD: re.compile(rb"[0-9.e+]+ .+", re.DOTALL),
    State.BROKEN: re.compile(rb"[0-9.e+]+ .+", re.DOTALL),
    State.RUNNING: re.compile(rb"[^\0]+\0.+", re.DOTALL),
    State.BLOCKED: re.compile(rb"[^\0]+\0.+", re.DOTALL),
}


def write_cursor(state: State, position: bytes) -> str:
    """Encode a position among the jobs of a state as a text cursor."""
    return base64.urlsafe_b64encode(state.encode() + b":" + position).decode()


def read_cursor(state: State, cursor: str) -> bytes:
    """Decode a cursor. Raises `InvalidOption` for a cursor of another state or any other text."""
    try:
        kind, _, position = base64.b64decode(cursor, altchars=b"-_", validate=True).partition(b":")
    except (ValueError, TypeError):
        kind, position = b"", b""
    if kind != state.encode() or not _POSITIONS[state].fullmatch(position):
        raise InvalidOption(f"invalid cursor for {state} jobs. Pass page.cursor of the page before, of the same state")
    return position


def read_row(queue: str, row: list[Any]) -> JobRecord:
    """Read a row of the scripts that only read (see lua/shared/job_rows.lua)."""
    state, id, data = row[:3]
    name = State(state.decode())
    if name in (State.DEAD, State.BROKEN):
        return _read_dead_record(queue, id.decode(), data, name)
    if name is State.BLOCKED:
        return _read_blocked(queue, id.decode(), data)
    meta, score, run_at, lease, progress, note = row[3:]
    marks, priority, failures, stalls, limits, extras = read_meta(meta)
    holder = fence = None
    cancelled = False
    if score is not None:
        priority = priority_of(score)
    if lease is not None and len(lease) >= LEASE.size:
        flag, fence, place, length = LEASE.unpack_from(lease)
        cancelled = flag == 1
        priority = place // PRIORITY_STEP
        holder = lease[LEASE.size : LEASE.size + length].decode()
    data, damage = _try_payload(marks, data) if data is not None else (b"", None)
    return JobRecord(
        queue=queue,
        id=id.decode(errors="replace"),
        state=name,
        data=data,
        priority=priority,
        run_at=None if run_at is None else float(run_at) / 1000,
        failures=failures,
        stalls=stalls,
        limits=limits,
        extras=extras,
        progress=_fraction(progress),
        holder=None if holder is None or holder.startswith(".") else holder,
        fence=fence,
        cancelled=cancelled,
        message=_join_messages(None if note is None else note.decode(errors="replace"), damage),
        failed=_failed_job(queue, marks, data),
        marks=marks,
    )


def _try_payload(marks: int, stored: bytes) -> tuple[bytes, str | None]:
    """The data of a job for display, or empty data and what is wrong with it."""
    try:
        return payload_of(marks, stored), None
    except Undecodable as error:
        return b"", error.reason


def _join_messages(message: str | None, damage: str | None) -> str | None:
    return f"{message} ({damage})" if message and damage and damage not in message else damage or message


def _failed_job(queue: str, marks: int, data: bytes) -> JobRecord | None:
    """The failed job that a failure job reports to its handler; None for other jobs."""
    return read_failure(queue, data) if marks & FAILURE_JOB and data else None


def _fraction(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # not written by Windlass
        return None


def read_failure(queue: str, record: bytes) -> JobRecord:
    """The job that failed, from the data (`payload_of`) of its failure job."""
    (length,) = _SHORT_LENGTH.unpack_from(record)
    id = record[_SHORT_LENGTH.size : _SHORT_LENGTH.size + length].decode(errors="replace")
    return _read_dead_record(queue, id, record[_SHORT_LENGTH.size + length :], State.DEAD, stored=False)


def failure_data_at(record: bytes) -> tuple[str, int] | None:
    """The id of the failed job and the offset of its data in a failure record; None for any other bytes."""
    if len(record) < _SHORT_LENGTH.size:
        return None
    (length,) = _SHORT_LENGTH.unpack_from(record)
    dead_record = _SHORT_LENGTH.size + length
    meta = dead_record + DEAD_RECORD.size
    message = meta + (meta_length(record, meta) or len(record))
    if len(record) < message + _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(record, message)
    at = message + _LENGTH.size + size
    return (record[_SHORT_LENGTH.size : dead_record].decode(errors="replace"), at) if at <= len(record) else None


def read_parcel(record: bytes) -> Parcel:
    """Read a record of the outbox."""
    seq, queue, id, change = PARCEL.unpack_from(record)
    ends = list(accumulate((PARCEL.size, queue, id, change)))
    parts = [record[start:end] for start, end in pairwise(ends)]
    return Parcel(seq, parts[0].decode(), parts[1].decode(), record[ends[-1] :], parts[2])


def _read_dead_record(queue: str, id: str, dead_record: bytes, state: State, *, stored: bool = True) -> JobRecord:
    at = DEAD_RECORD.size
    size = meta_length(dead_record, at)
    if size is None or len(dead_record) < at + size + _LENGTH.size:  # not written by Windlass
        return JobRecord(queue=queue, id=id, state=state, data=dead_record)
    reason, died_at = DEAD_RECORD.unpack_from(dead_record)
    marks, priority, failures, stalls, limits, extras = read_meta(dead_record[at : at + size])
    at += size
    (length,) = _LENGTH.unpack_from(dead_record, at)
    at += _LENGTH.size
    data, damage = _try_payload(marks, dead_record[at + length :]) if stored else (dead_record[at + length :], None)
    return JobRecord(
        queue=queue,
        id=id,
        state=state,
        data=data,
        priority=priority,
        failures=failures,
        stalls=stalls,
        limits=limits,
        extras=extras,
        reason=REASONS.get(reason),
        message=_join_messages(dead_record[at : at + length].decode(errors="replace"), damage),
        died_at=died_at / 1000,
        failed=_failed_job(queue, marks, data) if stored else None,
        marks=marks,
    )


def _read_blocked(queue: str, id: str, record: bytes) -> JobRecord:
    if len(record) < CHANGE.size:  # not written by Windlass
        return JobRecord(queue=queue, id=id, state=State.BLOCKED, data=record)
    priority, run_at, limits, extras, end = unpack_change(record)
    data, damage = _try_payload(0, record[end:])
    return JobRecord(
        queue=queue,
        id=id,
        state=State.BLOCKED,
        data=data,
        message=damage,
        priority=priority,
        run_at=run_at,
        limits=limits,
        extras=extras,
    )
