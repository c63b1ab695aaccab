"""Subscribes to wake-ups: messages that a queue of this runner has work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.transport.session import Listener
from windlass.worker.runner.queue_consumer import QueueConsumer

log = logging.getLogger("windlass.worker")
LISTEN_TIMEOUT_S = 30.0  # one wait for a message; the next begins at once, so the value only bounds idle wake-ups
RESUBSCRIBE_AFTER_S = 1.0  # meanwhile polling (MIN_POLL_S) finds the jobs just as fast


class Wakeups:
    """Wakes queue consumers when a message for them arrives."""

    def __init__(self, app: Windlass, consumers: Iterable[QueueConsumer], notify: Callable[[], None]) -> None:
        self._app = app
        self._consumers = list(consumers)
        self._notify = notify

    async def listen(self) -> None:
        """Listen until this task is cancelled, for each queue on the server that publishes its wake-ups."""
        while True:
            try:
                groups = await self._groups()
                break
            except WindlassError as error:
                await self._pause_after(error)
        peeking = [self._peek(consumer, consumer.layout.peek) for consumer in self._consumers if consumer.layout.peek]
        await asyncio.gather(*(self._listen(group) for group in groups), *peeking)

    async def _groups(self) -> list[list[QueueConsumer]]:
        """Group the queues by connection: one for all on a single server, one for each in a cluster (slots move)."""
        consumers = [consumer for consumer in self._consumers if not consumer.layout.peek]
        return (
            [[consumer] for consumer in consumers] if await self._app.is_cluster() else [consumers] if consumers else []
        )

    async def _peek(self, consumer: QueueConsumer, peek: tuple[str, ...]) -> None:
        """Watch the lists of an empty queue, for layouts whose producers publish no wake-ups."""
        layout = consumer.layout
        keys = layout.counts().keys
        while True:
            try:
                listener = await self._app.arun(lambda session: session.listen(keys, layout.wake_channel, peek))
                await self._wait_for_push(listener, consumer)
            except WindlassError as error:
                await self._pause_after(error)

    async def _wait_for_push(self, listener: Listener, consumer: QueueConsumer) -> None:
        try:
            while True:
                await consumer.idle.wait()
                if await self._app.arun(lambda session: session.next_message(listener, LISTEN_TIMEOUT_S)):
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
                for consumer in consumers:  # a message may have been published before the subscription
                    consumer.wake()
                self._notify()
                await self._receive(listener, channels)
            except WindlassError as error:
                await self._pause_after(error)

    async def _pause_after(self, error: Exception) -> None:
        log.debug("Wake-up subscription lost; retrying in %g s: %s", RESUBSCRIBE_AFTER_S, error)
        await asyncio.sleep(RESUBSCRIBE_AFTER_S)

    async def _receive(self, listener: Listener, channels: dict[str, QueueConsumer]) -> None:
        try:
            while True:
                heard = await self._app.arun(lambda session: session.next_message(listener, LISTEN_TIMEOUT_S))
                if heard is not None and heard[0] in channels:
                    channels[heard[0]].wake()
                    self._notify()
        finally:
            listener.wire.abort()
