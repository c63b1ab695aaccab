"""Connections that wait for published messages: wake-ups, cancellations, the events of a job.

A queue's waiters use one listener after the other: the next waiter takes an idle one, with its subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from windlass.transport.endpoint import Address
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.io_steps import AwaitMessage, Exchange, Flow, Wire, pack
from windlass.transport.routing import Routing, refuse, text_of
from windlass.values.ids import random_id


@dataclass(slots=True, eq=False)
class Listener:
    """A connection that receives wake-ups, or other published messages."""

    name: str
    address: Address
    wire: Wire
    channels: tuple[str, ...]
    peek: tuple[str, ...] | None = None  # a command that blocks until there may be work; replaces the channels


class Listeners:
    """Opens the listeners of a session, and keeps the idle ones."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._idle: deque[Listener] = deque()

    def listen(
        self, keys: tuple[str, ...], channel: Callable[[str], str], peek: tuple[str, ...] | None = None
    ) -> Flow[Listener]:
        """Return a listener for wake-ups, on the server that has this queue.

        With `peek` it blocks on the queue itself, so it also notices jobs from programs that publish no wake-ups.
        """
        address = self._routing.known_address(keys) or (yield from self._routing.find_address())
        for listener in list(self._idle):
            channels = () if peek else (channel(listener.name),)
            if (listener.address, listener.channels, listener.peek) == (address, channels, peek):
                try:
                    self._idle.remove(listener)
                    return listener
                except ValueError:  # another thread was faster
                    pass
        name = random_id()
        if peek:
            address, wire = yield from self._connect(address, keys)
            return Listener(name, address, wire, (), peek)
        return (yield from self._subscribe(address, keys, name, [channel(name)]))

    def subscribe(self, keys: tuple[str, ...], channels: Sequence[str]) -> Flow[Listener]:
        """Return a new listener for these channels. The code that asked for it closes it."""
        address = self._routing.known_address(keys) or (yield from self._routing.find_address())
        return (yield from self._subscribe(address, keys, random_id(), channels))

    def _connect(self, address: Address, keys: tuple[str, ...]) -> Flow[tuple[Address, Wire]]:
        """Connect to an address, or to the cluster node that has these keys, if the first node names another one.

        The scripts publish on that node. Another node gets their messages later, perhaps after a new subscription: a
        wait for a job would then hear of the end of an earlier job with the same id.
        """
        wire = yield from self._routing.connect(address)
        owner = self._routing.known_address(keys) or address
        if owner == address:
            return address, wire
        try:
            found = owner, (yield from self._routing.connect(owner))
        except ConnectFailed:  # it is down: its messages come later than its successor's, but they come
            return address, wire
        except BaseException:
            wire.abort()
            raise
        wire.abort()
        return found

    def _subscribe(self, address: Address, keys: tuple[str, ...], name: str, channels: Sequence[str]) -> Flow[Listener]:
        address, wire = yield from self._connect(address, keys)
        try:
            replies = yield Exchange(wire, pack("SUBSCRIBE", *channels), len(channels))
        except BaseException:
            wire.abort()
            raise
        for reply in replies:
            if isinstance(reply, RedisError):
                wire.abort()
                refuse(address, reply)
        return Listener(name, address, wire, tuple(channels))

    def next_message(self, listener: Listener, seconds: float) -> Flow[tuple[str, bytes] | None]:
        """Wait up to `seconds` for a message. Returns its channel and payload, or `None`."""
        if listener.peek:
            return (yield from self._block_on(listener.wire, listener.peek, seconds))
        message: Any = yield AwaitMessage(listener.wire, seconds)
        if isinstance(message, RedisError):
            raise WireLost(text_of(message))
        return None if message is None else (message[1].decode(errors="replace"), message[2])

    def _block_on(self, wire: Wire, peek: tuple[str, ...], seconds: float) -> Flow[tuple[str, bytes] | None]:
        timeout = max(0.01, min(seconds, 0.8 * self._routing.options.call_timeout))
        try:
            (reply,) = yield Exchange(wire, pack(*peek, f"{timeout:.3f}"))
        except ConnectFailed as error:  # the connection was closed since its last use
            raise WireLost(str(error)) from None
        if isinstance(reply, RedisError):
            raise WireLost(text_of(reply))
        return None if reply is None else ("", b"")

    def keep(self, listener: Listener) -> None:
        """Put a listener back, to be used by the next waiter."""
        self._idle.append(listener)

    def drop(self) -> None:
        """Close the idle listeners."""
        while self._idle:
            self._idle.pop().wire.abort()
