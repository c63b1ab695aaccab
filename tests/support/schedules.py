"""Support for tests of schedules: moments, tickers, and the jobs that a tick enqueues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tests.support.internals import run_flow
from windlass import Queue, Windlass
from windlass.values.schedule import Schedule, ScheduleRecord, new_schedule
from windlass.worker.runner.schedule_ticks import TickReport, tick

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
Clock = Callable[[datetime], None]
Ticker = Callable[..., TickReport]


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def ticker_of(app: Windlass, queue: str) -> Ticker:
    """A ticker of this app, as of a worker that declares these schedules."""
    return lambda *declared: run_flow(app, tick(app.layout(queue), {each.name: each for each in declared}))


def waiting(queue: Queue) -> list[str]:
    """The ids of all waiting jobs, in order."""
    return [job.id for state in ("ready", "scheduled", "blocked") for job in queue.all_jobs(state)]


def finish(queue: Queue) -> list[str]:
    """Complete all ready jobs; returns their ids."""
    leases = queue.lease_many(1000)
    assert all(queue.complete_many(leases))
    return [lease.id for lease in leases]


def seen(schedules: Any, name: str, queue: str) -> ScheduleRecord:
    record = schedules.get(queue, name)
    assert isinstance(record, ScheduleRecord)
    return record


def declared(name: str, queue: str, **said: Any) -> Schedule:
    return new_schedule(name, queue, b"code", declared=True, **({"every": "1h"} | said))
