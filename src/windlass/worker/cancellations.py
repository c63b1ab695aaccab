"""Receives cancellations of running jobs: each holder subscribes to a channel of its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from windlass.app import Windlass
from windlass.transport import Flow, Session
from windlass.transport.listeners import Listener
from windlass.transport.subscription import Subscriber, follow
from windlass.worker.reclaim import all_held

OnCancel = Callable[[str, str, int | None], Awaitable[None]]


async def listen_for_cancellations(app: Windlass, queues: Iterable[str], holder: str, on_cancel: OnCancel) -> None:
    """Call `on_cancel` with queue and id of each cancelled job of a holder, until this task is cancelled.

    The third argument is a fence if only one attempt is meant: another worker may run the job by now. One connection
    covers all queues, in a cluster too, because every node forwards messages to all others.
    """
    await follow(app._flows, _Cancellations(app, queues, holder, on_cancel))


class _Cancellations(Subscriber):
    about = "Cancellation subscription"
    log = logging.getLogger("windlass.worker")

    def __init__(self, app: Windlass, queues: Iterable[str], holder: str, on_cancel: OnCancel) -> None:
        self._app = app
        self._holder = holder
        self._on_cancel = on_cancel
        self._layouts = [app.layout(queue) for queue in queues]
        self._peers = {layout.peer_cancel_channel: layout for layout in self._layouts if layout.peer_cancel_channel}

    def subscribe(self, session: Session) -> Flow[Listener]:
        first = self._layouts[0]
        return session.subscribe(first.counts().keys, [first.cancel_channel(self._holder), *self._peers])

    async def subscribed(self) -> None:
        """Report the cancelled jobs among those that the holder has now."""
        for layout in self._layouts:
            for record in await self._app._flows.arun(partial(all_held, layout=layout, holder=self._holder)):
                if record.cancelled:
                    await self._on_cancel(record.queue, record.id, None)

    async def received(self, channel: str, message: bytes) -> None:
        if channel in self._peers:  # the layout publishes it on our own channel if one of our jobs is meant
            call = self._peers[channel].obey_cancel(self._holder, message)
            await self._app._flows.arun(lambda session: session.perform(call))
        else:
            await self._on_cancel(*_parse(message.decode(errors="replace")))


def _parse(message: str) -> tuple[str, str, int | None]:
    """Parse "queue id", or "!fence queue id" if only one attempt is meant."""
    mark, _, rest = message.partition(" ")
    if not mark.startswith("!") or not mark[1:].isdecimal():
        return mark, rest, None
    queue, _, id = rest.partition(" ")
    return queue, id, int(mark[1:])
