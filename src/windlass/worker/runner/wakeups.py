"""Subscribes to wake-ups: messages that a queue of this runner has work, or jobs that another worker has parked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.transport import Flow, Session
from windlass.transport.listeners import Listener
from windlass.transport.subscription import RESUBSCRIBE_AFTER_S, Subscriber, follow
from windlass.worker.runner.queue_consumer import QueueConsumer

log = logging.getLogger("windlass.worker")


class Wakeups:
    """Wakes queue consumers when a message for them arrives."""

    def __init__(self, app: Windlass, consumers: Iterable[QueueConsumer], notify: Callable[[], None]) -> None:
        self._app = app
        self._consumers = list(consumers)
        self._notify = notify

    async def listen(self) -> None:
        """Listen until this task is cancelled, for each queue on the server that publishes its wake-ups."""
        groups = await self._groups()
        subscribers: list[Subscriber] = [_Channels(group, self._notify) for group in groups]
        subscribers += [_Lists(consumer, self._notify) for consumer in self._consumers if consumer.layout.peek]
        await asyncio.gather(*(follow(self._app._flows, subscriber) for subscriber in subscribers))

    async def _groups(self) -> list[list[QueueConsumer]]:
        """Group the queues by connection: one for all on a single server, one for each in a cluster (slots move)."""
        consumers = [consumer for consumer in self._consumers if not consumer.layout.peek]
        if not consumers:
            return []
        while True:
            try:
                is_cluster = await self._app.is_cluster()
                break
            except WindlassError as error:
                log.debug("Wake-up subscription failed; retrying in %g s: %s", RESUBSCRIBE_AFTER_S, error)
                await asyncio.sleep(RESUBSCRIBE_AFTER_S)
        return [[consumer] for consumer in consumers] if is_cluster else [consumers]


class _Channels(Subscriber):
    """The wake-up channels of some queues."""

    about = "Wake-up subscription"
    log = log

    def __init__(self, consumers: list[QueueConsumer], notify: Callable[[], None]) -> None:
        self._consumers = {consumer.layout.wake_channel(consumer.waiter): consumer for consumer in consumers}
        self._parked = {
            channel: consumer for consumer in consumers if (channel := consumer.layout.parked_channel) is not None
        }
        self._keys = consumers[0].layout.counts().keys
        self._notify = notify

    def subscribe(self, session: Session) -> Flow[Listener]:
        return session.subscribe(self._keys, [*self._consumers, *self._parked])

    async def subscribed(self) -> None:
        for consumer in self._consumers.values():
            consumer.poll.wake()
            consumer.parked.subscribed()
        self._notify()

    async def received(self, channel: str, message: bytes) -> None:
        if channel in self._consumers:
            self._consumers[channel].poll.wake()
            self._notify()
        elif channel in self._parked and self._parked[channel].parked.announce(message.decode(errors="replace")):
            self._parked[channel].poll.wake()
            self._notify()


class _Lists(Subscriber):
    """The lists of an empty queue, for layouts whose producers publish no wake-ups."""

    about = "Watch on the lists of a queue"
    log = log

    def __init__(self, consumer: QueueConsumer, notify: Callable[[], None]) -> None:
        self._consumer = consumer
        self._notify = notify

    def subscribe(self, session: Session) -> Flow[Listener]:
        layout = self._consumer.layout
        return session.listen(layout.counts().keys, layout.wake_channel, layout.peek)

    def before_next(self) -> Awaitable[object]:
        return self._consumer.poll.needs_wake_up.wait()

    async def received(self, channel: str, message: bytes) -> None:
        self._consumer.poll.wake()
        self._notify()
