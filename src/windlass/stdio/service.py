"""The service: reads messages, has them done one after the other, and writes what must be said.

It keeps in mind who said through it that it is idle, and gives jobs to those alone: nobody knows whether a worker that
another service heard of would hear this one. All else is in the server.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import defaultdict
from collections.abc import Coroutine
from datetime import datetime
from time import time
from typing import Any

import msgspec
from msgspec import Struct

from windlass.app import Windlass
from windlass.errors import KeyConflict, WindlassError
from windlass.stdio.dispatcher import Dispatcher
from windlass.stdio.messages import (
    MOST_BYTES,
    AddJob,
    BadMessage,
    Identity,
    JobAccepted,
    JobFinished,
    ListRequest,
    Message,
    Tick,
    WorkerBusy,
    WorkerIdle,
    WorkerProgress,
    iso,
    read_message,
    write_assignment,
    write_message,
)
from windlass.stdio.pipes import Batch, Lines, Output, TooLong
from windlass.stdio.wakeups import hear_wakes
from windlass.storage.compat.processor import LOST_AFTER, TICK

log = logging.getLogger("windlass.stdio")
FORGOTTEN_AFTER = 60.0  # seconds after which a queue that nobody names is looked after no more


class Wake(Struct, frozen=True):
    """Somebody said that a queue has work."""

    queue: str


class OwnTick(Struct, frozen=True):
    """The service's own clock has ticked."""


Event = Batch | Wake | OwnTick | None  # None: it is time to end


async def serve(app: Windlass, dispatcher: Dispatcher, identity: Identity, tick: float | None) -> int:
    """Run the service on this process's standard streams until its input ends; the exit code."""
    loop, service = asyncio.get_running_loop(), Service(app, dispatcher, identity, Output(1))
    working = asyncio.create_task(service.run(tick))
    signals: list[int] = []

    def stop(number: int) -> None:
        if signals:
            working.cancel()
        else:
            log.info("told to stop: what was read is still handled; told again, it ends at once")
            service.stop()
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    log.info("%s %s is ready", identity.service_name, identity.service_uuid)
    try:
        await working
    except BrokenPipeError:
        log.error("standard output was closed, so that nobody can be told anything: the service ends")
        return 1
    except asyncio.CancelledError:
        log.error("told to stop twice: the service ends, with messages that it has read and not handled")
        return 1
    log.info("all is done%s: the service ends", "" if signals else " and standard input has ended")
    return 0


