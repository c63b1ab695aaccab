"""Packed records that the Lua scripts of several layouts read and write."""

from __future__ import annotations

import struct

from windlass.values.job import PLAIN, Change, Limits

META = struct.Struct(">BBBIIIIQQQ")
CHANGE = struct.Struct(">BBQIIQQH")

_RUN_AT_MODES = {"never": 0, "always": 1, "later": 2, "earlier": 3}
_WHEN_KINDS = {"at": 1, "in": 2}
_PLAIN_LIMITS = Limits()


def pack_change(change: Change) -> bytes:
    """Pack the options of an enqueue; empty for a plain job, as most jobs are."""
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
    return CHANGE.pack(
        change.priority,
        kind,
        ms,
        change.max_failures,
        change.max_stalls,
        change.min_backoff,
        change.max_backoff,
        flags,
    )


def pack_when(when: tuple[str, int] | None) -> tuple[int, int]:
    """Pack a time as its kind and milliseconds."""
    return (_WHEN_KINDS[when[0]], when[1]) if when else (0, 0)


def pack_limits(limits: Limits) -> bytes:
    """Pack a META record that has only these limits."""
    backoffs = round(limits.min_backoff * 1000), round(limits.max_backoff * 1000)
    return META.pack(2, 0, 5, limits.max_failures, limits.max_stalls, 0, 0, *backoffs, 0)


def read_meta(record: bytes | None) -> tuple[int, int, int, int, Limits]:
    """Read marks, priority, failures, stalls and limits; the plain ones without a record."""
    if not record or len(record) != META.size:
        return 0, 5, 0, 0, _PLAIN_LIMITS
    _, marks, priority, max_failures, max_stalls, failures, stalls, min_backoff, max_backoff, _ = META.unpack(record)
    limits = Limits(max_failures, max_stalls, min_backoff / 1000, max_backoff / 1000)
    return marks, priority, failures, stalls, limits
