"""Which ticks become jobs: while the job before still runs, when a worker comes late, and with jitter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.schedules import HOUR, MINUTE, NOON, Clock, Ticker, finish, milliseconds, seen, waiting
from windlass import Queue, Windlass
from windlass.values.schedule import iso, new_schedule

# -- overlap ---------------------------------------------------------------------------------------


def test_skip_drops_a_tick_while_the_job_before_waits_or_runs(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    app.schedules.add("s", (name, b"x"), every="1h")
    at(NOON + HOUR)
    assert ticks().enqueued == 1
    at(NOON + 2 * HOUR)
    assert (ticks().enqueued, waiting(raw_queue)) == (0, ["s"])
    lease = raw_queue.lease(600)
    assert lease is not None
    at(NOON + 3 * HOUR)
    report = ticks()
    assert (report.enqueued, report.dropped) == (0, 1)
    assert waiting(raw_queue) == []
    assert raw_queue.complete(lease)
    assert waiting(raw_queue) == []
    at(NOON + 4 * HOUR)
    assert ticks().enqueued == 1
    record = seen(app.schedules, "s", name)
    assert (record.fired, record.dropped, record.missed) == (2, 2, 0)


def test_wait_keeps_one_more_behind_the_running_one(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    app.schedules.add("s", (name, b"x"), every="1h", overlap="wait")
    at(NOON + HOUR)
    assert ticks().enqueued == 1
    at(NOON + 2 * HOUR)
    assert ticks().dropped == 1  # one waits already
    lease = raw_queue.lease(600)
    assert lease is not None
    at(NOON + 3 * HOUR)
    assert ticks().enqueued == 1
    assert raw_queue.counts().blocked == 1
    at(NOON + 4 * HOUR)
    assert ticks().dropped == 1  # one is blocked already
    assert raw_queue.complete(lease)
    assert waiting(raw_queue) == ["s"]
    record = seen(app.schedules, "s", name)
    assert (record.fired, record.dropped) == (2, 2)


def test_wait_leaves_the_tries_of_the_running_job_alone(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    app.schedules.add("s", (name, b"x"), every="1h", overlap="wait")
    at(NOON + HOUR)
    ticks()
    lease = raw_queue.lease(600)
    assert lease is not None
    at(NOON + 2 * HOUR)
    ticks()
    assert raw_queue.retry(lease, run_at=1)
    again = raw_queue.lease()
    assert again is not None
    assert again.failures == 1
    assert waiting(raw_queue) == []


def test_allow_makes_every_tick_a_job(app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock) -> None:
    app.schedules.add("s", (name, b"x"), every="1h", overlap="allow")
    for hours in (1, 2, 3):
        at(NOON + hours * HOUR)
        assert ticks().enqueued == 1
    assert waiting(raw_queue) == [f"s@2026-06-01T{12 + hours}:00:00Z" for hours in (1, 2, 3)]


# -- catching up -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "overlap", "late", "jobs", "missed"),
    [
        ("none", "allow", 2 * MINUTE, [], 4),
        ("none", "allow", 30 * timedelta(seconds=1), ["16:00"], 3),
        ("one", "allow", 2 * MINUTE, ["13:00"], 3),
        ("all", "allow", 2 * MINUTE, ["13:00", "14:00", "15:00", "16:00"], 0),
    ],
)
def test_a_worker_that_comes_hours_late(
    app: Windlass,
    ticks: Ticker,
    raw_queue: Queue,
    name: str,
    at: Clock,
    catch_up: Any,
    overlap: Any,
    late: timedelta,
    jobs: list[str],
    missed: int,
) -> None:
    app.schedules.add("s", (name, b"x"), every="1h", catch_up=catch_up, overlap=overlap)
    at(NOON + 4 * HOUR + late)
    report = ticks()
    assert report.enqueued == len(jobs)
    assert report.next_in is not None
    assert report.next_in > 3_400_000
    assert waiting(raw_queue) == [f"s@2026-06-01T{hour}:00Z" for hour in jobs]
    record = seen(app.schedules, "s", name)
    assert record.missed == missed
    assert record.next_at == (NOON + 5 * HOUR).timestamp()


def test_a_thousand_missed_ticks_are_made_up_in_order(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    app.schedules.add("s", (name, b"x"), every="1m", catch_up="all", overlap="allow")
    at(NOON + 1000 * MINUTE)
    assert ticks().enqueued == 1000
    assert finish(raw_queue) == [f"s@{iso(milliseconds(NOON + i * MINUTE))}" for i in range(1, 1001)]


# -- jitter ----------------------------------------------------------------------------------------


def test_jitter_delays_the_job_and_not_the_tick(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    app.schedules.add("s", (name, b"x"), every="1h", jitter="30m", overlap="allow")
    planned = new_schedule("s", name, b"x", every="1h", jitter="30m", overlap="allow")
    at(NOON + HOUR)
    assert ticks().enqueued == 1
    (job,) = raw_queue.jobs("scheduled").jobs
    run_at = planned.run_at(milliseconds(NOON + HOUR))
    assert run_at is not None
    assert job.run_at == run_at / 1000
    assert raw_queue.lease() is None
    at(NOON + HOUR + 30 * MINUTE)
    assert raw_queue.lease() is not None
