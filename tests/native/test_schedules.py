"""Schedules on a real server: no tick is fired twice and none is lost, whoever ticks, dies or changes things meanwhile.

Time is the queue's own: `at` sets what its clock says of run times, so a year passes in seconds.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis

from tests.support.faces import FACES
from tests.support.proxy import CUT_REQUEST, DROP_REPLY, DROP_REQUEST, HANG, FaultProxy, nth
from tests.support.servers import Server, wait_until
from windlass import Queue, Status, Windlass
from windlass.errors import InvalidInput, InvalidOption, KeyConflict, QueueFull, UnsupportedByLayout
from windlass.layout import Layout
from windlass.layouts.native import NativeLayout, scripts
from windlass.layouts.native.keys import queue_key
from windlass.schedule import Cron, Every, Schedule, ScheduleRecord, iso, new_schedule, write_schedule
from windlass.scheduler import Schedules, TickReport, declare, tick

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
Clock = Callable[[datetime], None]
Ticker = Callable[..., TickReport]


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def layout_of(app: Windlass, queue: str) -> Layout:
    return app.queue(queue)._layout


def schedules_of(app: Windlass) -> Schedules:
    return Schedules(lambda name: layout_of(app, name), app)


def ticker_of(app: Windlass, queue: str) -> Ticker:
    """Lets this app tick, as a worker that declares these schedules."""
    return lambda *declared: app.run(tick(layout_of(app, queue), {each.name: each for each in declared}))


@pytest.fixture
def at(client: redis.Redis, raw_queue: Queue) -> Clock:
    """Sets the time by which the queue compares run times and ticks; from there it goes on by itself."""
    raw_queue.pause()
    raw_queue.resume()  # now it has a clock

    def set_clock(moment: datetime) -> None:
        seconds, micros = client.time()
        skew = seconds * 1000 + micros // 1000 - milliseconds(moment)
        with client.pipeline() as together:
            together.hset(queue_key(raw_queue.name, "state"), mapping={"skew": skew, "skew_until": 2**52})
            together.hincrby(
                queue_key(raw_queue.name, "state"), "belief", 1
            )  # what anybody heard before does not count
            together.execute()

    set_clock(NOON)
    return set_clock


@pytest.fixture(params=FACES)
def schedules(app: Windlass, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The verbs, blocking and awaited."""
    face = request.param(schedules_of(app))
    yield face
    face.close()


@pytest.fixture
def name(raw_queue: Queue) -> str:
    """The name of the queue."""
    return raw_queue.name


@pytest.fixture
def ticks(app: Windlass, name: str, at: Clock) -> Ticker:
    """One worker's tick."""
    return ticker_of(app, name)


def waiting(queue: Queue) -> list[str]:
    """The ids of all jobs that wait, in their order."""
    return [job.id for state in ("ready", "scheduled", "blocked") for job in queue.all_jobs(state)]


def finish(queue: Queue) -> list[str]:
    """Runs all jobs that can be run; their ids."""
    leases = queue.lease_many(1000)
    assert all(queue.complete_many(leases))
    return [lease.id for lease in leases]


def seen(schedules: Any, name: str, queue: str) -> ScheduleRecord:
    record = schedules.get(name, queue)
    assert isinstance(record, ScheduleRecord)
    return record


# -- the proof -------------------------------------------------------------------------------------


