"""Tells the server every few seconds that this worker is there, and what it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from msgspec import structs

from windlass.errors import WindlassError
from windlass.queue import FlowRunner
from windlass.storage.port import Call
from windlass.transport.presence import FORGOTTEN, beat, forget
from windlass.values.worker_record import WorkerRecord

log = logging.getLogger("windlass.worker")

OFTEN = 5.0  # seconds between two signs of life, however long the leases are
QUIET = 2  # times as long between two of a worker that has nothing to do and nothing new to tell
PATIENCE = 2.0  # seconds for a goodbye


async def show_up(
    app: FlowRunner, name: str, record: Callable[[], WorkerRecord], every: float, stopping: asyncio.Event
) -> None:
    """Keep a worker in the fleet until this is cancelled, then take it off. What goes wrong is logged, and no more.

    News is told after `every` seconds, that it is `stopping` at once; without any a record's own `every` counts.
    """
    told = ""
    last, told_at = None, 0.0
    try:
        while True:
            about = record()
            if last is None or _is_news(about, last) or monotonic() >= told_at + about.every:
                problem = await _try(app, beat(about))
                if problem:  # the same again and again is worth one line
                    log.log(logging.DEBUG if problem == told else logging.WARNING, "not seen in the fleet: %s", problem)
                told, told_at = problem, monotonic()
                last = None if problem else about
            await _pause(min(every, OFTEN), stopping)
    finally:
        if not told:
            await _say_goodbye(app, name)


def _is_news(about: WorkerRecord, last: WorkerRecord) -> bool:
    """Whether more has changed than its weight."""
    return structs.replace(about, rss=last.rss) != last


async def _pause(seconds: float, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass


async def _say_goodbye(app: FlowRunner, name: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            problem = await _try(app, forget(name))
    except TimeoutError:
        problem = "the server does not answer"
    if problem:
        log.info("still in the fleet for %g s: %s", FORGOTTEN, problem)


async def _try(app: FlowRunner, call: Call[bool]) -> str:
    try:
        await app.arun(lambda session: session.perform(call, 0.0))
    except WindlassError as error:
        return str(error)
    return ""
