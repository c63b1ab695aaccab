"""The runner's ear: hears on one connection that a queue of its own has work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.session import Listener
from windlass.worker.runner.queue_consumer import Feed

log = logging.getLogger("windlass.worker")
PATIENCE = 30.0
PAUSE = 1.0  # between two tries to listen; until then the poll floor has to do


class Ear:
    """Wakes feeds when they are called."""

    def __init__(self, app: Windlass, feeds: Iterable[Feed], stir: Callable[[], None]) -> None:
        self._app = app
        self._feeds = list(feeds)
        self._stir = stir

    async def listen(self) -> None:
        """Listen for ever, each queue where its announcements are made."""
        while True:
            try:
                groups = await self._groups()
                break
            except (ConnectFailed, WireLost, WindlassError) as error:
                log.debug("the ear is deaf for now: %s", error)
                await asyncio.sleep(PAUSE)
        peeking = [self._peek(feed, feed.layout.peek) for feed in self._feeds if feed.layout.peek]
        await asyncio.gather(*(self._listen(group) for group in groups), *peeking)

    async def _groups(self) -> list[list[Feed]]:
        """Queues on one server share a connection. In a cluster each has its own: its slot may move."""
        feeds = [feed for feed in self._feeds if not feed.layout.peek]
        return [[feed] for feed in feeds] if await self._app.is_cluster() else [feeds] if feeds else []

    async def _peek(self, feed: Feed, peek: tuple[str, ...]) -> None:
        """Wait, while a queue is empty, until somebody pushes to it, of whatever make."""
        layout = feed.layout
        keys = layout.counts().keys
        while True:
            try:
                listener = await self._app.arun(lambda session: session.listen(keys, layout.wake_channel, peek))
                await self._wait_at(listener, feed)
            except (ConnectFailed, WireLost, WindlassError) as error:
                log.debug("the ear is deaf for now: %s", error)
                await asyncio.sleep(PAUSE)

    async def _wait_at(self, listener: Listener, feed: Feed) -> None:
        try:
            while True:
                await feed.idle.wait()
                if await self._app.arun(lambda session: session.hear(listener, PATIENCE)):
                    feed.wake()
                    self._stir()
        finally:
            listener.wire.abort()

    async def _listen(self, feeds: list[Feed]) -> None:
        channels = {feed.layout.wake_channel(feed.waiter): feed for feed in feeds}
        keys = feeds[0].layout.counts().keys
        while True:
            try:
                listener = await self._app.arun(lambda session: session.subscribe(keys, list(channels)))
                for feed in feeds:  # something may have been said before we listened
                    feed.wake()
                self._stir()
                await self._hear(listener, channels)
            except (ConnectFailed, WireLost, WindlassError) as error:
                log.debug("the ear is deaf for now: %s", error)
                await asyncio.sleep(PAUSE)

    async def _hear(self, listener: Listener, channels: dict[str, Feed]) -> None:
        try:
            while True:
                heard = await self._app.arun(lambda session: session.hear(listener, PATIENCE))
                if heard is not None and heard[0] in channels:
                    channels[heard[0]].wake()
                    self._stir()
        finally:
            listener.wire.abort()
