"""The runner's ear: hears on one connection that a queue of its own has work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.session import Listener
from windlass.worker.runner.queue_consumer import QueueConsumer

log = logging.getLogger("windlass.worker")
PATIENCE = 30.0
PAUSE = 1.0  # between two tries to listen; until then the poll floor has to do


class Wakeups:
    """Wakes consumers when they are called."""

    def __init__(self, app: Windlass, consumers: Iterable[QueueConsumer], notify: Callable[[], None]) -> None:
        self._app = app
        self._feeds = list(consumers)
        self._notify = notify

    async def listen(self) -> None:
        """Listen for ever, each queue where its announcements are made."""
        while True:
            try:
                groups = await self._groups()
                break
            except (ConnectFailed, WireLost, WindlassError) as error:
                log.debug("the ear is deaf for now: %s", error)
                await asyncio.sleep(PAUSE)
        peeking = [self._peek(consumer, consumer.layout.peek) for consumer in self._feeds if consumer.layout.peek]
        await asyncio.gather(*(self._listen(group) for group in groups), *peeking)

    async def _groups(self) -> list[list[QueueConsumer]]:
        """Queues on one server share a connection. In a cluster each has its own: its slot may move."""
        consumers = [consumer for consumer in self._feeds if not consumer.layout.peek]
        return (
            [[consumer] for consumer in consumers] if await self._app.is_cluster() else [consumers] if consumers else []
        )

    async def _peek(self, consumer: QueueConsumer, peek: tuple[str, ...]) -> None:
        """Wait, while a queue is empty, until somebody pushes to it, of whatever make."""
        layout = consumer.layout
        keys = layout.counts().keys
        while True:
            try:
                listener = await self._app.arun(lambda session: session.listen(keys, layout.wake_channel, peek))
                await self._wait_at(listener, consumer)
            except (ConnectFailed, WireLost, WindlassError) as error:
                log.debug("the ear is deaf for now: %s", error)
                await asyncio.sleep(PAUSE)

    async def _wait_at(self, listener: Listener, consumer: QueueConsumer) -> None:
        try:
            while True:
                await consumer.idle.wait()
                if await self._app.arun(lambda session: session.hear(listener, PATIENCE)):
                    consumer.wake()
                    self._notify()
        finally:
            listener.wire.abort()

    async def _listen(self, consumers: list[QueueConsumer]) -> None:
        channels = {consumer.layout.wake_channel(consumer.waiter): consumer for consumer in consumers}
        keys = consumers[0].layout.counts().keys
        while True:
            try:
                listener = await self._app.arun(lambda session: session.subscribe(keys, list(channels)))
                for consumer in consumers:  # something may have been said before we listened
                    consumer.wake()
                self._notify()
                await self._hear(listener, channels)
            except (ConnectFailed, WireLost, WindlassError) as error:
                log.debug("the ear is deaf for now: %s", error)
                await asyncio.sleep(PAUSE)

    async def _hear(self, listener: Listener, channels: dict[str, QueueConsumer]) -> None:
        try:
            while True:
                heard = await self._app.arun(lambda session: session.hear(listener, PATIENCE))
                if heard is not None and heard[0] in channels:
                    channels[heard[0]].wake()
                    self._notify()
        finally:
            listener.wire.abort()
