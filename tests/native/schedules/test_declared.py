"""Schedules declared in code: ticked by those who declare them, and declared again at each start without harm."""

from __future__ import annotations

import pytest
import redis

from tests.support.internals import run_flow
from tests.support.schedules import (
    HOUR,
    MINUTE,
    NOON,
    Clock,
    Ticker,
    declared,
    seen,
    ticker_of,
    waiting,
)
from tests.support.server import Server
from windlass import Queue, Windlass
from windlass.errors import InvalidOption
from windlass.storage.native.keys import queue_key
from windlass.values.schedule import Every, Schedule, write_schedule
from windlass.worker.runner.schedule_ticks import declare


def test_a_declared_schedule_is_ticked_only_by_those_who_declare_it(
    app: Windlass, raw_queue: Queue, name: str, at: Clock, server: Server, ticks: Ticker
) -> None:
    ours = declared("ours", name)
    run_flow(app, declare(app.layout(name), [ours]))
    app.schedules.add("added", (name, b"x"), every="1h")
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
        app.schedules.add(f"s{i}", (name, b"x"), every="1h")
    at(NOON + HOUR)
    assert ticks().enqueued == 250
    assert ticks().enqueued == 0


def test_declaring_again_changes_nothing_that_is_the_same(
    app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock, ticks: Ticker
) -> None:
    layout = app.layout(name)
    schedules = app.schedules

    def put(*given: Schedule) -> None:
        assert run_flow(app, declare(layout, given)) == ()

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

    tagged = declared("tagged", name, options={"tags": ["eu"], "expires": "10m"})
    put(tagged)
    before = client.dump(queue_key(name, "state"))
    put(tagged)
    assert client.dump(queue_key(name, "state")) == before, "an idle declaration wrote something"
    assert schedules.delete(name, "tagged")

    put(declared("s", name, every="2h"))
    assert seen(schedules, "s", name).next_at == (NOON + 2 * HOUR).timestamp()
    schedules.pause(name, "s")
    put(declared("s", name, every="3h"))  # a pause outlives a new version of the code
    record = seen(schedules, "s", name)
    assert record.next_at is None
    assert record.schedule is not None
    assert (record.schedule.paused, record.schedule.timing) == (True, Every("3h"))


def test_code_takes_over_what_was_added_and_not_the_other_way_round(app: Windlass, name: str, at: Clock) -> None:
    schedules = app.schedules
    schedules.add("s", (name, b"added"), every="1h")
    run_flow(app, declare(app.layout(name), [declared("s", name)]))
    assert seen(schedules, "s", name).schedule == declared("s", name)
    with pytest.raises(InvalidOption, match="declared in code"):
        schedules.add("s", (name, b"added"), every="1h")
    assert schedules.delete(name, "s")
    schedules.add("s", (name, b"added"), every="1h")


def test_a_declared_schedule_whose_tick_was_lost_gets_a_new_one(
    app: Windlass, name: str, client: redis.Redis, at: Clock
) -> None:
    layout = app.layout(name)
    run_flow(app, declare(layout, [declared("s", name)]))
    client.delete(queue_key(name, "ticks"))
    run_flow(app, declare(layout, [declared("s", name)]))
    assert seen(app.schedules, "s", name).next_at == (NOON + HOUR).timestamp()
