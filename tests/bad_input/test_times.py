"""Run times, delays and lengths of time that are none are refused; a run time in the past means now."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.contract.leasing import drain, take
from tests.support.bad_input import Refused, short
from tests.support.server import Server
from windlass import Queue, RawJob, Windlass
from windlass.errors import InvalidOption, InvalidTime

# -- moments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_at", [0, 1, -1, -1e300, 1_750_000_000.5, datetime(1, 1, 2, tzinfo=UTC)])
def test_a_run_time_in_the_past_runs_now(queue: Queue, run_at: Any) -> None:
    queue.enqueue(b"", id="a", run_at=run_at)
    lease = take(queue)
    assert queue.retry(lease, run_at=run_at)
    assert drain(queue) == ["a"]


@pytest.mark.parametrize(
    ("run_at", "word"),
    [
        (math.nan, "seconds since 1970"),
        (math.inf, "seconds since 1970"),
        (-math.inf, "seconds since 1970"),
        (253402300800, "beyond the year 9999"),
        (1_900_000_000_000.5, "not milliseconds"),
        (1e300, "beyond the year 9999"),
        (10**400, "beyond the year 9999"),
        (datetime(2030, 1, 1), "time zone"),
        ("2030-01-01", "seconds since 1970 or a datetime"),
        (True, "seconds since 1970 or a datetime"),
        (timedelta(1), "seconds since 1970 or a datetime"),
    ],
    ids=short,
)
def test_a_run_time_that_is_none(queue: Queue, refused: Refused, run_at: Any, word: str) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    queue.enqueue(b"", id="b")
    for verb in (
        lambda: queue.enqueue(b"", run_at=run_at),
        lambda: queue.enqueue_many([b"good", RawJob(b"", run_at=run_at)]),
        lambda: queue.update("b", run_at=run_at),
        lambda: queue.retry(lease, run_at=run_at),
    ):
        with refused(InvalidTime, "run_at", word):
            verb()


@pytest.mark.parametrize(
    ("delay", "word"),
    [
        (math.nan, "finite"),
        (math.inf, "finite"),
        ("soon", "500ms"),
        ("", "500ms"),
        ("5", "500ms"),
        ("5 parsecs", "500ms"),
        ("-5s", "500ms"),
        ("1e3s", "500ms"),
        ("5s and more", "500ms"),
        (True, "timedelta"),
        (b"5s", "timedelta"),
        (datetime.now(UTC), "timedelta"),
        (1e12, "year 9999"),
        (timedelta.max, "year 9999"),
        (10**400, "year 9999"),
    ],
    ids=short,
)
def test_a_delay_that_is_none(queue: Queue, refused: Refused, delay: Any, word: str) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    for verb in (
        lambda: queue.enqueue(b"", delay=delay),
        lambda: queue.enqueue_many([b"good", RawJob(b"", delay=delay)]),
        lambda: queue.update("a", delay=delay),
        lambda: queue.retry(lease, delay=delay),
    ):
        with refused(InvalidTime, "delay", word):
            verb()


def test_two_run_times_are_one_too_many(queue: Queue, refused: Refused) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    both: dict[str, Any] = {"run_at": time.time() + 5, "delay": 5}
    for verb in (
        lambda: queue.enqueue(b"", **both),
        lambda: queue.enqueue_many([b"good", RawJob(b"", **both)]),
        lambda: queue.update("a", **both),
        lambda: queue.retry(lease, **both),
    ):
        with refused(InvalidTime, "run_at or delay, not both"):
            verb()


# -- lengths of time -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seconds", [0, -1, -0.5, 0.0001, math.nan, math.inf, "0s", "x", None, True, 31 * 86400, 10**400], ids=short
)
def test_lease_seconds_that_are_none(queue: Queue, refused: Refused, seconds: Any) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    queue.enqueue(b"", id="b")
    for verb in (
        lambda: queue.lease(seconds),
        lambda: queue.lease_many(2, seconds),
        lambda: queue.extend(lease, seconds),
        lambda: queue.beat("worker-1", seconds, register=True),
    ):
        with refused(InvalidOption, "seconds"):
            verb()


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf, "x", None, True])
def test_a_wait_that_is_none(queue: Queue, refused: Refused, wait: Any) -> None:
    with refused(InvalidOption, "wait"):
        queue.lease(wait=wait)


@pytest.mark.parametrize("name", ["min_backoff", "max_backoff"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "x", None, True, 10**400], ids=short)
def test_a_backoff_that_is_none(queue: Queue, refused: Refused, name: str, value: Any) -> None:
    queue.enqueue(b"", id="a")
    option: dict[str, Any] = {name: value}
    for verb in (
        lambda: queue.enqueue(b"", **option),
        lambda: queue.enqueue_many([b"good", RawJob(b"", **option)]),
        lambda: queue.update("a", **option),
    ):
        with refused(InvalidOption, name):
            verb()


@pytest.mark.parametrize("name", ["retry_for", "call_timeout"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "x", None, True])
def test_a_patience_that_is_none(server: Server, name: str, value: Any) -> None:
    option: dict[str, Any] = {name: value}
    with pytest.raises(InvalidOption, match=name):
        Windlass(server.url, **option)


def test_no_time_at_all_for_a_call(server: Server) -> None:
    with pytest.raises(InvalidOption, match="call_timeout"):
        Windlass(server.url, call_timeout=0)
