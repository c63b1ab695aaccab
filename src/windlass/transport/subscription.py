"""Keeps a subscription open: delivers its messages, and subscribes again when the connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Protocol, TypeVar

from windlass.errors import WindlassError
from windlass.transport.io_steps import Flow
from windlass.transport.listeners import Listener
from windlass.transport.session import Session

T = TypeVar("T")

LISTEN_TIMEOUT_S = 30.0  # one wait for a message; the next begins at once, so the value only bounds idle wake-ups
RESUBSCRIBE_AFTER_S = 1.0  # meanwhile polling finds the jobs; retrying faster adds load while a server restarts


class FlowRunner(Protocol):
    """The part of the app that runs flows, blocking or awaited."""

    def run(self, flow: Callable[[Session], Flow[T]]) -> T: ...

    async def arun(self, flow: Callable[[Session], Flow[T]]) -> T: ...


class Subscriber:
    """Callbacks for `follow`, which runs the loop."""

    about = "subscription"  # for the log
    log: Logger

    def subscribe(self, session: Session) -> Flow[Listener]:
        """Open the subscription."""
        raise NotImplementedError

    async def subscribed(self) -> None:
        """Called after each subscription: messages may have been published before it."""

    def before_next(self) -> Awaitable[object] | None:
        """Something to wait for before each message; `None` to listen at once."""
        return None

    async def received(self, channel: str, message: bytes) -> None:
        """Called with each message."""
        raise NotImplementedError


async def follow(app: FlowRunner, subscriber: Subscriber) -> None:
    """Deliver messages until this task is cancelled. A lost connection is replaced."""
    while True:
        try:
            listener = await app.arun(subscriber.subscribe)
            try:
                await subscriber.subscribed()
                await _receive(app, listener, subscriber)
            finally:
                listener.wire.abort()
        except WindlassError as error:
            subscriber.log.debug("%s lost; retrying in %g s: %s", subscriber.about, RESUBSCRIBE_AFTER_S, error)
            await asyncio.sleep(RESUBSCRIBE_AFTER_S)


async def _receive(app: FlowRunner, listener: Listener, subscriber: Subscriber) -> None:
    while True:
        if (pause := subscriber.before_next()) is not None:
            await pause
        message = await app.arun(lambda session: session.next_message(listener, LISTEN_TIMEOUT_S))
        if message is not None:
            await subscriber.received(*message)
