"""The verbs of schedules, from the first tick of one to its end; bad input is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.support.schedules import BERLIN, HOUR, MINUTE, NOON, Clock, Ticker, seen
from windlass import Queue, Status, Windlass
from windlass.errors import InvalidInput, UnsupportedByLayout
from windlass.schedules import Schedules
from windlass.storage.native import NativeLayout
from windlass.values.schedule import Cron, new_schedule
from windlass.worker.runner.schedule_ticks import TickReport, tick

# -- the verbs -------------------------------------------------------------------------------------


def test_a_schedule_from_its_first_tick_to_its_end(
    schedules: Any, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    added = schedules.add("s", (name, b"data"), every="1h")
    assert added == seen(schedules, "s", name)
    assert added.schedule == new_schedule("s", name, b"data", every="1h")
    # The first tick is the next by the server's time; the clock of this machine says something else.
    assert added.next_at == (NOON + HOUR).timestamp()
    report = ticks()
    assert report.enqueued == 0
    assert 3_590_000 < (report.next_in or 0) <= 3_600_000

    at(NOON + HOUR)
    assert ticks().enqueued == 1
    assert ticks().enqueued == 0
    lease = raw_queue.lease()
    assert lease is not None
    assert (lease.id, lease.data) == ("s", b"data")
    raw_queue.complete(lease)
    record = seen(schedules, "s", name)
    assert (record.fired, record.last_at) == (1, (NOON + HOUR).timestamp())
    assert record.next_at == (NOON + 2 * HOUR).timestamp()

    assert schedules.delete(name, "s")
    assert not schedules.delete(name, "s")
    assert schedules.get(name, "s") is None
    assert ticks() == TickReport()


def test_options_of_the_jobs_are_honoured(app: Windlass, raw_queue: Queue, name: str, at: Clock, ticks: Ticker) -> None:
    @app.task(queue=name, max_failures=3)
    def report(day: int) -> None: ...

    app.schedules.add("s", report.using(priority=1, max_backoff="1m").call(7), every="1h")
    at(NOON + HOUR)
    ticks()
    lease = raw_queue.lease()
    assert lease is not None
    assert lease.data == report.call(7).data
    assert (lease.priority, lease.limits.max_failures, lease.limits.max_backoff) == (1, 3, 60.0)


def test_pause_and_resume(schedules: Any, ticks: Ticker, raw_queue: Queue, name: str, at: Clock) -> None:
    schedules.add("s", (name, b"x"), every="1h")
    assert schedules.pause(name, "s")
    assert not schedules.pause(name, "s")
    assert not schedules.pause(name, "none")
    paused = seen(schedules, "s", name)
    assert paused.next_at is None
    assert paused.schedule is not None
    assert paused.schedule.paused
    at(NOON + 5 * HOUR)
    assert ticks() == TickReport()
    # What is added anew stays paused.
    schedules.add("s", (name, b"y"), every="2h")
    assert ticks() == TickReport()
    assert schedules.resume(name, "s")
    assert not schedules.resume(name, "s")
    assert not schedules.resume(name, "none")
    assert seen(schedules, "s", name).next_at == (NOON + 6 * HOUR).timestamp()
    assert ticks().enqueued == 0
    at(NOON + 6 * HOUR)
    assert ticks().enqueued == 1


def test_run_now_does_not_move_the_next_tick(schedules: Any, ticks: Ticker, raw_queue: Queue, name: str) -> None:
    before = schedules.add("s", (name, b"x"), every="1h", jitter="30m")
    assert schedules.run_now(name, "s").status == Status.ADDED
    assert schedules.run_now(name, "s").status == Status.KEPT
    assert raw_queue.counts().ready == 1
    assert seen(schedules, "s", name) == before
    schedules.add("many", (name, b"x"), every="1h", overlap="allow")
    schedules.pause(name, "many")
    assert [schedules.run_now(name, "many").status for _ in range(2)] == [Status.ADDED] * 2
    assert schedules.run_now(name, "none") is None


def test_list_has_every_schedule_once(schedules: Any, name: str, at: Clock) -> None:
    assert schedules.list(name) == []
    names = [f"s{i:03}" for i in range(150)]
    for i, each in enumerate(names):
        schedules.add(each, (name, b"x" * 100), every=60 + i)
    schedules.pause(name, "s007")
    listed = schedules.list(name)
    assert [record.name for record in listed] == names
    assert [record.name for record in listed if record.next_at is None] == ["s007"]
    assert listed[5] == schedules.get(name, "s005")


def test_a_changed_timing_takes_effect_and_an_unchanged_one_keeps_its_next_tick(
    schedules: Any, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    schedules.add("s", (name, b"old"), every="1h")
    at(NOON + HOUR + MINUTE)
    # Another payload, the same timing: the tick that is due is not lost.
    assert schedules.add("s", (name, b"new"), every="1h").next_at == (NOON + HOUR).timestamp()
    assert ticks().enqueued == 1
    lease = raw_queue.lease()
    assert lease is not None
    assert lease.data == b"new"
    raw_queue.complete(lease)
    schedules.add("s", (name, b"new"), cron="30 * * * *")
    record = seen(schedules, "s", name)
    assert record.next_at == (NOON + HOUR + 30 * MINUTE).timestamp()
    assert record.fired == 1


def test_cron_is_kept_with_its_zone(schedules: Any, name: str, at: Clock) -> None:
    record = schedules.add("s", (name, b"x"), cron="0 9 * * *", zone="Europe/Berlin")
    assert record.schedule.timing == Cron("0 9 * * *", "Europe/Berlin")
    assert record.next_at == datetime(2026, 6, 2, 9, tzinfo=BERLIN).timestamp()


# -- bad input -------------------------------------------------------------------------------------


class Nowhere:
    """What runs no flow."""

    def run(self, flow: Any) -> Any:
        raise AssertionError("something was sent")

    arun = run


def test_bad_input_is_refused_before_anything_is_sent() -> None:
    schedules: Any = Schedules(NativeLayout, Nowhere())
    acts: list[Callable[[], Any]] = [
        lambda: schedules.add("no name", ("q", b""), every="1h"),
        lambda: schedules.add("s", ("no queue", b""), every="1h"),
        lambda: schedules.add("s", ("q", "text"), every="1h"),
        lambda: schedules.add("s", ("q",), every="1h"),
        lambda: schedules.add("s", b"data", every="1h"),
        lambda: schedules.add("s", ("q", b"")),
        lambda: schedules.add("s", ("q", b""), every="1h", cron="* * * * *"),
        lambda: schedules.add("s", ("q", b""), cron="* * *"),
        lambda: schedules.add("s", ("q", b""), cron="* * * * *", zone="Mars"),
        lambda: schedules.add("s", ("q", b""), every="1h", colour="red"),
        lambda: schedules.pause("no queue", "s"),
        lambda: schedules.resume("q", ""),
        lambda: schedules.run_now("q", None),
        lambda: schedules.delete("q", "s:counts"),
        lambda: schedules.get("", "s"),
        lambda: schedules.list("*"),
    ]
    for act in acts:
        with pytest.raises(InvalidInput):
            act()


def test_a_layout_without_schedules_says_so() -> None:
    layout = NativeLayout("q")
    layout.schedules = None
    schedules: Any = Schedules(lambda name: layout, Nowhere())
    with pytest.raises(UnsupportedByLayout, match="does not support: schedules"):
        schedules.add("s", ("q", b""), every="1h")
    with pytest.raises(UnsupportedByLayout):
        tick(layout, {})
