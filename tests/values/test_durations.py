"""Durations and moments, as people write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from windlass.errors import InvalidOption, InvalidTime
from windlass.values.durations import LATEST_MS, milliseconds, run_time, seconds


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (-3, -3.0),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
        ("1h30m", 5400.0),
        ("1h 30m 5s", 5405.0),
        (" 1.5 h ", 5400.0),
        ("1m500ms", 60.5),
        (timedelta(minutes=2, milliseconds=5), 120.005),
    ],
)
def test_a_duration(written: float | str | timedelta, meant: float) -> None:
    assert seconds(written, "delay") == pytest.approx(meant)


@pytest.mark.parametrize(
    "written", ["", " ", "5", "m", "5x", "5 minutes", "1:30", "-1s", "1h-30m", ".5s", "s5", "5,5s"]
)
def test_text_that_is_no_duration(written: str) -> None:
    with pytest.raises(InvalidOption, match=r"timeout=.* is not a duration: write"):
        seconds(written, "timeout")


def test_milliseconds_are_rounded_up() -> None:
    assert milliseconds(0.0001, "x") == 1
    assert milliseconds(1.0001, "x") == 1001
    assert milliseconds(1, "x") == 1000


def test_milliseconds_have_bounds() -> None:
    assert milliseconds(5, "x", least=5, most=5) == 5000
    for value in (4.999, 5.001, "6s", timedelta(days=1)):
        with pytest.raises(InvalidOption, match=r"x=.* out of range: it must be from 5 to 5 seconds"):
            milliseconds(value, "x", least=5, most=5)


def test_no_run_time_is_now() -> None:
    assert run_time(None, None) is None
    assert run_time(None, 0) is None
    assert run_time(None, -5) is None


def test_a_delay_is_from_now_and_rounded_up() -> None:
    assert run_time(None, 5) == ("in", 5000)
    assert run_time(None, "1m") == ("in", 60_000)
    assert run_time(None, 0.0001) == ("in", 1)


def test_a_moment_is_in_milliseconds_and_never_earlier() -> None:
    assert run_time(1_000_000.5, None) == ("at", 1_000_000_500)
    assert run_time(1_000_000.00001, None) == ("at", 1_000_000_001)
    assert run_time(datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), None) == ("at", 1_000_000_000_000)
    assert run_time(datetime(2001, 9, 9, 3, 46, 40, tzinfo=timezone(timedelta(hours=2))), None) == (
        "at",
        1_000_000_000_000,
    )


def test_a_moment_before_1970_is_the_first_there_is() -> None:
    assert run_time(-5, None) == run_time(0, None) == run_time(datetime(1, 1, 2, tzinfo=UTC), None) == ("at", 1)


def test_the_last_moment_is_at_the_end_of_the_year_9999() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert run_time(last, None) == ("at", LATEST_MS - 999)
    with pytest.raises(InvalidTime, match="beyond the year 9999"):
        run_time(last.timestamp() + 1, None)


def test_the_whole_of_datetime_can_be_used() -> None:
    assert run_time(datetime.max.replace(tzinfo=UTC), None) == ("at", LATEST_MS)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_no_time(number: float) -> None:
    with pytest.raises(InvalidTime, match="run_at"):
        run_time(number, None)
    with pytest.raises(InvalidTime, match="delay"):
        run_time(None, number)
    with pytest.raises(InvalidOption, match="wait"):
        seconds(number, "wait")


def test_a_whole_number_too_great_for_any_clock() -> None:
    with pytest.raises(InvalidTime, match="run_at"):
        run_time(10**400, None)
    with pytest.raises(InvalidTime, match="delay"):
        run_time(None, 10**400)
    with pytest.raises(InvalidOption, match="wait"):
        milliseconds(10**400, "wait")
