"""The service: reads messages, handles them one after the other, and writes assignments and answers.

It remembers which workers have reported through it that they are idle, and assigns jobs to these workers only: workers
of another service may not be able to read its output. All other state is in the server.
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
    MAX_LINE_BYTES,
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
from windlass.stdio.pipes import Batch, Lines, OutputPipe, TooLong
from windlass.stdio.wakeups import QueueWakeups
from windlass.storage.compat.processor import LOST_AFTER_S, TICK_S
from windlass.transport.subscription import follow

log = logging.getLogger("windlass.stdio")
QUEUE_TIMEOUT_S = 60.0  # after which the service stops serving a queue that no message names
FIND_QUEUES_EVERY_S = 45.0  # less than that, so that a queue it has found is served until its jobs are done


class Wake(Struct, frozen=True):
    """A wake-up: a queue has work."""

    queue: str


class OwnTick(Struct, frozen=True):
    """A tick of the service's own timer."""


Event = Batch | Wake | OwnTick | None  # None: end the service


async def serve(app: Windlass, dispatcher: Dispatcher, identity: Identity, tick: float | None) -> int:
    """Run the service on the standard streams until its input ends. Returns the exit code."""
    loop, service = asyncio.get_running_loop(), Service(app, dispatcher, identity, OutputPipe(1))
    working = asyncio.create_task(service.run(tick))
    signals: list[int] = []

    def stop(number: int) -> None:
        if signals:
            working.cancel()
        else:
            log.info("stopping after the messages that are already read; a second signal stops at once")
            service.stop()
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    log.info("%s %s is ready", identity.service_name, identity.service_uuid)
    try:
        await working
    except BrokenPipeError:
        log.error("the reader closed standard output: the service ends")
        return 1
    except asyncio.CancelledError:
        log.error("stopped by a second signal: some messages that were read are not handled")
        return 1
    log.info("the service ends: %s", "stopped by a signal" if signals else "end of standard input")
    return 0


