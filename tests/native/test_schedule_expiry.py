"""Schedules whose jobs expire: a tick never takes a retry, a waiting job or the next tick with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.schedules import Ticker, finish, ticker_of
from windlass import Queue, Task, Windlass

Later = Callable[[float], None]


@pytest.fixture
def ticks(app: Windlass, raw_queue: Queue, later: Later) -> Ticker:
    """A ticker of this app."""
    raw_queue.beat("w", register=True)  # so that the queue has a clock that can be moved
    return ticker_of(app, raw_queue.name)


@pytest.fixture
def nightly(app: Windlass, raw_queue: Queue) -> Task[[], None, None]:
    @app.task(name="nightly", queue=raw_queue.name)
    def nightly() -> None: ...

    return nightly


def test_wait_does_not_let_the_retry_of_the_running_job_expire(
    app: Windlass, ticks: Ticker, raw_queue: Queue, later: Later, nightly: Task[[], None, None]
) -> None:
    app.schedules.add("s", nightly.using(expires="1m", tags=["ours"]).call(), every="1h", overlap="wait")
    later(3600)
    assert ticks().enqueued == 1
    lease = raw_queue.lease("1d")
    assert lease is not None
    later(3600)
    assert ticks().enqueued == 1  # behind the running one
    assert raw_queue.retry(lease, delay="2h")
    record = raw_queue.get("s")
    assert record is not None
    assert (record.failures, record.expires_at, record.tags) == (1, None, ("ours",))
    later(3600)
    assert ticks().dropped == 1  # the retry waits
    record = raw_queue.get("s")
    assert record is not None
    assert (record.failures, record.expires_at) == (1, None)
    later(7200)
    again = raw_queue.lease()
    assert again is not None
    assert again.failures == 1


def test_a_tick_does_not_move_the_expiry_of_a_waiting_job_and_replaces_an_expired_one(
    app: Windlass, ticks: Ticker, raw_queue: Queue, later: Later, nightly: Task[[], None, None]
) -> None:
    for overlap in ("wait", "skip"):
        app.schedules.add(overlap, nightly.using(expires="90m").call(), every="1h", overlap=overlap)
    later(3600)
    assert ticks().enqueued == 2
    first = [(job.id, job.expires_at) for job in raw_queue.all_jobs("ready")]
    later(3600)
    assert ticks().dropped == 2
    assert [(job.id, job.expires_at) for job in raw_queue.all_jobs("ready")] == first
    later(3600)
    assert ticks().enqueued == 2
    assert sorted(finish(raw_queue)) == ["skip", "wait"]


def test_an_expired_tick_behind_the_running_job_makes_room_for_the_next_one(
    app: Windlass, ticks: Ticker, raw_queue: Queue, later: Later, nightly: Task[[], None, None]
) -> None:
    app.schedules.add("s", nightly.using(expires="90m").call(), every="1h", overlap="wait")
    later(3600)
    assert ticks().enqueued == 1
    lease = raw_queue.lease("1d")
    assert lease is not None
    for expected in ((1, 0), (0, 1), (1, 0)):
        later(3600)
        report = ticks()
        assert (report.enqueued, report.dropped) == expected
        assert raw_queue.counts().blocked == 1
    assert raw_queue.complete(lease)
    assert finish(raw_queue) == ["s"]


def test_a_jitter_does_not_let_a_late_tick_expire(
    app: Windlass, ticks: Ticker, raw_queue: Queue, later: Later, nightly: Task[[], None, None]
) -> None:
    app.schedules.add("s", nightly.using(expires=1).call(), every="1s", jitter=1)
    later(600)
    assert ticks().enqueued == 1
    later(1)  # a tick that has just come due may still wait for its jitter
    assert finish(raw_queue) == ["s"]
