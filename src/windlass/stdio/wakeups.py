"""The wake-ups of a queue: with them, an idle worker need not wait for the next tick."""

from __future__ import annotations

import logging
from collections.abc import Callable

from windlass.storage.port import Layout
from windlass.transport import Flow, Session
from windlass.transport.listeners import Listener
from windlass.transport.subscription import Subscriber


class QueueWakeups(Subscriber):
    """Calls `on_wake` at each wake-up of a queue."""

    log = logging.getLogger("windlass.stdio")

    def __init__(self, layout: Layout, waiter: str, on_wake: Callable[[], object]) -> None:
        self.about = f"wake-up subscription of queue {layout.queue!r}"
        self._keys = layout.counts().keys
        self._channel = layout.wake_channel(waiter)
        self._on_wake = on_wake

    def subscribe(self, session: Session) -> Flow[Listener]:
        return session.subscribe(self._keys, [self._channel])

    async def subscribed(self) -> None:
        self._on_wake()

    async def received(self, channel: str, message: bytes) -> None:
        self._on_wake()
