"""What Python and the Lua scripts both know: packed records, their flags, versions, and times that both rely on.

All of it stands here only. `CONSTANTS` and `record_functions` give it to the scripts when they are loaded: a script
writes a constant's name in capitals, and a line `-- record META` in a script becomes the functions `pack_meta` and
`unpack_meta`. `windlass dev script turn` prints the result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import msgspec

from windlass.values.defaults import MAX_SNOOZES
from windlass.values.ending import Mark
from windlass.values.job import EXPIRES, FAILURE_JOB, LIMITED, NO_EXTRAS, PLAIN, SUSPECT, Change, Extras, Limits

# -- records ---------------------------------------------------------------------------------------

_CODES = {"B": "B", "I2": "H", "I4": "I", "I8": "Q"}  # unsigned, in Lua's struct and in Python's


class Record:
    """A packed record: whole numbers of fixed sizes, big-endian."""

    def __init__(self, **fields: str) -> None:
        self.fields = tuple(fields)
        self.lua_format = ">" + "".join(fields.values())
        self._struct = struct.Struct(">" + "".join(_CODES[code] for code in fields.values()))
        self.size = self._struct.size
        self.pack = self._struct.pack
        self.unpack_from = self._struct.unpack_from

    def offset(self, field: str) -> int:
        """The position of a field, from 0."""
        before = self.lua_format[1:].replace("I", "\0I").replace("B", "\0B").split("\0")[1:]
        return struct.calcsize(">" + "".join(_CODES[code] for code in before[: self.fields.index(field)]))


# A job's limits, counters and marks. Only a scheduled job uses priority and seq: a ready or leased job has both in its
# score. `extras_length` is that of what follows: a msgpack map of the options that few jobs have (`Extras`).
META = Record(
    version="B", marks="B", priority="B", max_failures="I4", max_stalls="I4", failures="I4", stalls="I4",
    min_backoff="I8", max_backoff="I8", seq="I8", extras_length="I2",
)  # fmt: skip
# The options of one enqueue. `when`: 0 now, 1 at `ms` since 1970, 2 `ms` from now. Then the extras, as in META.
CHANGE = Record(
    priority="B", when="B", ms="I8", max_failures="I4", max_stalls="I4", min_backoff="I8", max_backoff="I8",
    flags="I2", extras_length="I2",
)  # fmt: skip
# A lease: whether it is cancelled, its fence, the ready score to return to. Then the holder's name.
LEASE = Record(cancelled="B", fence="I8", score="I8", holder_length="B")
# A dead or broken job. Then its META record, the length of its message (I4), the message, the data.
DEAD_RECORD = Record(reason="B", died_at="I8")
# A job in an outbox. Then the queue, the id, the CHANGE record, the data.
PARCEL = Record(seq="I8", queue_length="B", id_length="I2", change_length="I2")
# The counters and the clock of a queue (see clock.lua). At most 64 bytes: a longer value makes the server store the
# whole hash in its larger encoding.
CORE = Record(version="B", marks="B", seq="I8", fence="I8", clock="I8", wall="I8", step="I8", epoch="I8")
# The clock evidence of a caller (see clock.lua). Then the id of its machine.
EVIDENCE = Record(now="I8", frame="I4", due="I8", belief="I4", uptime="I8")

RECORDS = {
    "META": META, "CHANGE": CHANGE, "LEASE": LEASE, "DEAD_RECORD": DEAD_RECORD, "PARCEL": PARCEL, "CORE": CORE,
    "EVIDENCE": EVIDENCE,
}  # fmt: skip

VERSION = 8  # of all keys of a native queue: raise it with each change of a key, a record, or the meaning of either
META_VERSION = 3


class CoreMark(IntEnum):
    """The marks of a queue."""

    PAUSED_MARK = 1
    FAILURE_HANDLER_MARK = 2


class ChangeFlag(IntEnum):
    """What an enqueue does to an existing job. `RUN_AT` has two bits: a `RunAtMode`."""

    UPDATE_DATA = 1
    RUN_AT = 2
    UPDATE_MAX_FAILURES = 8
    UPDATE_MAX_STALLS = 16
    UPDATE_MIN_BACKOFF = 32
    UPDATE_MAX_BACKOFF = 64
    RESET_COUNTS = 128
    UPDATE_PRIORITY = 256
    KEEP = 512
    MUST_EXIST = 1024
    LIMITS_GIVEN = 2048
    REPLACE_EXTRAS = 4096  # the job's extras are those of this enqueue; else only the given ones change
    KEEP_EXTRAS = 8192  # the extras of this enqueue are for a new job only


class RunAtMode(IntEnum):
    """How an enqueue changes the run time of an existing job."""

    NEVER = 0
    ALWAYS = 1
    IF_LATER = 2
    IF_EARLIER = 3


class Reason(IntEnum):
    """Why a job is dead or broken."""

    FAILED = 1
    STALLED = 2
    UNDECODABLE = 3
    CRASHED = 4


REASONS = {
    Reason.FAILED: "failed", Reason.STALLED: "stalled", Reason.UNDECODABLE: "broken", Reason.CRASHED: "crashed",
}  # fmt: skip
_RUN_AT_MODES = {
    "never": RunAtMode.NEVER,
    "always": RunAtMode.ALWAYS,
    "later": RunAtMode.IF_LATER,
    "earlier": RunAtMode.IF_EARLIER,
}
_WHEN_KINDS = {"at": 1, "in": 2}

# -- plain jobs ------------------------------------------------------------------------------------

# What a job has that has no META record, and an enqueue without a CHANGE record. This is part of the format: these
# numbers never change within a VERSION. If a default in values/defaults.py differs from them, new jobs get records
# with the new default, and queued jobs keep what they were enqueued with.
IMPLIED = Change(priority=5, max_failures=10, max_stalls=3, min_backoff=2_000, max_backoff=300_000)
IMPLIED_MAX_SNOOZES = 1_000
IMPLIED_LIMITS = Limits(
    IMPLIED.max_failures,
    IMPLIED.max_stalls,
    IMPLIED.min_backoff / 1000,
    IMPLIED.max_backoff / 1000,
    IMPLIED_MAX_SNOOZES,
)
_DEFAULT_EXTRAS = {} if MAX_SNOOZES == IMPLIED_MAX_SNOOZES else {"max_snoozes": MAX_SNOOZES}
# The options of a job that needs no record. Compared by identity, because most jobs have this very object.
NEEDS_NO_RECORD = PLAIN if PLAIN == IMPLIED and not _DEFAULT_EXTRAS else IMPLIED

# -- times and sizes -------------------------------------------------------------------------------

MAX_ITEMS = 1000  # that one call moves: keeps every script at a few milliseconds
MAX_REPLY_BYTES = 8 * 1024 * 1024  # payloads in one call or reply: keeps the server's buffers small
PRIORITY_STEP = 2**49  # a ready score is priority * PRIORITY_STEP + sequence: exact in a double
PARK_MS = 300_000  # until a parked job is tried again, if no worker asks for its task before
CALLER_TTL_MS = 600_000  # a queue remembers the last answer to a silent caller: callers retry for half of this at most
SOURCE_TTL_MS = 86_400_000  # the same for another queue's outbox: all its workers may be away for that long
# How long a mark is kept: a producer may enqueue a whole night's jobs before it asks for the first.
MARK_TTL_MS = 86_400_000
MAX_MARKS = 100_000  # that a queue keeps, of about 100 bytes each
MARK_CODES = 8  # a mark's score is (when it expires, in ms) * MARK_CODES + its number: exact in a double
# The times of a waiter, from the shortest to the longest.
MAX_POLL_MS = 15_000  # A waiter polls at least this often, however many there are: the others may have died.
SOON_MS = MAX_POLL_MS + 500  # A job that is due sooner wakes a waiter. The 500 ms are for the round trip of a poll.
MAX_PROBING_MS = 28_000  # A waiter probes for at most this long. Then it makes a turn, which renews its registration.
RENEW_BELOW_MS = 45_000  # A turn renews a registration that has less time left, so it outlasts the next two such turns.
REGISTERED_MS = 60_000  # A registration lasts this long.

_SHARED_NUMBERS = {
    "SUSPECT": SUSPECT,
    "FAILURE_JOB": FAILURE_JOB,
    "LIMITED": LIMITED,
    "EXPIRES": EXPIRES,
    "META_VERSION": META_VERSION,
    "IMPLIED_PRIORITY": IMPLIED.priority,
    "IMPLIED_MAX_FAILURES": IMPLIED.max_failures,
    "IMPLIED_MAX_STALLS": IMPLIED.max_stalls,
    "IMPLIED_MIN_BACKOFF": IMPLIED.min_backoff,
    "IMPLIED_MAX_BACKOFF": IMPLIED.max_backoff,
    "MAX_ITEMS": MAX_ITEMS,
    "MAX_REPLY_BYTES": MAX_REPLY_BYTES,
    "CALLER_TTL_MS": CALLER_TTL_MS,
}
_NATIVE_NUMBERS = {
    "VERSION": VERSION,
    "PRIORITY_STEP": PRIORITY_STEP,
    "PARK_MS": PARK_MS,
    "SOURCE_TTL_MS": SOURCE_TTL_MS,
    "MARK_TTL_MS": MARK_TTL_MS,
    "MAX_MARKS": MAX_MARKS,
    "MARK_CODES": MARK_CODES,
    "SOON_MS": SOON_MS,
    "REGISTERED_MS": REGISTERED_MS,
    "RENEW_BELOW_MS": RENEW_BELOW_MS,
    "FENCE_AT": LEASE.offset("fence") + 1,  # Lua counts from 1
    "CLOCK_AT": CORE.offset("clock") + 1,
    "MARKS_AT": META.offset("marks") + 1,
}

# -- packing in Python -----------------------------------------------------------------------------


class JobMeta(NamedTuple):
    """What Python reads from a META record."""

    marks: int
    priority: int
    failures: int
    stalls: int
    limits: Limits
    extras: Extras


NO_META = JobMeta(0, IMPLIED.priority, 0, 0, IMPLIED_LIMITS, NO_EXTRAS)
_decode_extras = msgspec.msgpack.Decoder(Extras).decode


def _flags(change: Change) -> int:
    return (
        change.update_data * ChangeFlag.UPDATE_DATA
        | _RUN_AT_MODES[change.update_run_at] * ChangeFlag.RUN_AT
        | change.update_max_failures * ChangeFlag.UPDATE_MAX_FAILURES
        | change.update_max_stalls * ChangeFlag.UPDATE_MAX_STALLS
        | change.update_min_backoff * ChangeFlag.UPDATE_MIN_BACKOFF
        | change.update_max_backoff * ChangeFlag.UPDATE_MAX_BACKOFF
        | change.reset_counts * ChangeFlag.RESET_COUNTS
        | change.update_priority * ChangeFlag.UPDATE_PRIORITY
        | change.keep * ChangeFlag.KEEP
        | change.must_exist * ChangeFlag.MUST_EXIST
        | change.limits_given * ChangeFlag.LIMITS_GIVEN
        | change.replace_extras * ChangeFlag.REPLACE_EXTRAS
        | change.keep_extras * ChangeFlag.KEEP_EXTRAS
    )


def pack_change(change: Change) -> bytes:
    """Pack the options of an enqueue; empty for a plain job, as most jobs are."""
    if change is NEEDS_NO_RECORD:
        return b""
    given = change.extras if change.must_exist else _DEFAULT_EXTRAS | change.extras
    extras = msgspec.msgpack.encode(given) if given else b""
    record = CHANGE.pack(
        change.priority,
        *pack_when(change.when),
        change.max_failures,
        change.max_stalls,
        change.min_backoff,
        change.max_backoff,
        _flags(change),
        len(extras),
    )
    return record + extras


def unpack_change(record: bytes) -> tuple[int, float | None, Limits, Extras, int]:
    """Read a stored CHANGE record: priority, run time in seconds, limits, extras, and the length of the record."""
    priority, when, ms, max_failures, max_stalls, min_backoff, max_backoff, _, length = CHANGE.unpack_from(record)
    end = CHANGE.size + length
    extras = _read_extras(record[CHANGE.size : end])
    limits = _limits_of(extras, max_failures, max_stalls, min_backoff, max_backoff)
    return priority, ms / 1000 if when else None, limits, extras, end


def pack_when(when: tuple[str, int] | None) -> tuple[int, int]:
    """Pack a time as its kind and milliseconds."""
    return (_WHEN_KINDS[when[0]], when[1]) if when else (0, 0)


def pack_limits(limits: Limits) -> bytes:
    """Pack a META record that has only these limits."""
    backoffs = round(limits.min_backoff * 1000), round(limits.max_backoff * 1000)
    counts = limits.max_failures, limits.max_stalls, 0, 0
    return META.pack(META_VERSION, 0, IMPLIED.priority, *counts, *backoffs, 0, 0)


def read_meta(record: bytes | None) -> JobMeta:
    """Read a META record; the implied values without one."""
    if not record or meta_length(record) != len(record):
        return NO_META
    _, marks, priority, max_failures, max_stalls, failures, stalls, min_backoff, max_backoff, _, extras = (
        META.unpack_from(record)
    )
    more = _read_extras(record[META.size :]) if extras else NO_EXTRAS
    limits = _limits_of(more, max_failures, max_stalls, min_backoff, max_backoff)
    return JobMeta(marks, priority, failures, stalls, limits, more)


def _limits_of(extras: Extras, max_failures: int, max_stalls: int, min_backoff: int, max_backoff: int) -> Limits:
    max_snoozes = IMPLIED_MAX_SNOOZES if extras.max_snoozes is None else extras.max_snoozes
    return Limits(max_failures, max_stalls, min_backoff / 1000, max_backoff / 1000, max_snoozes)


def meta_length(text: bytes, at: int = 0) -> int | None:
    """The length of the META record at a position; None if there is no whole record."""
    if len(text) < at + META.size:
        return None
    length = META.size + META.unpack_from(text, at)[-1]
    return length if at + length <= len(text) else None


def _read_extras(packed: bytes) -> Extras:
    try:
        return _decode_extras(packed) if packed else NO_EXTRAS
    except msgspec.DecodeError:  # not written by Windlass
        return NO_EXTRAS


# -- for the scripts -------------------------------------------------------------------------------


def record_functions(name: str) -> str:
    """The Lua functions that pack and unpack a record."""
    record, prefix = RECORDS[name], name.lower()
    names = ", ".join(f"r.{field}" for field in record.fields)
    return (
        f"local function unpack_{prefix}(text, at)\n"
        f"  local r = {{}}\n"
        f"  {names} = struct.unpack('{record.lua_format}', text, at or 1)\n"
        f"  return r\n"
        f"end\n"
        f"local function pack_{prefix}(r)\n"
        f"  return struct.pack('{record.lua_format}', {names})\n"
        f"end\n"
    )


def _constants(records: dict[str, Record], enums: Iterable[type[IntEnum]], numbers: dict[str, int]) -> dict[str, str]:
    found = {f"{name}_FORMAT": f"'{record.lua_format}'" for name, record in records.items()}
    found |= {f"{name}_SIZE": str(record.size) for name, record in records.items()}
    found |= {member.name: str(member.value) for kind in enums for member in kind}
    return found | {name: str(number) for name, number in numbers.items()}


# For the scripts of every layout, and for those of the native layout: name → the text that replaces it.
SHARED_CONSTANTS = _constants(
    {"META": META, "CHANGE": CHANGE},
    (ChangeFlag, RunAtMode),
    {**_SHARED_NUMBERS, "PLAIN_FLAGS": _flags(IMPLIED)},
)
CONSTANTS = SHARED_CONSTANTS | _constants(RECORDS, (CoreMark, Reason, Mark), _NATIVE_NUMBERS)
