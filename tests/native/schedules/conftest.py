"""A queue whose clock can be set, the verbs of its schedules, and one worker that ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import redis

from tests.support.faces import FACES
from tests.support.schedules import NOON, Clock, Ticker, milliseconds, schedules_of, ticker_of
from windlass import Queue, Windlass
from windlass.layouts.native.keys import queue_key


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
