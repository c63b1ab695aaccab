"""The wake-ups of a queue: with them, an idle worker need not wait for the next tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.storage.port import Layout
from windlass.transport.session import Listener

log = logging.getLogger("windlass.stdio")
_MESSAGE_TIMEOUT_S = 30.0
_RETRY_AFTER_S = 1.0  # meanwhile the ticks find new jobs


async def watch_wakeups(app: Windlass, layout: Layout, waiter: str, on_wake: Callable[[], object]) -> None:
    """Call `on_wake` at each wake-up of this queue, until cancelled."""
    keys = layout.counts().keys
    channel = layout.wake_channel(waiter)
    while True:
        try:
            listener = await app.arun(lambda session: session.subscribe(keys, [channel]))
            on_wake()  # jobs may have come before the subscription
            await _receive(app, listener, on_wake)
        except WindlassError as error:
            log.debug(
                "wake-up subscription of queue %r lost; retrying in %g s: %s", layout.queue, _RETRY_AFTER_S, error
            )
            await asyncio.sleep(_RETRY_AFTER_S)


async def _receive(app: Windlass, listener: Listener, on_wake: Callable[[], object]) -> None:
    try:
        while True:
            if await app.arun(lambda session: session.next_message(listener, _MESSAGE_TIMEOUT_S)) is not None:
                on_wake()
    finally:
        listener.wire.abort()
