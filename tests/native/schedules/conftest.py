"""A queue whose clock can be set, the verbs of its schedules, and one worker that ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import redis

from tests.support.faces import FACES
from tests.support.queue_clock import NEVER, change_drift, read_drift
from tests.support.schedules import NOON, Clock, Ticker, milliseconds, ticker_of
from windlass import Queue, Windlass


@pytest.fixture
def at(client: redis.Redis, raw_queue: Queue) -> Clock:
    """Sets the time by which the queue compares run times and ticks; from there it goes on by itself."""
    raw_queue.pause()
    raw_queue.resume()  # now it has a clock

    def set_clock(moment: datetime) -> None:
        seconds, micros = client.time()
        skew = seconds * 1000 + micros // 1000 - milliseconds(moment)
        belief = read_drift(client, raw_queue.name)["belief"] + 1  # what anybody heard before does not count
        change_drift(client, raw_queue.name, skew=skew, skew_until=NEVER, belief=belief)

    set_clock(NOON)
    return set_clock


@pytest.fixture(params=FACES)
def schedules(app: Windlass, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The verbs, blocking and awaited."""
    face = request.param(app.schedules)
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
