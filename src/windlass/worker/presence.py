"""Publishes this worker's record to the server every few seconds, for `windlass status` and `windlass workers`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from msgspec import structs

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.storage.port import Call
from windlass.transport.presence import FORGET_AFTER_S, beat, forget
from windlass.values.worker_record import WorkerRecord

log = logging.getLogger("windlass.worker")

MAX_BEAT_INTERVAL_S = 5.0  # with long leases too, the list of workers must look current to a person
IDLE_BEAT_FACTOR = 2  # an idle worker with no news beats half as often: many idle workers must cost little
DELETE_TIMEOUT_S = 2.0  # the record expires anyway, so a stopping worker does not wait longer to delete it


async def keep_presence(
    app: Windlass, name: str, record: Callable[[], WorkerRecord], every: float, stopping: asyncio.Event
) -> None:
    """Publish a worker's record until this task is cancelled, then delete it. Errors are only logged.

    A changed record goes out within `every` seconds, a stop at once, an unchanged record at its own interval.
    """
    last_problem = ""
    last, sent_at = None, 0.0
    try:
        while True:
            current = record()
            if last is None or _has_news(current, last) or monotonic() >= sent_at + current.every:
                problem = await _perform(app, beat(current, app.namespace))
                if problem:
                    level = logging.DEBUG if problem == last_problem else logging.WARNING  # warn once for each problem
                    log.log(level, "Worker %s cannot publish its presence; retrying: %s", name, problem)
                last_problem, sent_at = problem, monotonic()
                last = None if problem else current
            await _pause(min(every, MAX_BEAT_INTERVAL_S), stopping)
    finally:
        if not last_problem:
            await _delete_record(app, name)


def _has_news(current: WorkerRecord, last: WorkerRecord) -> bool:
    """Return whether anything but the memory has changed."""
    return structs.replace(current, rss=last.rss) != last


async def _pause(seconds: float, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass


async def _delete_record(app: Windlass, name: str) -> None:
    try:
        async with asyncio.timeout(DELETE_TIMEOUT_S):
            problem = await _perform(app, forget(name, app.namespace))
    except TimeoutError:
        problem = f"the server did not answer within {DELETE_TIMEOUT_S:g} s"
    if problem:
        log.info("Worker %s stays listed for %g s: %s", name, FORGET_AFTER_S, problem)


async def _perform(app: Windlass, call: Call[bool]) -> str:
    try:
        await app._flows.arun(lambda session: session.perform(call, 0.0))
    except WindlassError as error:
        return str(error)
    return ""
