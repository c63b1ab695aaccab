"""The fleet: which workers there are, as they tell of themselves every few seconds.

It is for people to look at. No lease and no job depends on it, so a worker that cannot write here works all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct, structs

from windlass.errors import WindlassError
from windlass.layout import Call
from windlass.layouts.native import keys, scripts
from windlass.limits import check_name
from windlass.queue import Runners
from windlass.transport import Flow, Session

log = logging.getLogger("windlass.fleet")

FORGOTTEN = 60.0  # seconds after which a worker that was not heard of is gone
OFTEN = 5.0  # seconds between two signs of life, however long the leases are
QUIET = 2  # times as long between two of a worker that has nothing to do and nothing new to tell
PATIENCE = 2.0  # seconds for a goodbye
SIGNS_MISSED = 3  # after so many a worker counts as lost
LOST = "lost?"


class WorkerRecord(Struct, frozen=True):
    """What a worker told of itself. Times are in seconds since 1970, `rss` is in bytes.

    `queues` with their weights; `slots` by the way of running: loop, thread, process. `finished` counts the attempts
    that have ended since `started_at`. `state` is working or stopping, and "lost?" when it has been silent for three
    times as long as it is between two of its signs (`every` seconds). `suspended` names the queues from which it
    takes no jobs for now, with the reasons.
    """

    name: str
    host: str = ""
    pid: int = 0
    version: str = ""
    started_at: float | None = None
    queues: dict[str, int] = {}
    slots: dict[str, int] = {}
    running: int = 0
    finished: int = 0
    rss: int | None = None
    state: str = "working"
    every: float = 5.0
    seen_at: float | None = None
    suspended: dict[str, str] = {}

    @property
    def is_lost(self) -> bool:
        """It was not heard of for so long that it is probably gone."""
        return self.state == LOST


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerRecord).decode


# -- calls -----------------------------------------------------------------------------------------
# They are no operations with a number: to repeat one of them does no harm.


def beat(record: WorkerRecord) -> Call[bool]:
    """Write what a worker tells of itself."""
    return _beat(record.name, _encode(record), "tell the fleet of a worker")


def forget(name: str) -> Call[bool]:
    """A worker ends."""
    return _beat(name, b"", "take a worker off the fleet")


def _beat(name: str, told: bytes, about: str) -> Call[bool]:
    args = (name, told, round(FORGOTTEN * 1000))
    return Call(scripts.FLEET_BEAT, keys.fleet_keys(), args, lambda reply: reply == 1, False, about)


def list_workers(session: Session) -> Flow[list[WorkerRecord]]:
    """All workers that were heard of of late, by name."""
    args = (round(FORGOTTEN * 1000),)
    return session.perform(Call(scripts.FLEET_LIST, keys.fleet_keys(), args, _read, False, "list the workers"))


def _read(reply: list[Any]) -> list[WorkerRecord]:
    *entries, now = reply
    found = [
        _record(name.decode(errors="replace"), int(seen), told, int(now))
        for name, seen, told in zip(*entries, strict=True)
    ]
    return sorted(found, key=lambda record: record.name)


def _record(name: str, seen_ms: int, told: bytes | None, now_ms: int) -> WorkerRecord:
    """What another version told may not be readable here; that there is such a worker is known all the same."""
    try:
        record = _decode(told or b"")
    except (msgspec.DecodeError, ValueError):
        record = WorkerRecord(name, state="unknown")
    lost = now_ms - seen_ms > SIGNS_MISSED * max(1.0, record.every) * 1000
    return structs.replace(record, name=name, seen_at=seen_ms / 1000, state=LOST if lost else record.state)


def list_queues(session: Session) -> Flow[list[str]]:
    """All queues that have something in the server, by name."""
    found = yield from session.scan(keys.ANY_QUEUE)
    return sorted({name for key in found if (name := keys.queue_of(key)) and _is_name(name)})


def _is_name(name: str) -> bool:
    try:
        return bool(check_name(name))
    except WindlassError:
        return False


# -- the worker's side -----------------------------------------------------------------------------


async def show_up(
    app: Runners, name: str, record: Callable[[], WorkerRecord], every: float, stopping: asyncio.Event
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


async def _say_goodbye(app: Runners, name: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            problem = await _try(app, forget(name))
    except TimeoutError:
        problem = "the server does not answer"
    if problem:
        log.info("still in the fleet for %g s: %s", FORGOTTEN, problem)


async def _try(app: Runners, call: Call[bool]) -> str:
    try:
        await app.arun(lambda session: session.perform(call, 0.0))
    except WindlassError as error:
        return str(error)
    return ""