class Service:
    """One service. Whatever happens is an event, and events are handled one after the other."""

    def __init__(self, app: Windlass, dispatcher: Dispatcher, identity: Identity, output: Output) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self._identity = identity
        self._output = output
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._announced: set[Wake | OwnTick] = set()  # that are on their way already
        self._helpers: dict[str, asyncio.Task[None]] = {}
        self._queues: dict[str, int] = {}  # and when each was last named, ms
        self._idle: defaultdict[str, dict[str, int]] = defaultdict(dict)  # queue → worker → when it said so, ms
        self._heard: dict[tuple[str, str], int] = {}  # queue and worker → when it last said anything, ms

    async def run(self, tick: float | None) -> None:
        """Handle all lines of standard input, then take leave of the workers."""
        lines = Lines(0, self._events.put_nowait)
        if tick:
            self._helpers[""] = asyncio.create_task(self._tick_on(tick))
        try:
            while (event := await self._events.get()) is not None:
                match event:
                    case Batch():
                        for line in event.lines:
                            await self._handle(line)
                        lines.done()
                    case Wake(queue):
                        self._announced.discard(event)
                        await self._carefully(self._dispatch(queue))
                    case OwnTick():
                        self._announced.discard(event)
                        await self._carefully(self._tick())
        except BrokenPipeError:
            await self._carefully(self._take_leave())
            raise
        finally:
            for helper in self._helpers.values():
                helper.cancel()
        await self._carefully(self._take_leave())

    async def _take_leave(self) -> None:
        for queue, worker in self._heard:
            await self._dispatcher.forget(queue, worker)

    def stop(self) -> None:
        """End when all is handled that was read."""
        self._events.put_nowait(None)

    def _announce(self, event: Wake | OwnTick) -> None:
        if event not in self._announced:
            self._announced.add(event)
            self._events.put_nowait(event)

    async def _carefully(self, doing: Coroutine[Any, Any, None]) -> None:
        try:
            await doing
        except WindlassError as error:
            log.error("%s", error)

    # -- what comes in ---------------------------------------------------------------------------

    async def _handle(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            log.error("a line has %s bytes, and %s is the most: it is passed over", f"{line.size:,}", f"{MOST_BYTES:,}")
        elif line.strip():
            try:
                await self._obey(read_message(line, self._identity.listener))
            except BadMessage as error:
                log.error("%s", error)
            except WindlassError as error:
                log.error("a message was not carried out: %s", error)

    async def _obey(self, message: Message) -> None:
        if not isinstance(message.payload, Tick):
            self._meet(message.payload.queue_name, message)
        match message.payload:
            case AddJob(uuid, queue, priority):
                if not await self._dispatcher.add(queue, uuid, priority, message.text):
                    log.warning("job %s is there already: it is kept as it is", uuid)
                await self._dispatch(queue)
            case WorkerIdle(queue):
                await self._hear_idle(queue, message)
            case JobAccepted(uuid, queue, started_at):
                self._idle[queue].pop(message.worker, None)
                started = _text(started_at, message)
                self._judge(await self._dispatcher.accept(queue, message.worker, message.ago, uuid, started), message)
            case WorkerProgress(uuid, queue, progress):
                await self._hear_busy(queue, message, uuid, progress)
            case WorkerBusy(queue, uuid, status):
                await self._hear_busy(queue, message, uuid, status.progress)
            case JobFinished(uuid, queue, finished_at):
                await self._finish(queue, message, uuid, _text(finished_at, message))
            case Tick():
                await self._tick()
            case ListRequest(queue):
                await self._answer(queue, message)

    def _meet(self, queue: str, message: Message) -> None:
        self._dispatcher.layout(queue)  # refuses what can be no name
        self._queues[queue] = _now()
        if message.worker:
            self._heard[queue, message.worker] = _now()

    async def _hear_idle(self, queue: str, message: Message) -> None:
        may_work = await self._dispatcher.idle(queue, message.worker, message.ago)
        self._idle[queue].pop(message.worker, None)
        if not may_work:
            return
        if _age(message.at) > TICK:
            log.warning("worker %s was idle %.1f s ago: too long to get a job", message.worker, _age(message.at))
            return
        self._idle[queue][message.worker] = message.at
        self._listen(queue)
        await self._dispatch(queue)

    async def _hear_busy(self, queue: str, message: Message, uuid: str | None, progress: float | None) -> None:
        self._idle[queue].pop(message.worker, None)
        self._judge(await self._dispatcher.busy(queue, message.worker, message.ago, uuid, progress), message)

    async def _finish(self, queue: str, message: Message, uuid: str, finished_at: str) -> None:
        done = await self._dispatcher.finish(queue, message.worker, message.ago, uuid, finished_at, message.text)
        self._judge(done, message)
        if done and await self._dispatcher.idle(queue, message.worker, message.ago) and _age(message.at) <= TICK:
            self._idle[queue][message.worker] = message.at
            await self._dispatch(queue)

    def _judge(self, ours: bool, message: Message) -> None:
        if not ours:
            log.error("%s of worker %s does not count: it has no such job (any more)", message.name, message.worker)

    # -- what goes out ---------------------------------------------------------------------------

    async def _dispatch(self, queue: str) -> None:
        """Give out what there is to those who said within one tick that they are idle."""
        idle = self._idle[queue]
        for worker in [worker for worker, at in idle.items() if _age(at) > TICK]:
            del idle[worker]
        if not idle:
            return
        for job in await self._dispatcher.dispatch(queue, list(idle)):
            del idle[job.worker]
            line = write_assignment(
                self._identity, job.worker, job.data, job.uuid, queue, job.priority, job.dispatched_at
            )
            await self._output.write(line)

    async def _answer(self, queue: str, message: Message) -> None:
        found = await self._dispatcher.look(queue, message.what)
        payload = msgspec.json.encode(msgspec.structs.replace(found, requested_by=message.sender))
        await self._output.write(write_message(self._identity, f"job_queue/{message.name}/answer", payload))

    # -- by itself -------------------------------------------------------------------------------

    async def _tick(self) -> None:
        for queue in sorted(self._queues):
            try:
                back = await self._dispatcher.tick(queue)
            except KeyConflict as error:  # one damaged queue must not hold up the others
                log.error("%s", error)
                continue
            if back:
                log.info("queue %s: %d jobs were lost and are queued again", queue, back)
            await self._dispatch(queue)
        for queue, worker in [key for key, at in self._heard.items() if _age(at) > LOST_AFTER]:
            del self._heard[queue, worker]
            await self._dispatcher.forget(queue, worker)
        for queue in [queue for queue, at in self._queues.items() if _age(at) > FORGOTTEN_AFTER]:
            del self._queues[queue]
            self._idle.pop(queue, None)
            if queue in self._helpers:
                self._helpers.pop(queue).cancel()

    async def _tick_on(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            self._announce(OwnTick())

    def _listen(self, queue: str) -> None:
        if queue not in self._helpers:
            layout, waiter = self._dispatcher.layout(queue), self._dispatcher.waiter(queue)
            hearing = hear_wakes(self._app, layout, waiter, lambda: self._announce(Wake(queue)))
            self._helpers[queue] = asyncio.create_task(hearing)


def _text(moment: datetime | None, message: Message) -> str:
    """A time that a payload may tell; else it is that of the message."""
    return iso(message.at if moment is None else moment.timestamp() * 1000)


def _now() -> int:
    return round(time() * 1000)


def _age(at: int) -> float:
    """How many seconds ago that was."""
    return (_now() - at) / 1000
