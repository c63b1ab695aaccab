"""Parses durations and times as users write them, to milliseconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from windlass.errors import InvalidOption, InvalidTime

Duration = float | int | str | timedelta
Moment = float | int | datetime

LATEST_MS = 253_402_300_799_999  # the last millisecond of the year 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def seconds(value: Duration, what: str) -> float:
    """Parse a duration to seconds: a number, a timedelta, or text like "30s", "5m", "1h30m"."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        text = value.strip()
        parts = _DURATION.findall(text)
        if not parts or _DURATION.sub("", text).strip():
            raise InvalidOption(f'{what}={value!r} is not a duration: write "500ms", "30s", "5m", "1h30m" or a number')
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f'{what} must be a number of seconds, a timedelta or text like "5m", not {value!r}')
    length = _float(value)
    if not math.isfinite(length):
        raise InvalidOption(f"{what}={value!r} is not a duration: pass a finite number of seconds")
    return length


def milliseconds(value: Duration, what: str, *, least: float = 0.0, most: float = 10 * 365 * 86400.0) -> int:
    """Parse a duration to whole milliseconds. `least` and `most` are in seconds."""
    length = seconds(value, what)
    if not least <= length <= most:
        raise InvalidOption(f"{what}={value!r} is out of range: it must be from {least:g} to {most:,.0f} seconds")
    return math.ceil(length * 1000)


def run_time(run_at: Moment | None, delay: Duration | None) -> tuple[str, int] | None:
    """Parse the time when a job may run: `None` (now), ("at", ms since 1970) or ("in", ms from now)."""
    if run_at is not None and delay is not None:
        raise InvalidTime("pass run_at or delay, not both")
    if delay is not None:
        try:
            length = seconds(delay, "delay")
        except InvalidOption as error:
            raise InvalidTime(str(error)) from None
        if length * 1000 > LATEST_MS:
            raise InvalidTime(f"delay={delay!r} is beyond the year 9999")
        return ("in", math.ceil(length * 1000)) if length > 0 else None
    if run_at is None:
        return None
    return ("at", _moment(run_at))


def expiry(expires: Duration | datetime) -> tuple[str, int]:
    """Parse the time when a waiting job expires: ("at", ms since 1970) or ("in", ms from its run time)."""
    if isinstance(expires, datetime):
        return "at", _moment(expires, "expires")
    return "in", milliseconds(expires, "expires", least=0.001)


def _float(value: float) -> float:
    """Convert to float. An int too large for one becomes a float that is out of every range."""
    try:
        return float(value)
    except OverflowError:
        return 1e300 if value > 0 else -1e300


def _moment(run_at: Moment, what: str = "run_at") -> int:
    if isinstance(run_at, datetime):
        if run_at.tzinfo is None:
            raise InvalidTime(
                f"{what}={run_at!r} has no time zone, so the time is unknown: "
                "use datetime.now(timezone.utc) or .astimezone()"
            )
        return min(LATEST_MS, max(1, -((_EPOCH - run_at) // timedelta(milliseconds=1))))  # exact, rounded up
    if isinstance(run_at, bool) or not isinstance(run_at, int | float):
        raise InvalidTime(f"run_at must be seconds since 1970 or a datetime with a time zone, not {run_at!r}")
    run_at = _float(run_at)
    if not math.isfinite(run_at):
        raise InvalidTime(f"run_at={run_at!r} is not a valid time: pass seconds since 1970")
    if run_at * 1000 > LATEST_MS:
        raise InvalidTime(f"run_at={run_at!r} is beyond the year 9999 (it is seconds since 1970, not milliseconds)")
    return max(1, math.ceil(run_at * 1000))
