"""Hearing that running jobs were cancelled: who holds a job is told, on a channel of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.storage.port import Call, Layout
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.session import Listener
from windlass.worker.reclaim import all_held

log = logging.getLogger("windlass.worker")
PATIENCE = 30.0
PAUSE = 1.0

OnCancel = Callable[[str, str, int | None], Awaitable[None]]


async def hear_cancellations(app: Windlass, queues: Iterable[str], holder: str, on_cancel: OnCancel) -> None:
    """Call `on_cancel` with queue and id of each running job of a holder that is cancelled, for ever.

    With a fence where only that attempt is meant: its job was taken away, and others may run it by now.

    One connection hears of all queues, in a cluster too: every node passes messages on to all others.
    """
    layouts = [app.layout(queue) for queue in queues]
    keys = layouts[0].counts().keys
    peers = {layout.peer_cancel_channel: layout for layout in layouts if layout.peer_cancel_channel}
    channels = [layouts[0].cancel_channel(holder), *peers]
    while True:
        try:
            listener = await app.arun(lambda session: session.subscribe(keys, channels))
            try:
                for layout in layouts:  # something may have been said while nobody listened
                    await _look(app, layout, holder, on_cancel)
                await _hear(app, listener, holder, peers, on_cancel)
            finally:
                listener.wire.abort()
        except (ConnectFailed, WireLost, WindlassError) as error:
            log.debug("cancellations are not heard for now: %s", error)
            await asyncio.sleep(PAUSE)


async def _look(app: Windlass, layout: Layout, holder: str, on_cancel: OnCancel) -> None:
    """What was cancelled of the jobs that a holder has now."""
    for record in await app.arun(lambda session: all_held(session, layout, holder)):
        if record.cancelled:
            await on_cancel(record.queue, record.id, None)


async def _hear(
    app: Windlass, listener: Listener, holder: str, peers: Mapping[str, Layout], on_cancel: OnCancel
) -> None:
    while True:
        heard = await app.arun(lambda session: session.hear(listener, PATIENCE))
        if heard is None:
            continue
        channel, message = heard
        if channel in peers:  # then we are told on our own channel, if it concerns us
            await _obey(app, peers[channel].obey_cancel(holder, message))
        else:
            await on_cancel(*_read(message.decode(errors="replace")))


def _read(message: str) -> tuple[str, str, int | None]:
    """A queue and an id, and in front of them `!` and a fence where only one attempt is meant."""
    mark, _, rest = message.partition(" ")
    if not mark.startswith("!") or not mark[1:].isdecimal():
        return mark, rest, None
    queue, _, id = rest.partition(" ")
    return queue, id, int(mark[1:])


async def _obey(app: Windlass, call: Call[bool]) -> None:
    await app.arun(lambda session: session.perform(call))