def test_a_year_of_ticks_with_three_tickers_each_fired_exactly_once(
    server: Server, app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock
) -> None:
    """More than 10,000 ticks in Berlin through both changes of the clocks; three tickers race for every one of them."""
    begin, end = datetime(2026, 1, 1, tzinfo=BERLIN), datetime(2027, 1, 1, tzinfo=BERLIN)
    at(begin - MINUTE)
    schedules = schedules_of(app)
    for each, cron in (("half-hourly", "*/30 * * * *"), ("nightly", "30 2 * * *"), ("thrice", "0 1-3 * * *")):
        schedules.add(each, (name, b"x"), cron=cron, zone="Europe/Berlin", catch_up="all", overlap="allow")

    expected = {f"half-hourly@{iso(t)}" for t in range(milliseconds(begin), milliseconds(end), 1_800_000)}
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
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    with Windlass(server.url) as other:
        ours, theirs = layout_of(app, name), layout_of(other, name)
        fire = ours.schedules.fire  # type: ignore[union-attr]

        def fire_after_the_other(*args: Any, **options: Any) -> Any:
            if not raced:
                raced.append(other.run(tick(theirs, {})))
            return fire(*args, **options)

        raced: list[TickReport] = []
        ours.schedules.fire = fire_after_the_other  # type: ignore[union-attr, method-assign]
        report = app.run(tick(ours, {}))
    assert raced[0].enqueued == 1
    assert (report.enqueued, report.dropped) == (0, 0)
    assert 3_590_000 < (report.next_in or 0) <= 3_600_000
    assert waiting(raw_queue) == ["s@2026-06-01T13:00:00Z"]


def test_a_ticker_that_is_killed_between_reading_and_firing_loses_nothing(
    server: Server, app: Windlass, raw_queue: Queue, name: str, at: Clock, ticks: Ticker
) -> None:
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    sha = scripts.TICK.sha.encode()
    with FaultProxy(server.address, faults=nth(HANG, only=lambda request: sha in request)) as proxy:
        program = (
            "from windlass import Windlass\nfrom windlass.scheduler import tick\n"
            f"app = Windlass({proxy.url!r})\n"
            f"app.run(tick(app.queue({name!r})._layout, {{}}))"
        )
        doomed = subprocess.Popen([sys.executable, "-c", program])
        try:
            wait_until(lambda: proxy.counts["hang"], "the doomed ticker to fire", timeout=20)
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
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    sha = scripts.TICK.sha.encode()
    with FaultProxy(server.address, faults=nth(fault, only=lambda request: sha in request)) as proxy:
        with Windlass(proxy.url, retry_for=10) as lossy:
            assert ticker_of(lossy, name)().enqueued == 1
        assert sum(proxy.counts[kind] for kind in ("drop_reply", "drop_request", "cut_request")) == 1
    assert waiting(raw_queue) == ["s@2026-06-01T13:00:00Z"]
    assert seen(schedules_of(app), "s", name).fired == 1


