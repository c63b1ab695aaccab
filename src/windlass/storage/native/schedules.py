"""The schedules of a native queue: builds the calls of their three scripts and reads the replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, Protocol, TypeVar

from windlass.storage.formats import pack_change
from windlass.storage.native import scripts
from windlass.storage.native.records import add_sum
from windlass.storage.port import Argument, Call, Script
from windlass.values.job import Change
from windlass.values.schedule import Fired, FireResult, StoredSchedule, StoredSchedules

T = TypeVar("T")
_FIRE_RESULTS = {
    b"f": FireResult.FIRED,
    b"g": FireResult.GONE,
    b"c": FireResult.CHANGED,
    b"m": FireResult.MOVED,
    b"e": FireResult.EARLY,
}


class _MakesCalls(Protocol):
    """The layout's method that makes a call of a script."""

    def __call__(
        self, script: Script, verb: str, args: Sequence[Argument], read: Callable[[list[Any]], T]
    ) -> Call[T]: ...


class NativeSchedules:
    """The stored schedules of a native queue."""

    def __init__(self, ask: _MakesCalls, write: _MakesCalls, evidence: Callable[[], bytes]) -> None:
        self._ask = ask
        self._write = write
        self._evidence = evidence

    def named(self, names: Sequence[str]) -> Call[StoredSchedules]:
        return self._read("named", names)

    def page(self, cursor: str | None) -> Call[StoredSchedules]:
        return self._read("all", [cursor or "0"])

    def due(self, declared: Sequence[str], cursor: str | None) -> Call[StoredSchedules]:
        return self._read("due", [cursor or "0", *declared])

    def put(
        self, name: str, present: bytes | None, record: bytes, next_tick: int | None, *, keep_tick: bool
    ) -> Call[bool]:
        expected = "" if present is None else _fingerprint(present)
        upcoming = "" if next_tick is None else next_tick
        return self._change([name, expected, record, upcoming, int(keep_tick)])

    def delete(self, name: str) -> Call[bool]:
        return self._change([name, "*", "", "", 0])

    def fire(
        self,
        row: StoredSchedule,
        now: int,
        next_tick: int,
        jobs: Sequence[tuple[str, Change]],
        data: bytes,
        *,
        last_tick: int | None,
        missed: int,
        dropped: int,
    ) -> Call[Fired]:
        args: list[Argument] = [row.name, row.next_tick or 0, _fingerprint(row.stored), now, next_tick]
        args += (last_tick or 0, missed, dropped, add_sum(data))
        for id, change in jobs:
            args += (id, pack_change(change))
        return self._write(
            scripts.TICK, "tick", args, lambda reply: Fired(_FIRE_RESULTS[reply[1]], reply[2], reply[3] + dropped)
        )

    def _change(self, args: Sequence[Argument]) -> Call[bool]:
        return self._write(scripts.SCHEDULE, "schedule", args, lambda reply: bool(reply[1] == b"1"))

    def _read(self, what: str, args: Sequence[Argument]) -> Call[StoredSchedules]:
        return self._ask(scripts.SCHEDULES, "schedules", [self._evidence(), what, *args], _read_listing)


def _fingerprint(record: bytes) -> str:
    # Only distinguishes versions of a record; security does not depend on it.
    return sha1(record, usedforsecurity=False).hexdigest()


def _read_listing(reply: list[Any]) -> StoredSchedules:
    now, rows, cursor, ahead = reply
    return StoredSchedules(now, tuple(map(_read_row, rows)), cursor.decode() or None, _moment(ahead))


def _read_row(row: list[Any]) -> StoredSchedule:
    name, record, next_tick, fired, dropped, missed, last = row
    return StoredSchedule(
        name.decode(errors="replace"), record, _moment(next_tick), fired, dropped, missed, last or None
    )


def _moment(text: bytes) -> int | None:
    moment = float(text or "inf")
    return int(moment) if math.isfinite(moment) else None
