"""Records that cannot be read, keys of another type and a full server: told, left alone, and no other tick is lost."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.support.internals import run_flow
from tests.support.schedules import (
    HOUR,
    NOON,
    Clock,
    Ticker,
    declared,
    milliseconds,
    seen,
    ticker_of,
)
from windlass import Queue, Windlass
from windlass.errors import KeyConflict, QueueFull
from windlass.storage.native.keys import queue_key
from windlass.values.schedule import new_schedule, write_schedule
from windlass.worker.runner.schedule_ticks import declare

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
                verb(name, each)
    assert "another version" in (shown["newer"].problem or "")
    assert run_flow(app, declare(app.layout(name), [declared("newer", name)])) == ("newer",)
    assert client.hmget(queue_key(name, "schedules"), list(FOREIGN)) == list(FOREIGN.values())
    for each in (*FOREIGN, "orphan"):
        assert schedules.delete(name, each)


def test_a_record_written_by_hand_is_a_schedule(
    app: Windlass, raw_queue: Queue, name: str, client: redis.Redis, at: Clock, ticks: Ticker
) -> None:
    record = b'{"version": 1, "declared": false, "data": "eA==", "catch_up": "one", "overlap": "skip", "every": 60000}'
    client.hset(queue_key(name, "schedules"), "s", record)
    client.zadd(queue_key(name, "ticks"), {"s": milliseconds(NOON) - 0.5})
    assert ticks().enqueued == 1
    assert seen(app.schedules, "s", name).fired == 1


@pytest.mark.parametrize("key", ["schedules", "ticks"])
def test_a_key_of_a_foreign_type_is_named(app: Windlass, name: str, client: redis.Redis, at: Clock, key: str) -> None:
    client.set(queue_key(name, key), b"foreign")
    schedules = app.schedules
    for act in (
        lambda: schedules.add("s", (name, b"x"), every="1h"),
        lambda: schedules.delete(name, "s"),
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
    app.schedules.add("s", (name, b"x"), every="1h", overlap="allow")
    at(NOON + HOUR)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(QueueFull):
            ticks()
        assert app.schedules.pause(name, "s"), "orders must still be taken"
        assert app.schedules.resume(name, "s")
    finally:
        client.config_set("maxmemory", 0)
    at(NOON + 2 * HOUR)
    assert ticks().enqueued == 1