VERBS: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any, str], Any]]] = {
    "add": (lambda s, q: s.delete("s", q), lambda s, q: s.add("s", (q, b"x"), every="1h").name == "s"),
    "pause": (lambda s, q: None, lambda s, q: s.pause("s", q)),
    "resume": (lambda s, q: s.pause("s", q), lambda s, q: s.resume("s", q)),
    "delete": (lambda s, q: None, lambda s, q: s.delete("s", q)),
    "run_now": (lambda s, q: None, lambda s, q: s.run_now("s", q).status == Status.ADDED),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_reply_was_lost_answers_as_the_first_time(
    server: Server, app: Windlass, name: str, at: Clock, verb: str
) -> None:
    prepare, act = VERBS[verb]
    schedules_of(app).add("s", (name, b"x"), every="1h")
    shas = {scripts.SCHEDULE.sha.encode(), scripts.ENQUEUE.sha.encode()}
    with FaultProxy(server.address) as proxy, Windlass(proxy.url, retry_for=10) as lossy:
        schedules = schedules_of(lossy)
        prepare(schedules, name)
        proxy.faults = nth(DROP_REPLY, only=lambda request: bool(shas & set(request)))
        assert act(schedules, name) is True
        assert proxy.counts["drop_reply"] == 1


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

    assert schedules.delete("s", name)
    assert not schedules.delete("s", name)
    assert schedules.get("s", name) is None
    assert ticks() == TickReport()


def test_options_of_the_jobs_are_honoured(app: Windlass, raw_queue: Queue, name: str, at: Clock, ticks: Ticker) -> None:
    @app.task(queue=name, max_failures=3)
    def report(day: int) -> None: ...

    schedules_of(app).add("s", report.using(priority=1, max_backoff="1m").call(7), every="1h")
    at(NOON + HOUR)
    ticks()
    lease = raw_queue.lease()
    assert lease is not None
    assert lease.data == report.call(7).data
    assert (lease.priority, lease.limits.max_failures, lease.limits.max_backoff) == (1, 3, 60.0)


def test_pause_and_resume(schedules: Any, ticks: Ticker, raw_queue: Queue, name: str, at: Clock) -> None:
    schedules.add("s", (name, b"x"), every="1h")
    assert schedules.pause("s", name)
    assert not schedules.pause("s", name)
    assert not schedules.pause("none", name)
    paused = seen(schedules, "s", name)
    assert paused.next_at is None
    assert paused.schedule is not None
    assert paused.schedule.paused
    at(NOON + 5 * HOUR)
    assert ticks() == TickReport()
    # What is added anew stays paused.
    schedules.add("s", (name, b"y"), every="2h")
    assert ticks() == TickReport()
    assert schedules.resume("s", name)
    assert not schedules.resume("s", name)
    assert not schedules.resume("none", name)
    assert seen(schedules, "s", name).next_at == (NOON + 6 * HOUR).timestamp()
    assert ticks().enqueued == 0
    at(NOON + 6 * HOUR)
    assert ticks().enqueued == 1


def test_run_now_does_not_move_the_next_tick(schedules: Any, ticks: Ticker, raw_queue: Queue, name: str) -> None:
    before = schedules.add("s", (name, b"x"), every="1h", jitter="30m")
    assert schedules.run_now("s", name).status == Status.ADDED
    assert schedules.run_now("s", name).status == Status.KEPT
    assert raw_queue.counts().ready == 1
    assert seen(schedules, "s", name) == before
    schedules.add("many", (name, b"x"), every="1h", overlap="allow")
    schedules.pause("many", name)
    assert [schedules.run_now("many", name).status for _ in range(2)] == [Status.ADDED] * 2
    assert schedules.run_now("none", name) is None


def test_list_has_every_schedule_once(schedules: Any, name: str, at: Clock) -> None:
    assert schedules.list(name) == []
    names = [f"s{i:03}" for i in range(150)]
    for i, each in enumerate(names):
        schedules.add(each, (name, b"x" * 100), every=60 + i)
    schedules.pause("s007", name)
    listed = schedules.list(name)
    assert [record.name for record in listed] == names
    assert [record.name for record in listed if record.next_at is None] == ["s007"]
    assert listed[5] == schedules.get("s005", name)


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


def test_a_change_between_reading_and_firing_wins(
    app: Windlass, raw_queue: Queue, name: str, at: Clock, server: Server
) -> None:
    with Windlass(server.url) as other:
        for change in (
            lambda s: s.add("s", (name, b"new"), every="2h"),
            lambda s: s.pause("s", name),
            lambda s: s.delete("s", name),
        ):
            at(NOON)
            schedules_of(app).add("s", (name, b"old"), every="1h")
            at(NOON + HOUR)
            layout = NativeLayout(name)
            fire = layout.schedules.fire  # type: ignore[union-attr]
            changes = iter([change])

            def change_first(*args: Any, fire: Any = fire, changes: Any = changes, **options: Any) -> Any:
                for each in changes:
                    each(schedules_of(other))
                return fire(*args, **options)

            layout.schedules.fire = change_first  # type: ignore[union-attr, method-assign]
            assert app.run(tick(layout, {})).enqueued == 0
            assert waiting(raw_queue) == []
            schedules_of(app).delete("s", name)


# -- overlap ---------------------------------------------------------------------------------------


def test_skip_drops_a_tick_while_the_job_before_waits_or_runs(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    schedules_of(app).add("s", (name, b"x"), every="1h")
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
    record = seen(schedules_of(app), "s", name)
    assert (record.fired, record.dropped, record.missed) == (2, 2, 0)


def test_wait_keeps_one_more_behind_the_running_one(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="wait")
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
    record = seen(schedules_of(app), "s", name)
    assert (record.fired, record.dropped) == (2, 2)


def test_wait_leaves_the_tries_of_the_running_job_alone(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="wait")
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
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="allow")
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
    schedules_of(app).add("s", (name, b"x"), every="1h", catch_up=catch_up, overlap=overlap)
    at(NOON + 4 * HOUR + late)
    report = ticks()
    assert report.enqueued == len(jobs)
    assert report.next_in is not None
    assert report.next_in > 3_400_000
    assert waiting(raw_queue) == [f"s@2026-06-01T{hour}:00Z" for hour in jobs]
    record = seen(schedules_of(app), "s", name)
    assert record.missed == missed
    assert record.next_at == (NOON + 5 * HOUR).timestamp()


def test_a_thousand_missed_ticks_are_made_up_in_order(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    schedules_of(app).add("s", (name, b"x"), every="1m", catch_up="all", overlap="allow")
    at(NOON + 1000 * MINUTE)
    assert ticks().enqueued == 1000
    assert finish(raw_queue) == [f"s@{iso(milliseconds(NOON + i * MINUTE))}" for i in range(1, 1001)]


# -- jitter ----------------------------------------------------------------------------------------


def test_jitter_delays_the_job_and_not_the_tick(
    app: Windlass, ticks: Ticker, raw_queue: Queue, name: str, at: Clock
) -> None:
    schedules_of(app).add("s", (name, b"x"), every="1h", jitter="30m", overlap="allow")
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


# -- declared and added ----------------------------------------------------------------------------


def declared(name: str, queue: str, **said: Any) -> Schedule:
    return new_schedule(name, queue, b"code", declared=True, **({"every": "1h"} | said))


def test_a_declared_schedule_is_ticked_only_by_those_who_declare_it(
    app: Windlass, raw_queue: Queue, name: str, at: Clock, server: Server, ticks: Ticker
) -> None:
    ours = declared("ours", name)
    app.run(declare(layout_of(app, name), [ours]))
    schedules_of(app).add("added", (name, b"x"), every="1h")
    at(NOON + HOUR)
    with Windlass(server.url) as other:
        report = ticker_of(other, name)()  # a worker of other code, or of a later version without it
        assert report.enqueued == 1
        assert waiting(raw_queue) == ["added"]
        # It does not count for the time to the next look either.
        assert 3_590_000 < (report.next_in or 0) <= 3_600_000
    assert ticks(ours).enqueued == 1
    assert sorted(waiting(raw_queue)) == ["added", "ours"]


def test_many_forgotten_schedules_do_not_stand_in_the_way(
    app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock, ticks: Ticker
) -> None:
    record = write_schedule(declared("any", name))
    client.hset(queue_key(name, "schedules"), mapping={f"gone{i}": record for i in range(1500)})
    client.zadd(queue_key(name, "ticks"), {f"gone{i}": 1000 + i for i in range(1500)})
    for i in range(250):
        schedules_of(app).add(f"s{i}", (name, b"x"), every="1h")
    at(NOON + HOUR)
    assert ticks().enqueued == 250
    assert ticks().enqueued == 0


def test_declaring_again_changes_nothing_that_is_the_same(
    app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock, ticks: Ticker
) -> None:
    layout = layout_of(app, name)
    schedules = schedules_of(app)

    def put(*given: Schedule) -> None:
        assert app.run(declare(layout, given)) == ()

    put(declared("s", name), declared("elsewhere", "another-queue"))
    assert [record.name for record in schedules.list(name)] == ["s"]
    first = seen(schedules, "s", name)
    assert first.schedule == declared("s", name)
    at(NOON + HOUR + MINUTE)
    before = client.dump(queue_key(name, "state"))
    put(declared("s", name))
    assert client.dump(queue_key(name, "state")) == before, "an idle declaration wrote something"
    assert seen(schedules, "s", name) == first, "the tick that is due was lost"
    assert ticks(declared("s", name)).enqueued == 1

    put(declared("s", name, every="2h"))
    assert seen(schedules, "s", name).next_at == (NOON + 2 * HOUR).timestamp()
    schedules.pause("s", name)
    put(declared("s", name, every="3h"))  # a pause outlives a new version of the code
    record = seen(schedules, "s", name)
    assert record.next_at is None
    assert record.schedule is not None
    assert (record.schedule.paused, record.schedule.timing) == (True, Every("3h"))


def test_code_takes_over_what_was_added_and_not_the_other_way_round(app: Windlass, name: str, at: Clock) -> None:
    schedules = schedules_of(app)
    schedules.add("s", (name, b"added"), every="1h")
    app.run(declare(layout_of(app, name), [declared("s", name)]))
    assert seen(schedules, "s", name).schedule == declared("s", name)
    with pytest.raises(InvalidOption, match="declared in code"):
        schedules.add("s", (name, b"added"), every="1h")
    assert schedules.delete("s", name)
    schedules.add("s", (name, b"added"), every="1h")


def test_a_declared_schedule_whose_tick_was_lost_gets_a_new_one(
    app: Windlass, name: str, client: redis.Redis, at: Clock
) -> None:
    layout = layout_of(app, name)
    app.run(declare(layout, [declared("s", name)]))
    client.delete(queue_key(name, "ticks"))
    app.run(declare(layout, [declared("s", name)]))
    assert seen(schedules_of(app), "s", name).next_at == (NOON + HOUR).timestamp()


# -- what is not ours ------------------------------------------------------------------------------

FOREIGN = {
    "newer": b'{"version":2,"cron":{}}',
    "rubbish": b"\xff\0",
    "zone": write_schedule(
        new_schedule("zone", "q", b"", cron="* * * * *", zone="Europe/Berlin")
    ).replace(b"Berlin", b"Nowhere"),
    "priority": write_schedule(
        new_schedule("priority", "q", b"", {"priority": 1}, every="1h")
    ).replace(b'"priority":1', b'"priority":300'),
}  # fmt: skip


def test_what_cannot_be_read_is_shown_and_left_alone_and_wedges_nothing(
    schedules: Any, app: Windlass, raw_queue: Queue, name: str, client: Any, at: Clock, ticks: Ticker
) -> None:
    client.hset(queue_key(name, "schedules"), mapping=FOREIGN)
    client.zadd(queue_key(name, "ticks"), {**dict.fromkeys(FOREIGN, 5), "orphan": 6, "b\0d": 7, "inf": "-inf"})
    schedules.add("s", (name, b"x"), every="1h")
    at(NOON + HOUR)
    report = ticks()
    assert report.enqueued == 1
    assert set(report.unreadable) == set(FOREIGN)
    assert report.next_in is not None
    assert report.next_in > 3_500_000

    shown = {record.name: record for record in schedules.list(name)}
    assert set(shown) == {"s", *FOREIGN}
    for each in FOREIGN:
        assert shown[each].schedule is None
        assert shown[each].problem
        with pytest.raises(KeyConflict, match="cannot be read"):
            schedules.add(each, (name, b"x"), every="1h")
        for verb in (schedules.pause, schedules.resume, schedules.run_now):
            with pytest.raises(KeyConflict, match="cannot be read"):
                verb(each, name)
    assert "another version" in (shown["newer"].problem or "")
    assert app.run(declare(layout_of(app, name), [declared("newer", name)])) == ("newer",)
    assert client.hmget(queue_key(name, "schedules"), list(FOREIGN)) == list(FOREIGN.values())
    for each in (*FOREIGN, "orphan"):
        assert schedules.delete(each, name)


def test_a_record_written_by_hand_is_a_schedule(
    app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock, ticks: Ticker
) -> None:
    record = b'{"version": 1, "declared": false, "data": "eA==", "catch_up": "one", "overlap": "skip", "every": 60000}'
    client.hset(queue_key(name, "schedules"), "s", record)
    client.zadd(queue_key(name, "ticks"), {"s": milliseconds(NOON) - 0.5})
    assert ticks().enqueued == 1
    assert seen(schedules_of(app), "s", name).fired == 1


@pytest.mark.parametrize("key", ["schedules", "ticks"])
def test_a_key_of_a_foreign_type_is_named(app: Windlass, name: str, client: redis.Redis, at: Clock, key: str) -> None:
    client.set(queue_key(name, key), b"foreign")
    schedules = schedules_of(app)
    for act in (
        lambda: schedules.add("s", (name, b"x"), every="1h"),
        lambda: schedules.delete("s", name),
        lambda: schedules.list(name),
        lambda: ticker_of(app, name)(),
    ):
        with pytest.raises(KeyConflict, match=key):
            act()
    assert client.get(queue_key(name, key)) == b"foreign"
    client.delete(queue_key(name, key))


def test_a_full_server_keeps_the_tick_for_later(
    app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock, ticks: Ticker
) -> None:
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(QueueFull):
            ticks()
        assert schedules_of(app).pause("s", name), "orders must still be taken"
        assert schedules_of(app).resume("s", name)
    finally:
        client.config_set("maxmemory", 0)
    at(NOON + 2 * HOUR)
    assert ticks().enqueued == 1


def test_a_clock_that_is_put_back_fires_nothing_early(
    app: Windlass, raw_queue: Queue, name: str, at: Clock, ticks: Ticker
) -> None:
    """Between reading and firing the time goes back by two hours: what was due is not due any more."""
    schedules_of(app).add("s", (name, b"x"), every="1h", overlap="allow")
    layout = layout_of(app, name)
    at(NOON + HOUR)
    fire = layout.schedules.fire  # type: ignore[union-attr]

    def after_a_jump(*args: Any, **options: Any) -> Any:
        at(NOON - HOUR)
        return fire(*args, **options)

    layout.schedules.fire = after_a_jump  # type: ignore[union-attr, method-assign]
    assert app.run(tick(layout, {})) == TickReport(next_in=1000)
    layout.schedules.fire = fire  # type: ignore[union-attr, method-assign]
    assert ticks().enqueued == 0
    at(NOON + HOUR)
    assert ticks().enqueued == 1
    assert waiting(raw_queue) == ["s@2026-06-01T13:00:00Z"]


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
        lambda: schedules.pause("s", "no queue"),
        lambda: schedules.resume("", "q"),
        lambda: schedules.run_now(None, "q"),
        lambda: schedules.delete("s:counts", "q"),
        lambda: schedules.get("s", ""),
        lambda: schedules.list("*"),
    ]
    for act in acts:
        with pytest.raises(InvalidInput):
            act()


def test_a_layout_without_schedules_says_so() -> None:
    layout = NativeLayout("q")
    layout.schedules = None
    schedules: Any = Schedules(lambda name: layout, Nowhere())
    with pytest.raises(UnsupportedByLayout, match="has no schedules"):
        schedules.add("s", ("q", b""), every="1h")
    with pytest.raises(UnsupportedByLayout):
        tick(layout, {})


def test_cron_is_kept_with_its_zone(schedules: Any, name: str, at: Clock) -> None:
    record = schedules.add("s", (name, b"x"), cron="0 9 * * *", zone="Europe/Berlin")
    assert record.schedule.timing == Cron("0 9 * * *", "Europe/Berlin")
    assert record.next_at == datetime(2026, 6, 2, 9, tzinfo=BERLIN).timestamp()


def test_many_that_change_one_schedule_at_once_lose_no_change(app: Windlass, name: str, at: Clock) -> None:
    schedules = schedules_of(app)
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
