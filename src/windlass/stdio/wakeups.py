"""Hearing that a queue has work, so that an idle worker need not wait for the next tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.storage.port import Layout
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.session import Listener

log = logging.getLogger("windlass.stdio")
_PATIENCE = 30.0
_PAUSE = 1.0  # seconds between two tries to listen; until then there are the ticks


async def hear_wakes(app: Windlass, layout: Layout, waiter: str, on_wake: Callable[[], object]) -> None:
    """Call `on_wake` whenever somebody says that this queue has work, for ever."""
    keys = layout.counts().keys
    channel = layout.wake_channel(waiter)
    while True:
        try:
            listener = await app.arun(lambda session: session.subscribe(keys, [channel]))
            on_wake()  # something may have been said before we listened
            await _hear(app, listener, on_wake)
        except (ConnectFailed, WireLost, WindlassError) as error:
            log.debug("queue %r is not heard for now: %s", layout.queue, error)
            await asyncio.sleep(_PAUSE)


async def _hear(app: Windlass, listener: Listener, on_wake: Callable[[], object]) -> None:
    try:
        while True:
            if await app.arun(lambda session: session.hear(listener, _PATIENCE)) is not None:
                on_wake()
    finally:
        listener.wire.abort()
