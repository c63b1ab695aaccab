"""Schedules: when their ticks are, which ticks to fire, and how a schedule is stored.

A *tick* is a time at which a schedule enqueues its job, in milliseconds since 1970. All functions here are pure, so two
workers compute the same ticks, job ids and jitter for the same schedule, without talking to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from hashlib import sha256
from itertools import takewhile
from typing import Annotated, Any, Literal, TypedDict, Unpack, cast, get_args
from zlib import crc32
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Meta, Struct, structs

from windlass.errors import InvalidInput, InvalidOption
from windlass.values import defaults
from windlass.values.durations import LATEST_MS, Duration, Moment, milliseconds, run_time, seconds
from windlass.values.options import COMMON_JOB_OPTIONS, MAX_TAG_BYTES, MAX_TAGS, check_numbers, given_extras, nonempty
from windlass.values.redacted import Redacted
from windlass.values.validation import MAX_COUNT, MAX_PAYLOAD, check_choice, check_known, check_name, check_payload

CatchUp = Literal["none", "one", "all"]
Overlap = Literal["skip", "wait", "allow"]

GRACE_MS = 60_000  # a later tick counts as missed: a restart of the workers takes less
MAX_JITTER_S = 86_400.0
RECORD_VERSION = 1
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

# -- ticks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cron:
    """The times of a cron expression in a time zone: `Cron("*/5 9-17 * * MON-FRI", zone="Europe/Berlin")`.

    Clock changes are handled as in Debian's cron: a fixed time in the skipped hour fires when that hour is over, and a
    fixed time in the repeated hour fires the first time only. An expression with `*` in its minute or hour follows real
    time. An optional sixth field, before the others, is the second.
    """

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        zone = _zone(self.zone)
        if not isinstance(self.expression, str):
            raise InvalidOption(f"cron must be text such as '0 9 * * MON-FRI', not {self.expression!r}")
        try:
            first = next(CronSim(self._fields()[0], datetime(2024, 1, 1, tzinfo=zone)), None)
        except (CronSimError, AssertionError, TypeError, ValueError) as error:
            why = str(error) or "an impossible combination"
            raise InvalidOption(
                f"cron={self.expression!r} is not a cron expression ({why}): write minute, hour, day of month, month "
                "and day of week, like '0 9 * * MON-FRI'"
            ) from None
        if first is None:
            raise InvalidOption(f"cron={self.expression!r} never fires: there is no such day within 50 years")

    def ticks(self, after: int) -> Iterator[int]:
        """All ticks after this time."""
        expression, shift = self._fields()
        last = after
        try:
            start = datetime.fromtimestamp((after - shift) // 1000, _zone(self.zone))
            for moment in CronSim(expression, start):
                tick = int(moment.timestamp()) * 1000 + shift
                # If `after` is in the second pass of a repeated hour, CronSim returns the first pass again.
                if tick > last:
                    last = tick
                    yield tick
        except OverflowError:  # beyond the year 9999
            return

    def count(self, first: int, end: int, most: int) -> int:
        """How many ticks there are from `first` (included) to `end` (excluded), up to `most`. It iterates over them."""
        found = takewhile(lambda tick: tick < end, self.ticks(first - 1))
        return sum(1 for _ in zip(found, range(most), strict=False))

    def _fields(self) -> tuple[str, int]:
        """The expression without a fixed second, and that second in milliseconds, to be added to each tick.

        CronSim handles clock changes only for expressions of five fields.
        """
        text = self.expression.strip()
        fields = _NICKNAMES.get(text.lower(), text).split()
        if len(fields) == 6 and fields[0].isdecimal() and int(fields[0]) < 60:
            return " ".join(fields[1:]), int(fields[0]) * 1000
        return " ".join(fields), 0


@dataclass(frozen=True, slots=True, init=False)
class Every:
    """Every multiple of an interval since an anchor, by default the beginning of 1970: `Every("5m")`.

    It counts real time: `Every("1d")` fires at midnight UTC. For nine in the morning in Rome use cron.
    """

    interval: int
    anchor: int

    def __init__(self, interval: Duration, *, anchor: Moment | None = None) -> None:
        milliseconds(interval, "every", least=1.0)
        object.__setattr__(self, "interval", round(seconds(interval, "every") * 1000))
        _, since = run_time(anchor, None) or ("at", 0)
        object.__setattr__(self, "anchor", since if since > 1 else 0)

    @classmethod
    def of_milliseconds(cls, interval: int, anchor: int) -> Every:
        """Build from whole milliseconds, without rounding."""
        made = cls(1)
        object.__setattr__(made, "interval", interval)
        object.__setattr__(made, "anchor", anchor)
        return made

    def ticks(self, after: int) -> Iterator[int]:
        """All ticks after this time."""
        tick = self.anchor + max(0, (after - self.anchor) // self.interval + 1) * self.interval
        while tick <= LATEST_MS:
            yield tick
            tick += self.interval

    def count(self, first: int, end: int, most: int) -> int:
        """How many ticks there are from `first` (included) to `end` (excluded). Computed, so `most` is not needed."""
        begin = next(self.ticks(first - 1), end)
        return max(0, -((begin - end) // self.interval))


Timing = Cron | Every


def _zone(name: object) -> tzinfo:
    if name == "UTC":
        return UTC  # cronsim recognises this object as a zone without clock changes
    try:
        if isinstance(name, str):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidOption(
        f"there is no time zone {name!r} on this machine: use a name like 'Europe/Berlin' or 'UTC', "
        "or install the package tzdata if the system has no time zones"
    )


def next_after(timing: Timing, moment: int) -> int:
    """The first tick after this time; the end of the year 9999 if there is none."""
    return next(timing.ticks(moment), LATEST_MS)


class DueTicks(Struct, frozen=True):
    """What to do about a due schedule: the ticks to fire, the next tick, and how many ticks were missed."""

    fire: tuple[int, ...]
    next: int
    missed: int = 0


def due_ticks(timing: Timing, next_tick: int, now: int, catch_up: CatchUp, most: int = 1000) -> DueTicks:
    """Which ticks to fire at `now`, if `next_tick` is the next one. Fires `most` ticks; the rest stays due.

    "none" skips ticks that are more than a minute late, "one" fires the oldest for all of them, "all" fires each.
    """
    if next_tick > now:
        return DueTicks((), next_tick)
    if catch_up == "one":
        following = next_after(timing, now)
        return DueTicks((next_tick,), following, timing.count(next_tick + 1, following, most))
    first = next_tick
    if catch_up == "none" and next_tick < now - GRACE_MS:
        first = next_after(timing, now - GRACE_MS - 1)
    missed = timing.count(next_tick, first, most) if first > next_tick else 0
    fire: list[int] = []
    upcoming = timing.ticks(first)
    tick = first
    while tick <= now and len(fire) < most:
        fire.append(tick)
        tick = next(upcoming, LATEST_MS)
    return DueTicks(tuple(fire), tick, missed)


# -- schedules and their jobs ----------------------------------------------------------------------


_Milliseconds = Annotated[int, Meta(ge=0, le=LATEST_MS)]


class JobExtras(TypedDict, total=False):
    """The fields of `Extras` that the jobs of a schedule have."""

    tags: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=MAX_TAG_BYTES)], ...], Meta(max_length=MAX_TAGS)]
    expires: tuple[Literal["at", "in"], _Milliseconds]
    max_snoozes: Annotated[int, Meta(ge=0, le=MAX_COUNT)]


class JobSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The job options of a schedule. Times are in milliseconds."""

    priority: Annotated[int, Meta(ge=0, le=9)] = defaults.PRIORITY
    max_failures: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = defaults.MAX_FAILURES
    max_stalls: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = defaults.MAX_STALLS
    min_backoff: _Milliseconds = defaults.MIN_BACKOFF_MS
    max_backoff: _Milliseconds = defaults.MAX_BACKOFF_MS
    extras: JobExtras = {}