class Service:
    """One service. It handles its events one after the other."""

    def __init__(self, app: Windlass, dispatcher: Dispatcher, identity: Identity, output: OutputPipe) -> None:
        self._app = app
        self._dispatcher = dispatcher
        self._identity = identity
        self._output = output
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._announced: set[Wake | OwnTick] = set()  # already in the queue of events
        self._helpers: dict[str, asyncio.Task[None]] = {}
        self._search: asyncio.Task[None] | None = None
        self._searched_at = 0  # ms
        self._queues: dict[str, int] = {}  # queue → when a message last named it, ms
        self._idle: defaultdict[str, dict[str, int]] = defaultdict(dict)  # queue → worker → when it reported so, ms
        self._heard: dict[tuple[str, str], int] = {}  # queue and worker → time of its last message, ms

    async def run(self, tick: float | None) -> None:
        """Handle all lines of standard input, then forget the workers."""
        lines = Lines(0, self._events.put_nowait)
        if tick:
            self._helpers[""] = asyncio.create_task(self._tick_every(tick))
        try:
            while (event := await self._events.get()) is not None:
                match event:
                    case Batch():
                        for line in event.lines:
                            await self._handle(line)
                        lines.done()
                    case Wake(queue):
                        self._announced.discard(event)
                        await self._log_errors(self._dispatch(queue))
                    case OwnTick():
                        self._announced.discard(event)
                        await self._log_errors(self._tick())
        except BrokenPipeError:
            await self._log_errors(self._forget_workers())
            raise
        finally:
            for helper in (*self._helpers.values(), self._search):
                if helper:
                    helper.cancel()
        await self._log_errors(self._forget_workers())

    async def _forget_workers(self) -> None:
        for queue, worker in self._heard:
            await self._dispatcher.forget(queue, worker)

    def stop(self) -> None:
        """End after the messages that are already read."""
        self._events.put_nowait(None)

    def _put_once(self, event: Wake | OwnTick) -> None:
        if event not in self._announced:
            self._announced.add(event)
            self._events.put_nowait(event)

    async def _log_errors(self, doing: Coroutine[Any, Any, None]) -> None:
        try:
            await doing
        except WindlassError as error:
            log.error("%s", error)

    # -- incoming --------------------------------------------------------------------------------

    async def _handle(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            log.error("line skipped: it has %s bytes, at most %s are allowed", f"{line.size:,}", f"{MAX_LINE_BYTES:,}")
        elif line.strip():
            try:
                await self._handle_message(read_message(line, self._identity.listener))
            except BadMessage as error:
                log.error("%s", error)
            except WindlassError as error:
                log.error("message failed: %s", error)

    async def _handle_message(self, message: Message) -> None:
        if not isinstance(message.payload, Tick):
            self._remember_sender(message.payload.queue_name, message)
        match message.payload:
            case AddJob(uuid, queue, priority):
                if not await self._dispatcher.add(queue, uuid, priority, message.text):
                    log.warning("job %s exists already on queue %s: it is not changed", uuid, queue)
                await self._dispatch(queue)
            case WorkerIdle(queue):
                await self._on_idle(queue, message)
            case JobAccepted(uuid, queue, started_at):
                self._idle[queue].pop(message.worker, None)
                started = _text(started_at, message)
                self._check_owner(
                    await self._dispatcher.accept(queue, message.worker, message.ago, uuid, started), message
                )
            case WorkerProgress(uuid, queue, progress):
                await self._on_busy(queue, message, uuid, progress)
            case WorkerBusy(queue, uuid, status):
                await self._on_busy(queue, message, uuid, status.progress)
            case JobFinished(uuid, queue, finished_at):
                await self._finish(queue, message, uuid, _text(finished_at, message))
            case Tick():
                await self._tick()
            case ListRequest(queue):
                await self._answer(queue, message)

    def _remember_sender(self, queue: str, message: Message) -> None:
        self._dispatcher.layout(queue)  # refuses an invalid name
        self._queues[queue] = _now()
        if message.worker:
            self._heard[queue, message.worker] = _now()

    async def _on_idle(self, queue: str, message: Message) -> None:
        may_work = await self._dispatcher.idle(queue, message.worker, message.ago)
        self._idle[queue].pop(message.worker, None)
        if not may_work:
            return
        if _age(message.at) > TICK_S:
            log.warning(
                "worker %s gets no job: its idle message is %.1f s old, send a new one",
                message.worker,
                _age(message.at),
            )
            return
        self._idle[queue][message.worker] = message.at
        self._watch_wakeups(queue)
        await self._dispatch(queue)

    async def _on_busy(self, queue: str, message: Message, uuid: str | None, progress: float | None) -> None:
        self._idle[queue].pop(message.worker, None)
        self._check_owner(await self._dispatcher.busy(queue, message.worker, message.ago, uuid, progress), message)

    async def _finish(self, queue: str, message: Message, uuid: str, finished_at: str) -> None:
        done = await self._dispatcher.finish(queue, message.worker, message.ago, uuid, finished_at, message.text)
        self._check_owner(done, message)
        if done and await self._dispatcher.idle(queue, message.worker, message.ago) and _age(message.at) <= TICK_S:
            self._idle[queue][message.worker] = message.at
            await self._dispatch(queue)

    def _check_owner(self, is_owner: bool, message: Message) -> None:
        if not is_owner:
            log.error("%s of worker %s ignored: the job does not belong to this worker", message.name, message.worker)

    # -- outgoing --------------------------------------------------------------------------------

    async def _dispatch(self, queue: str) -> None:
        """Assign jobs to the workers that have reported idle within one tick."""
        idle = self._idle[queue]
        for worker in [worker for worker, at in idle.items() if _age(at) > TICK_S]:
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
        found = await self._dispatcher.list_entries(queue, message.list_kind)
        payload = msgspec.json.encode(msgspec.structs.replace(found, requested_by=message.sender))
        await self._output.write(write_message(self._identity, f"job_queue/{message.name}/answer", payload))

    # -- timers ----------------------------------------------------------------------------------

    async def _find_queues(self) -> None:
        """Tick the queues that were served by a service that died, and that no message names here."""
        for queue in await self._dispatcher.find_queues():
            self._queues[queue] = _now()
        self._put_once(OwnTick())

    async def _tick(self) -> None:
        if _age(self._searched_at) > FIND_QUEUES_EVERY_S and (self._search is None or self._search.done()):
            self._searched_at = _now()
            self._search = asyncio.create_task(self._log_errors(self._find_queues()))
        for queue in sorted(self._queues):
            try:
                back = await self._dispatcher.tick(queue)
            except KeyConflict as error:  # one damaged queue must not stop the others
                log.error("%s", error)
                self._stop_serving(queue)  # until a message names it, or it is found again
                continue
            if back:
                log.info("queue %s: lost jobs queued again: %d", queue, back)
            await self._dispatch(queue)
        for queue, worker in [key for key, at in self._heard.items() if _age(at) > LOST_AFTER_S]:
            del self._heard[queue, worker]
            await self._dispatcher.forget(queue, worker)
        for queue in [queue for queue, at in self._queues.items() if _age(at) > QUEUE_TIMEOUT_S]:
            self._stop_serving(queue)

    def _stop_serving(self, queue: str) -> None:
        del self._queues[queue]
        self._idle.pop(queue, None)
        if queue in self._helpers:
            self._helpers.pop(queue).cancel()

    async def _tick_every(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            self._put_once(OwnTick())

    def _watch_wakeups(self, queue: str) -> None:
        if queue not in self._helpers:
            layout, waiter = self._dispatcher.layout(queue), self._dispatcher.waiter(queue)
            wakeups = QueueWakeups(layout, waiter, lambda: self._put_once(Wake(queue)))
            watching = follow(self._app._flows, wakeups)
            self._helpers[queue] = asyncio.create_task(watching)


def _text(moment: datetime | None, message: Message) -> str:
    """The time in a payload, or else the time of the message."""
    return iso(message.at if moment is None else moment.timestamp() * 1000)


def _now() -> int:
    return round(time() * 1000)


def _age(at: int) -> float:
    """The age of a time in seconds."""
    return (_now() - at) / 1000
