"""Receives cancellations of running jobs: each holder subscribes to a channel of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.storage.port import Call, Layout
from windlass.transport.session import Listener
from windlass.worker.reclaim import all_held

log = logging.getLogger("windlass.worker")
LISTEN_TIMEOUT_S = 30.0  # one wait for a message; the next begins at once, so the value only bounds idle wake-ups
RESUBSCRIBE_AFTER_S = 1.0  # a cancellation may take this long while the server restarts; retrying faster adds load

OnCancel = Callable[[str, str, int | None], Awaitable[None]]


async def listen_for_cancellations(app: Windlass, queues: Iterable[str], holder: str, on_cancel: OnCancel) -> None:
    """Call `on_cancel` with queue and id of each cancelled job of a holder, until this task is cancelled.

    The third argument is a fence if only one attempt is meant: another worker may run the job by now. One connection
    covers all queues, in a cluster too, because every node forwards messages to all others.
    """
    layouts = [app.layout(queue) for queue in queues]
    keys = layouts[0].counts().keys
    peers = {layout.peer_cancel_channel: layout for layout in layouts if layout.peer_cancel_channel}
    channels = [layouts[0].cancel_channel(holder), *peers]
    while True:
        try:
            listener = await app.arun(lambda session: session.subscribe(keys, channels))
            try:
                for layout in layouts:  # a cancellation may have been published before the subscription
                    await _check_held(app, layout, holder, on_cancel)
                await _receive(app, listener, holder, peers, on_cancel)
            finally:
                listener.wire.abort()
        except WindlassError as error:
            log.debug("Cancellation subscription lost; retrying in %g s: %s", RESUBSCRIBE_AFTER_S, error)
            await asyncio.sleep(RESUBSCRIBE_AFTER_S)


async def _check_held(app: Windlass, layout: Layout, holder: str, on_cancel: OnCancel) -> None:
    """Report the cancelled jobs among those that the holder has now."""
    for record in await app.arun(lambda session: all_held(session, layout, holder)):
        if record.cancelled:
            await on_cancel(record.queue, record.id, None)


async def _receive(
    app: Windlass, listener: Listener, holder: str, peers: Mapping[str, Layout], on_cancel: OnCancel
) -> None:
    while True:
        heard = await app.arun(lambda session: session.next_message(listener, LISTEN_TIMEOUT_S))
        if heard is None:
            continue
        channel, message = heard
        if channel in peers:  # the layout publishes it on our own channel if one of our jobs is meant
            await _perform(app, peers[channel].obey_cancel(holder, message))
        else:
            await on_cancel(*_parse(message.decode(errors="replace")))


def _parse(message: str) -> tuple[str, str, int | None]:
    """Parse "queue id", or "!fence queue id" if only one attempt is meant."""
    mark, _, rest = message.partition(" ")
    if not mark.startswith("!") or not mark[1:].isdecimal():
        return mark, rest, None
    queue, _, id = rest.partition(" ")
    return queue, id, int(mark[1:])


async def _perform(app: Windlass, call: Call[bool]) -> None:
    await app.arun(lambda session: session.perform(call))