class Schedule(Redacted, frozen=True, kw_only=True):
    """A recurring job. `declared`: it comes from code; else it was added to the server by `Schedules.add`."""

    name: str
    queue: str
    data: bytes
    timing: Timing
    job: JobSettings = JobSettings()
    jitter: float = 0.0
    catch_up: CatchUp = "one"
    overlap: Overlap = "skip"
    paused: bool = False
    declared: bool = False

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r} on queue {self.queue!r}: {self.timing!r}>"

    def job_id(self, tick: int) -> str:
        """The id of a tick's job: the schedule's name, so that jobs cannot overlap, or with "allow" one per tick."""
        return f"{self.name}@{iso(tick)}" if self.overlap == "allow" else self.name

    def run_at(self, tick: int) -> int | None:
        """When a tick's job may run: the tick plus its jitter, which is the same on each call. `None` means at once."""
        if not self.jitter:
            return None
        drawn = int.from_bytes(sha256(f"{self.name}@{tick}".encode()).digest()[:6], "big")
        return tick + int(drawn * self.jitter * 1000) // 2**48


def iso(moment: int) -> str:
    """Format milliseconds since 1970 as ISO 8601, in UTC."""
    whole = datetime.fromtimestamp(moment // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{moment % 1000:03}Z" if moment % 1000 else f"{whole}Z"


class TimingOptions(TypedDict, total=False):
    """The timing options of a schedule: `cron` with `zone`, or `every` with `anchor`; see `Schedules.add`."""

    cron: str
    zone: str
    every: Duration
    anchor: Moment
    jitter: Duration
    catch_up: CatchUp
    overlap: Overlap


def new_schedule(
    name: str,
    queue: str,
    data: bytes,
    options: Mapping[str, Any] | None = None,
    *,
    declared: bool = False,
    max_payload: int = MAX_PAYLOAD,
    **timing: Unpack[TimingOptions],
) -> Schedule:
    """Check the options and build a schedule. `options` are those of its jobs."""
    check_known(timing, TimingOptions, "a schedule")
    catch_up = check_choice(timing.get("catch_up", "one"), "catch_up", get_args(CatchUp))
    overlap = check_choice(timing.get("overlap", "skip"), "overlap", get_args(Overlap))
    if catch_up == "all" and overlap != "allow":
        raise InvalidOption(
            f'catch_up="all" enqueues a job for each missed tick, but overlap="{overlap}" allows one job at a time: '
            'use overlap="allow", or catch_up="one"'
        )
    return Schedule(
        name=check_name(name, "schedule"),
        queue=check_name(queue),
        data=check_payload(data, max_payload),
        timing=_timing(timing),
        job=_job_settings(options or {}),
        jitter=milliseconds(timing.get("jitter", 0), "jitter", most=MAX_JITTER_S) / 1000,
        catch_up=cast(CatchUp, catch_up),
        overlap=cast(Overlap, overlap),
        declared=declared,
    )


def _timing(options: TimingOptions) -> Timing:
    if ("cron" in options) == ("every" in options):
        raise InvalidOption("a schedule needs either cron= or every=")
    if "cron" in options:
        if "anchor" in options:
            raise InvalidOption("anchor= belongs to every=: a cron expression has no anchor")
        return Cron(options["cron"], options.get("zone", "UTC"))
    if "zone" in options:
        raise InvalidOption("zone= belongs to cron=: an interval is the same in all zones")
    return Every(options["every"], anchor=options.get("anchor"))


def _job_settings(options: Mapping[str, Any]) -> JobSettings:
    for name in options:
        if name not in COMMON_JOB_OPTIONS:
            raise InvalidOption(
                f"the jobs of a schedule cannot have the option {name!r}: their ids and run times come from the "
                f"schedule. Use {', '.join(COMMON_JOB_OPTIONS)}"
            )
    extras = cast(JobExtras, nonempty(given_extras(options)))
    return JobSettings(**check_numbers(options), extras=extras)


# -- schedules in the server -----------------------------------------------------------------------


class _Written(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stored record of a schedule. `lua/schedules.lua` recognises a declared one by its first bytes."""

    version: int
    declared: bool
    data: bytes
    catch_up: CatchUp
    overlap: Overlap
    paused: bool = False
    cron: str | None = None
    zone: str | None = None
    every: Annotated[int, Meta(ge=1000, le=LATEST_MS)] | None = None
    anchor: _Milliseconds = 0
    jitter: _Milliseconds = 0
    job: JobSettings = JobSettings()
    sum: int = 0  # CRC-32 of the record with sum 0: the server's log has no checksum. A record written by hand has none


class _Version(Struct):
    version: int


class Unreadable(Struct, frozen=True):
    """A record that this version cannot read, with the reason. It is left as it is."""

    why: str


def write_schedule(schedule: Schedule) -> bytes:
    """Encode a schedule as JSON. Equal schedules give equal bytes."""
    timing = schedule.timing
    when: dict[str, Any] = (
        {"cron": timing.expression, "zone": timing.zone}
        if isinstance(timing, Cron)
        else {"every": timing.interval, "anchor": timing.anchor}
    )
    written = _Written(
        version=RECORD_VERSION,
        declared=schedule.declared,
        data=schedule.data,
        catch_up=schedule.catch_up,
        overlap=schedule.overlap,
        paused=schedule.paused,
        jitter=round(schedule.jitter * 1000),
        job=schedule.job,
        **when,
    )
    return msgspec.json.encode(structs.replace(written, sum=_sum_of(written)))


def _sum_of(written: _Written) -> int:
    return crc32(msgspec.json.encode(structs.replace(written, sum=0)))


def read_schedule(queue: str, name: str, record: bytes) -> Schedule | Unreadable:
    """Decode a record."""
    try:
        version = msgspec.json.decode(record, type=_Version).version
        if version != RECORD_VERSION:
            return Unreadable(
                f"written by another version of Windlass (format {version}; this one reads format {RECORD_VERSION})"
            )
        said = msgspec.json.decode(record, type=_Written)
        if said.sum and said.sum != _sum_of(said):
            return Unreadable("it is damaged (its checksum does not match): add or declare it again")
        timing: Timing
        if said.cron is not None:
            timing = Cron(said.cron, said.zone or "UTC")
        elif said.every is not None:
            timing = Every.of_milliseconds(said.every, said.anchor)
        else:
            return Unreadable("it has neither cron nor every")
        return Schedule(
            name=check_name(name, "schedule"),
            queue=queue,
            data=said.data,
            timing=timing,
            job=said.job,
            jitter=said.jitter / 1000,
            catch_up=said.catch_up,
            overlap=said.overlap,
            paused=said.paused,
            declared=said.declared,
        )
    except (msgspec.MsgspecError, InvalidInput, UnicodeDecodeError) as error:
        return Unreadable(str(error))


class StoredSchedule(Struct, frozen=True):
    """A schedule as stored in the server: its record, its next tick, and the counts of its ticks.

    For a sealed record, `sealed` is the stored form, `stale` says that the sealing key has changed since, and `refused`
    says why its seal was refused (there is no record then).
    """

    name: str
    record: bytes
    next_tick: int | None = None
    fired: int = 0
    dropped: int = 0
    missed: int = 0
    last_tick: int | None = None
    sealed: bytes | None = None
    stale: bool = False
    refused: str | None = None

    @property
    def stored(self) -> bytes:
        """The record byte for byte as it is stored."""
        return self.record if self.sealed is None else self.sealed

    def read(self, queue: str) -> Schedule | Unreadable:
        """Decode the record."""
        return read_schedule(queue, self.name, self.record) if self.refused is None else Unreadable(self.refused)


class StoredSchedules(Struct, frozen=True):
    """One page of a queue's schedules, at server time `now`. `next_tick` is the earliest one of the queue."""

    now: int
    rows: tuple[StoredSchedule, ...]
    cursor: str | None = None
    next_tick: int | None = None


class FireResult(StrEnum):
    """Whether ticks were fired, or why not."""

    FIRED = "fired"
    GONE = "gone"
    CHANGED = "changed"
    MOVED = "moved"
    EARLY = "early"


class Fired(Struct, frozen=True):
    """The reply to firing ticks: how many jobs were added, and how many ticks dropped because their job exists."""

    result: FireResult
    added: int
    dropped: int


class ScheduleRecord(Struct, frozen=True):
    """What the server knows of one schedule. Times are in seconds since 1970.

    `fired` ticks enqueued a job, `dropped` ticks found the previous job still there, `missed` ticks were too late. If
    `schedule` is `None`, `problem` says why its record could not be read.
    """

    name: str
    queue: str
    schedule: Schedule | None
    problem: str | None = None
    next_at: float | None = None
    last_at: float | None = None
    fired: int = 0
    dropped: int = 0
    missed: int = 0


def record_of(queue: str, row: StoredSchedule) -> ScheduleRecord:
    """Decode a stored schedule."""
    found = row.read(queue)
    return ScheduleRecord(
        name=row.name,
        queue=queue,
        schedule=found if isinstance(found, Schedule) else None,
        problem=found.why if isinstance(found, Unreadable) else None,
        next_at=None if row.next_tick is None else row.next_tick / 1000,
        last_at=None if row.last_tick is None else row.last_tick / 1000,
        fired=row.fired,
        dropped=row.dropped,
        missed=row.missed,
    )


def same_but_pause(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules are equal apart from `paused`."""
    return structs.replace(one, paused=False) == structs.replace(other, paused=False)
