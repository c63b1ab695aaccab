"""Schedules as plain values: when ticks come, also when clocks change; which of them are fired; what is refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.errors import InvalidInput, InvalidName, InvalidOption
from windlass.values.durations import LATEST_MS
from windlass.values.schedule import (
    GRACE_MS,
    CatchUp,
    Cron,
    DueTicks,
    Every,
    Schedule,
    Timing,
    Unreadable,
    due_ticks,
    iso,
    new_schedule,
    next_after,
    read_schedule,
    write_schedule,
)

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def berlin(text: str, *, fold: int = 0) -> int:
    """Milliseconds of a time on the clocks of Berlin."""
    return round(datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp() * 1000)


def utc(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def on_clocks(timing: Timing, after: int, count: int) -> list[str]:
    """The next ticks as the clocks of Berlin show them, with their offset from UTC in hours."""
    moments = [datetime.fromtimestamp(tick / 1000, BERLIN) for tick in islice(timing.ticks(after), count)]
    return [f"{m:%m-%d %H:%M} +{(m.utcoffset() or timedelta()).seconds // 3600}" for m in moments]


# -- cron ------------------------------------------------------------------------------------------


def test_a_cron_expression_is_read_by_the_clocks_of_its_zone() -> None:
    office = Cron("*/5 9-17 * * MON-FRI", zone="Europe/Berlin")
    assert next_after(office, berlin("2026-07-03T17:55")) == berlin("2026-07-06T09:00")  # from Friday to Monday
    assert next_after(office, berlin("2026-07-06T09:00")) == berlin("2026-07-06T09:05")
    assert next_after(Cron("0 9 * * *"), utc("2026-07-06T09:00")) == utc("2026-07-07T09:00")


def test_a_fixed_time_in_the_hour_that_is_left_out_comes_once_that_day() -> None:
    daily = Cron("30 2 * * *", zone="Europe/Berlin")
    assert on_clocks(daily, berlin("2026-03-28T00:00"), 3) == ["03-28 02:30 +1", "03-29 03:00 +2", "03-30 02:30 +2"]


def test_a_fixed_time_in_the_hour_that_comes_twice_comes_the_first_time_only() -> None:
    daily = Cron("30 2 * * *", zone="Europe/Berlin")
    assert on_clocks(daily, berlin("2026-10-24T12:00"), 2) == ["10-25 02:30 +2", "10-26 02:30 +1"]


def test_a_look_in_the_second_pass_of_an_hour_does_not_name_the_first_again() -> None:
    daily = Cron("30 2 * * *", zone="Europe/Berlin")
    second_pass = berlin("2026-10-25T02:10", fold=1)
    assert next_after(daily, second_pass) == berlin("2026-10-26T02:30")


def test_frequent_ones_go_by_real_time() -> None:
    half_hours = Cron("*/30 * * * *", zone="Europe/Berlin")
    assert on_clocks(half_hours, berlin("2026-10-25T01:30"), 5) == [
        "10-25 02:00 +2",
        "10-25 02:30 +2",
        "10-25 02:00 +1",
        "10-25 02:30 +1",
        "10-25 03:00 +1",
    ]
    assert on_clocks(half_hours, berlin("2026-03-29T01:30"), 2) == ["03-29 03:00 +2", "03-29 03:30 +2"]
    year = list(islice(half_hours.ticks(berlin("2026-01-01T00:00") - 1), 365 * 48))
    assert year == list(range(berlin("2026-01-01T00:00"), berlin("2027-01-01T00:00"), 30 * MINUTE))


def test_a_fixed_second_is_as_careful_as_none() -> None:
    precise = Cron("15 30 2 * * *", zone="Europe/Berlin")
    plain = Cron("30 2 * * *", zone="Europe/Berlin")
    start = berlin("2026-01-01T00:00")
    assert [t - 15_000 for t in islice(precise.ticks(start), 365)] == list(islice(plain.ticks(start), 365))
    assert next_after(Cron("*/20 * * * * *"), utc("2026-01-01T00:00:21")) == utc("2026-01-01T00:00:40")


def test_nicknames() -> None:
    assert next_after(Cron("@daily", "Europe/Berlin"), berlin("2026-05-05T12:00")) == berlin("2026-05-06T00:00")
    assert next_after(Cron("@Hourly"), utc("2026-05-05T12:00")) == utc("2026-05-05T13:00")


@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "0,30 1-3 * * *", "*/30 * * * *", "0 * * * *", "15 */2 * * *", "0 0 * * SUN"]
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Africa/Cairo", "Asia/Kathmandu"])
def test_going_on_is_the_same_as_beginning_anew(expression: str, zone: str) -> None:
    """What a worker computes does not depend on where it began: in the days around the changes of the clocks."""
    timing = Cron(expression, zone)
    for day in ("03-06", "03-27", "04-22", "10-23", "10-28"):
        start = utc(f"2026-{day}T00:00")
        ticks = list(takewhile(lambda tick, end=start + 5 * DAY: tick < end, timing.ticks(start)))  # type: ignore[misc]
        for before, tick in pairwise(ticks):
            assert before < tick
            for moment in (before, (before + tick) // 2, tick - 1):
                assert next_after(timing, moment) == tick


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("61 * * * *", "Bad minute"),
        ("* * *", "Wrong number of fields"),
        ("", "Wrong number of fields"),
        ("@never", "Wrong number of fields"),
        ("* 25 * * *", "Bad hour"),
        ("* * * * FOO", "Bad day-of-week"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("99 0 0 * * *", "Bad second"),
        ("* * * * MON#1/2", "not a cron expression"),
        ("* * */20 * 1L", "never fires"),
        (None, "must be text"),
    ],
)
def test_a_bad_expression_is_refused_with_what_is_wrong(expression: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Cron(expression)


@given(st.text(alphabet="0123456789*/,-#LWMONJAN @²", max_size=20))
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        Cron(text)
    except InvalidOption:
        pass


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "../etc/passwd", "/etc/passwd", "", "a\0b", None, 5])
def test_an_unknown_zone_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidOption, match="no time zone"):
        Cron("* * * * *", zone)


def test_after_the_last_year_nothing_comes() -> None:
    for timing in (Cron("* * * * *"), Cron("0 0 1 1 *", "Europe/Berlin"), Every(1)):
        assert next_after(timing, LATEST_MS - 1) == LATEST_MS
        assert next_after(timing, LATEST_MS) == LATEST_MS


# -- every -----------------------------------------------------------------------------------------


def test_an_interval_ticks_at_its_multiples() -> None:
    assert next_after(Every("5m"), utc("2026-01-01T12:03")) == utc("2026-01-01T12:05")
    assert next_after(Every("5m"), utc("2026-01-01T12:05")) == utc("2026-01-01T12:10")
    assert next_after(Every(timedelta(days=1)), utc("2026-01-01T12:03")) == utc("2026-01-02T00:00")


def test_an_anchor_moves_the_ticks_and_is_the_first_of_them() -> None:
    timing = Every("1d", anchor=datetime(2026, 1, 5, 9, tzinfo=UTC))
    assert next_after(timing, utc("2026-01-01T00:00")) == utc("2026-01-05T09:00")
    assert next_after(timing, utc("2026-01-05T09:00")) == utc("2026-01-06T09:00")
    assert Every("1d", anchor=0) == Every("1d") == Every("1d", anchor=datetime(1970, 1, 1, tzinfo=UTC))


@given(st.integers(1000, 10**9), st.integers(0, 2 * 10**12), st.integers(0, 2 * 10**12), st.integers(0, 10**10))
def test_ticks_of_an_interval_are_counted_without_going_through_them(
    interval: int, anchor: int, first: int, length: int
) -> None:
    timing = Every.of_milliseconds(interval, anchor)
    end = first + length % (300 * interval)
    assert timing.count(first, end, 10) == sum(1 for _ in takewhile(lambda tick: tick < end, timing.ticks(first - 1)))


@pytest.mark.parametrize("interval", [0, 0.5, -1, "0s", "soon", None, True, float("nan"), "20y", 10**12])
def test_a_bad_interval_is_refused(interval: Any) -> None:
    with pytest.raises(InvalidOption):
        Every(interval)


def test_a_bad_anchor_is_refused() -> None:
    for anchor in ("noon", datetime(2026, 1, 1), float("inf")):
        with pytest.raises(InvalidInput):
            Every("5m", anchor=anchor)  # type: ignore[arg-type]


# -- which ticks are fired -------------------------------------------------------------------------

NOON = utc("2026-01-01T12:00")
HOURLY = (Cron("0 * * * *"), Every("1h"))


@pytest.mark.parametrize("timing", HOURLY)
@pytest.mark.parametrize("catch_up", get_args(CatchUp))
def test_a_tick_on_time_is_fired(timing: Timing, catch_up: CatchUp) -> None:
    assert due_ticks(timing, NOON, NOON - 1, catch_up) == DueTicks((), NOON)
    for late in (0, 1, GRACE_MS):
        assert due_ticks(timing, NOON, NOON + late, catch_up) == DueTicks((NOON,), NOON + HOUR)


@pytest.mark.parametrize("timing", HOURLY)
def test_catching_up_after_three_hours(timing: Timing) -> None:
    late = NOON + 3 * HOUR + 2 * MINUTE
    assert due_ticks(timing, NOON, late, "none") == DueTicks((), NOON + 4 * HOUR, missed=4)
    assert due_ticks(timing, NOON, late, "one") == DueTicks((NOON,), NOON + 4 * HOUR, missed=3)
    assert due_ticks(timing, NOON, late, "all") == DueTicks(tuple(NOON + h * HOUR for h in range(4)), NOON + 4 * HOUR)
    # The last of them is within the grace.
    assert due_ticks(timing, NOON, NOON + 3 * HOUR, "none") == DueTicks((NOON + 3 * HOUR,), NOON + 4 * HOUR, missed=3)


def test_a_long_absence_is_made_up_in_steps() -> None:
    fired: list[int] = []
    upcoming, now = NOON, NOON + 10 * HOUR
    while upcoming <= now:
        plan = due_ticks(HOURLY[0], upcoming, now, "all", most=4)
        assert len(plan.fire) <= 4
        fired += plan.fire
        upcoming = plan.next
    assert fired == [NOON + h * HOUR for h in range(11)]


@settings(max_examples=60)
@given(
    st.sampled_from([Every("1m"), Every("7s", anchor=NOON / 1000 + 3), Cron("*/7 * * * *", "Europe/Berlin")]),
    st.sampled_from(get_args(CatchUp)),
    st.lists(st.integers(1, 20 * MINUTE), min_size=1, max_size=12),
)
def test_however_late_one_looks_no_tick_is_fired_twice_or_out_of_turn(
    timing: Timing, catch_up: CatchUp, steps: list[int]
) -> None:
    start = berlin("2026-10-25T01:30")
    now, upcoming = start, next_after(timing, start)
    fired: list[int] = []
    missed = 0
    for step in steps:
        now += step
        while upcoming <= now:
            plan = due_ticks(timing, upcoming, now, catch_up, most=5)
            assert plan.next > upcoming
            fired, missed, upcoming = [*fired, *plan.fire], missed + plan.missed, plan.next
    ticks = list(takewhile(lambda tick: tick <= now, timing.ticks(start)))
    assert fired == sorted(set(fired))
    assert set(fired) <= set(ticks)
    if catch_up == "all":
        assert fired == ticks
    elif isinstance(timing, Every):  # those of cron are counted only up to a bound
        assert len(fired) + missed == len(ticks)
    if catch_up == "one" and ticks:
        assert fired[0] == ticks[0]


# -- what a tick asks for --------------------------------------------------------------------------


def made(**said: Any) -> Schedule:
    return new_schedule("nightly", "reports", b"data", **({"every": "1h"} | said))


def test_the_id_of_a_tick() -> None:
    assert made().job_id(NOON) == made(overlap="wait").job_id(NOON) == "nightly"
    assert made(overlap="allow").job_id(NOON) == "nightly@2026-01-01T12:00:00Z"
    assert iso(NOON + 7) == "2026-01-01T12:00:00.007Z"


def test_jitter_is_spread_and_always_the_same() -> None:
    schedule = made(jitter="10m")
    first = [schedule.run_at(NOON + i * HOUR) or 0 for i in range(200)]
    assert first == [schedule.run_at(NOON + i * HOUR) for i in range(200)]
    parts = [(run_at - NOON - i * HOUR) / (10 * MINUTE) for i, run_at in enumerate(first)]
    assert all(0 <= part < 1 for part in parts)
    assert min(parts) < 0.1
    assert max(parts) > 0.9
    other = new_schedule("hourly", "reports", b"data", every="1h", jitter="10m")
    assert other.run_at(NOON) != schedule.run_at(NOON)
    assert made().run_at(NOON) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"every": "1h", "cron": "* * * * *"}, "either cron= or every="),
        ({}, "either cron= or every="),
        ({"every": "1h", "zone": "Europe/Berlin"}, "zone= belongs to cron="),
        ({"cron": "* * * * *", "anchor": 5}, "anchor= belongs to every="),
        ({"every": "1h", "jitter": -1}, "jitter"),
        ({"every": "1h", "jitter": "2d"}, "jitter"),
        ({"every": "1h", "catch_up": "some"}, "catch_up must be one of"),
        ({"every": "1h", "overlap": True}, "overlap must be one of"),
        ({"every": "1h", "catch_up": "all"}, 'use overlap="allow"'),
        ({"every": "1h", "often": True}, "has no option 'often'"),
        ({"every": "1h", "options": {"id": "x"}}, "come from the schedule"),
        ({"every": "1h", "options": {"delay": 5}}, "come from the schedule"),
        ({"every": "1h", "options": {"priority": 10}}, "priority must be"),
        ({"every": "1h", "options": {"max_backoff": "long"}}, "max_backoff"),
    ],
)
def test_what_makes_no_schedule_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        new_schedule("nightly", "reports", b"data", **said)


def test_names_are_names() -> None:
    with pytest.raises(InvalidName, match="not a schedule name"):
        new_schedule("every night", "reports", b"", every="1h")
    with pytest.raises(InvalidName, match="not a queue name"):
        new_schedule("nightly", "re:ports", b"", every="1h")
    with pytest.raises(InvalidInput, match="must be bytes"):
        new_schedule("nightly", "reports", "text", every="1h")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="limit"):
        new_schedule("nightly", "reports", b"long", every="1h", max_payload=3)


# -- how it is written down ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        made(),
        made(every="16.1s", anchor=1234567890.123, jitter="16.1s", overlap="wait", declared=True),
        made(every=1.001, overlap="allow", catch_up="all"),
        new_schedule(
            "n",
            "q",
            bytes(range(256)),
            {"priority": 0, "max_failures": 0, "min_backoff": "1m"},
            cron="@daily",
            zone="Europe/Berlin",
        ),
        made(options={"tags": ["eu", "import"], "expires": "10m"}),
        made(options={"tags": [], "expires": None}),
        made(options={"expires": datetime(2030, 1, 1, tzinfo=UTC)}),
    ],
)
def test_a_schedule_comes_back_as_it_was_written(schedule: Schedule) -> None:
    record = write_schedule(schedule)
    assert read_schedule(schedule.queue, schedule.name, record) == schedule
    assert record.startswith(b'{"version":1,"declared":%s,' % (b"true" if schedule.declared else b"false"))


def by_hand(schedule: Schedule) -> bytes:
    """A record as somebody may write it who knows nothing of its checksum."""
    return re.sub(rb',"sum":\d+', b"", write_schedule(schedule))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b'{"version":2,"anything":{}}', "another version"),
        (b"", "truncated"),
        (b"\xff\xfe", ""),
        (b"[]", "object"),
        (b'{"version":1}', "missing"),
        (by_hand(made()).replace(b'"every":3600000', b'"every":5'), ">= 1000"),
        (by_hand(made()).replace(b'"every":3600000', b'"anchor":5'), "neither cron nor every"),
        (by_hand(made()).replace(b'"every":3600000', b'"cron":"often"'), "not a cron expression"),
        (by_hand(made()).replace(b'"every":3600000', b'"every":3600000,"new":1'), "new"),
        (by_hand(made()).replace(b'"skip"', b'"dance"'), "dance"),
        (by_hand(made(options={"priority": 1})).replace(b'"priority":1', b'"priority":99'), "<= 9"),
        (by_hand(made(options={"tags": ["x"]})).replace(b'["x"]', b'"x"'), "$.job.extras.tags"),
        (by_hand(made(options={"tags": ["x"]})).replace(b'["x"]', b"[1]"), "$.job.extras.tags"),
        (by_hand(made(options={"expires": 1})).replace(b'["in",1000]', b"5"), "$.job.extras.expires"),
    ],
)
def test_a_record_that_is_not_ours_is_shown_as_such(record: bytes, why: str) -> None:
    found = read_schedule("q", "n", record)
    assert isinstance(found, Unreadable)
    assert why in found.why


@given(st.binary(max_size=60))
def test_no_record_is_more_than_unreadable(record: bytes) -> None:
    assert isinstance(read_schedule("q", "n", record), Unreadable)
