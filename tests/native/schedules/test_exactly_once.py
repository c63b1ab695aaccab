"""Each tick is fired exactly once: a year with three tickers, and races, deaths and lost replies one by one."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any

import pytest
import redis

from tests.support.internals import run_flow
from tests.support.proxy import CUT_REQUEST, DROP_REPLY, DROP_REQUEST, HANG, FaultProxy, nth
from tests.support.schedules import (
    BERLIN,
    DAY,
    HOUR,
    MINUTE,
    NOON,
    Clock,
    Ticker,
    finish,
    milliseconds,
    seen,
    ticker_of,
    waiting,
)
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Queue, Status, Windlass
from windlass.storage.native import NativeLayout, scripts
from windlass.storage.native.keys import queue_key
from windlass.values.schedule import iso
from windlass.worker.runner.schedule_ticks import TickReport, tick

# -- the proof -------------------------------------------------------------------------------------


def test_a_year_of_ticks_with_three_tickers_each_fired_exactly_once(
    server: Server, app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock
) -> None:
    """More than 10,000 ticks in Berlin through both changes of the clocks; three tickers race for every one of them."""
    begin, end = datetime(2026, 1, 1, tzinfo=BERLIN), datetime(2027, 1, 1, tzinfo=BERLIN)
    at(begin - MINUTE)
    schedules = app.schedules
    for each, cron in (("hourly", "0 * * * *"), ("nightly", "30 2 * * *"), ("thrice", "0 1-3 * * *")):
        schedules.add(each, (name, b"x"), cron=cron, zone="Europe/Berlin", catch_up="all", overlap="allow")

    expected = {f"hourly@{iso(t)}" for t in range(milliseconds(begin), milliseconds(end), 3_600_000)}
    days = [date(2026, 1, 1) + timedelta(i) for i in range(365)]
    spring = date(2026, 3, 29)
    for day in days:
        local = [datetime(day.year, day.month, day.day, hour, tzinfo=BERLIN) for hour in range(5)]
        half_past_two = local[3] if day == spring else local[2] + timedelta(minutes=30)  # fold 0: the first pass
        expected.add(f"nightly@{iso(milliseconds(half_past_two))}")
        hours = {local[1], local[3]} if day == spring else {local[1], local[2], local[3]}
        expected |= {f"thrice@{iso(milliseconds(hour))}" for hour in hours}

    stop = threading.Event()
    fired: list[int] = []
    done: Counter[str] = Counter()
    failures: list[BaseException] = []

    def race() -> None:
        with Windlass(server.url) as own:
            ticks = ticker_of(own, name)
            enqueued = 0
            while not stop.is_set():
                enqueued += ticks().enqueued
            fired.append(enqueued)

    def consume() -> None:
        with Windlass(server.url) as own:
            queue = own.queue(name)
            while leases := queue.lease_many(1000) or not stop.is_set():
                if not isinstance(leases, bool):
                    done.update(lease.id for lease in leases)
                    assert all(queue.complete_many(leases))
                else:
                    stop.wait(0.01)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (race, race, race, consume)]
    for thread in threads:
        thread.start()
    chance = random.Random(2026)
    now = begin.astimezone(UTC)
    try:
        while now < end:
            # Sometimes minutes, sometimes days: a tick on time, and a late worker that catches up.
            now = min(end.astimezone(UTC), now + chance.choice([30 * MINUTE, 30 * MINUTE, 5 * HOUR, DAY, 4 * DAY]))
            at(now - timedelta(seconds=1))
            due = milliseconds(now) - 1000
            if chance.random() < 0.8 or now == end:
                wait_until(
                    lambda due=due: failures or client.zcount(queue_key(name, "ticks"), "-inf", due) == 0,  # type: ignore[misc]
                    "all ticks to be fired",
                    timeout=30,
                )
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    done.update(finish(raw_queue))
    while more := finish(raw_queue):
        done.update(more)
    assert set(done) == expected, "a tick was lost, or came at a wrong time"
    assert set(done.values()) == {1}, "a tick was fired twice"
    assert sum(fired) == len(expected) > 10_000
    records = schedules.list(name)
    assert sum(record.fired for record in records) == len(expected)
    assert [(record.dropped, record.missed) for record in records] == [(0, 0)] * 3
    print(f"{len(expected):,} ticks, fired by three tickers as {fired}, each once")


# -- races, deaths, lost replies -------------------------------------------------------------------


def test_two_tickers_that_read_the_same_make_one_job(
    server: Server, app: Windlass, raw_queue: Queue, name: str, at: Clock
) -> None:
    """Both have read the schedule before either fires: the second is told that it came too late, and does nothing."""
    app.schedules.add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    with Windlass(server.url) as other:
        ours, theirs = app.layout(name), other.layout(name)
        fire = ours.schedules.fire  # type: ignore[union-attr]

        def fire_after_the_other(*args: Any, **options: Any) -> Any:
            if not raced:
                raced.append(run_flow(other, tick(theirs, {})))
            return fire(*args, **options)

        raced: list[TickReport] = []
        ours.schedules.fire = fire_after_the_other  # type: ignore[union-attr, method-assign]
        report = run_flow(app, tick(ours, {}))
    assert raced[0].enqueued == 1
    assert (report.enqueued, report.dropped) == (0, 0)
    assert 3_590_000 < (report.next_in or 0) <= 3_600_000
    assert waiting(raw_queue) == ["s@2026-06-01T13:00:00Z"]


def test_a_ticker_that_is_killed_between_reading_and_firing_loses_nothing(
    server: Server, app: Windlass, raw_queue: Queue, name: str, at: Clock, ticks: Ticker
) -> None:
    app.schedules.add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    sha = scripts.TICK.sha.encode()
    with FaultProxy(server.address, faults=nth(HANG, only=lambda request: sha in request)) as proxy:
        program = (
            "from tests.support.internals import run_flow\nfrom windlass import Windlass\n"
            "from windlass.worker.runner.schedule_ticks import tick\n"
            f"app = Windlass({proxy.url!r})\n"
            f"run_flow(app, tick(app.layout({name!r}), {{}}))"
        )
        doomed = subprocess.Popen([sys.executable, "-c", program])
        try:
            wait_until(lambda: proxy.counts["hang"], "the doomed ticker to fire")
        finally:
            doomed.kill()
            doomed.wait()
    assert waiting(raw_queue) == []
    assert ticks().enqueued == 1
    assert waiting(raw_queue) == ["s@2026-06-01T13:00:00Z"]


@pytest.mark.parametrize("fault", [DROP_REPLY, DROP_REQUEST, CUT_REQUEST], ids=["reply lost", "lost", "cut"])
def test_a_tick_whose_reply_was_lost_is_repeated_without_harm(
    server: Server, app: Windlass, raw_queue: Queue, name: str, at: Clock, fault: Any
) -> None:
    app.schedules.add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    sha = scripts.TICK.sha.encode()
    with FaultProxy(server.address, faults=nth(fault, only=lambda request: sha in request)) as proxy:
        with Windlass(proxy.url, retry_for=10) as lossy:
            assert ticker_of(lossy, name)().enqueued == 1
        assert sum(proxy.counts[kind] for kind in ("drop_reply", "drop_request", "cut_request")) == 1
    assert waiting(raw_queue) == ["s@2026-06-01T13:00:00Z"]
    assert seen(app.schedules, "s", name).fired == 1


VERBS: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any, str], Any]]] = {
    "add": (lambda s, q: s.delete(q, "s"), lambda s, q: s.add("s", (q, b"x"), every="1h").name == "s"),
    "pause": (lambda s, q: None, lambda s, q: s.pause(q, "s")),
    "resume": (lambda s, q: s.pause(q, "s"), lambda s, q: s.resume(q, "s")),
    "delete": (lambda s, q: None, lambda s, q: s.delete(q, "s")),
    "run_now": (lambda s, q: None, lambda s, q: s.run_now(q, "s").status == Status.ADDED),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_reply_was_lost_answers_as_the_first_time(
    server: Server, app: Windlass, name: str, at: Clock, verb: str
) -> None:
    prepare, act = VERBS[verb]
    app.schedules.add("s", (name, b"x"), every="1h")
    shas = {scripts.SCHEDULE.sha.encode(), scripts.ENQUEUE.sha.encode()}
    with FaultProxy(server.address) as proxy, Windlass(proxy.url, retry_for=10) as lossy:
        schedules = lossy.schedules
        prepare(schedules, name)
        proxy.faults = nth(DROP_REPLY, only=lambda request: bool(shas & set(request)))
        assert act(schedules, name) is True
        assert proxy.counts["drop_reply"] == 1


def test_a_change_between_reading_and_firing_wins(
    app: Windlass, raw_queue: Queue, name: str, at: Clock, server: Server
) -> None:
    with Windlass(server.url) as other:
        for change in (
            lambda s: s.add("s", (name, b"new"), every="2h"),
            lambda s: s.pause(name, "s"),
            lambda s: s.delete(name, "s"),
        ):
            at(NOON)
            app.schedules.add("s", (name, b"old"), every="1h")
            at(NOON + HOUR)
            layout = NativeLayout(name)
            fire = layout.schedules.fire  # type: ignore[union-attr]
            changes = iter([change])

            def change_first(*args: Any, fire: Any = fire, changes: Any = changes, **options: Any) -> Any:
                for each in changes:
                    each(other.schedules)
                return fire(*args, **options)

            layout.schedules.fire = change_first  # type: ignore[union-attr, method-assign]
            assert run_flow(app, tick(layout, {})).enqueued == 0
            assert waiting(raw_queue) == []
            app.schedules.delete(name, "s")


def test_many_that_change_one_schedule_at_once_lose_no_change(app: Windlass, name: str, at: Clock) -> None:
    schedules = app.schedules
    schedules.add("s", (name, b"x"), every="1h")
    numbers = count()
    results: list[bool] = []

    def flip() -> None:
        for _ in range(20):
            verb = schedules.pause if next(numbers) % 2 else schedules.resume
            results.append(verb("s", name))

    threads = [threading.Thread(target=flip) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(results) == 60
    record = seen(schedules, "s", name)
    assert record.schedule is not None
    # Each change was applied to what was there: pauses and resumes alternate, and the last one is what is seen.
    assert sum(results) % 2 == record.schedule.paused
    assert (record.next_at is None) == record.schedule.paused


def test_a_clock_that_is_put_back_fires_nothing_early(
    app: Windlass, raw_queue: Queue, name: str, at: Clock, ticks: Ticker
) -> None:
    """Between reading and firing the time goes back by two hours: what was due is not due any more."""
    app.schedules.add("s", (name, b"x"), every="1h", overlap="allow")
    layout = app.layout(name)
    at(NOON + HOUR)
    fire = layout.schedules.fire  # type: ignore[union-attr]

    def after_a_jump(*args: Any, **options: Any) -> Any:
        at(NOON - HOUR)
        return fire(*args, **options)

    layout.schedules.fire = after_a_jump  # type: ignore[union-attr, method-assign]
    assert run_flow(app, tick(layout, {})) == TickReport(next_in=1000)
    layout.schedules.fire = fire  # type: ignore[union-attr, method-assign]
    assert ticks().enqueued == 0
    at(NOON + HOUR)
    assert ticks().enqueued == 1
    assert waiting(raw_queue) == ["s@2026-06-01T13:00:00Z"]
