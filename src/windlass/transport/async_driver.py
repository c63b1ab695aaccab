"""Runs a session's steps on an asyncio event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar, cast

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from windlass.transport import connections
from windlass.transport.endpoint import Endpoint
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.wire import Connect, Exchange, Flow, Hear, Sleep, Step, Work

T = TypeVar("T")


class AsyncWire(asyncio.Protocol):
    """One connection: the client library opened it, and its bytes come here, not by way of the library's streams."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._reader = connections.reply_reader()
        self._replies: deque[Any] = deque()
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._transport: asyncio.WriteTransport = connection._writer.transport
        self._transport.set_protocol(self)

    # -- what the event loop tells ---------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not connections.NOT_YET:
                self._replies.append(reply)
        except RedisError as error:
            self._end(str(error))
            self._transport.abort()
        if len(self._replies) >= self._wanted:
            self._wake()

    def eof_received(self) -> None:
        # The loop tells `connection_lost` a turn later; who sends in between would be left in doubt for nothing.
        self._end("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "the server closed the connection"))

    # -- what a session asks ---------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and nothing has come that nobody asked for: that would be read as the next answer."""
        return self._lost is None and not self._replies and not self._reader.has_data()

    def send(self, packed: bytes) -> None:
        self._transport.write(packed)

    async def receive(self, replies: int, seconds: float) -> list[Any] | None:
        """So many replies, errors among them, or None when they did not all come in time. Raises WireLost."""
        assert self._waiter is None, "two wait for one answer"
        if len(self._replies) < replies and self._lost is None:
            waiter = self._waiter = self._loop.create_future()
            self._wanted = replies
            timer = self._loop.call_later(seconds, self._wake)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        if len(self._replies) >= replies:
            return [self._replies.popleft() for _ in range(replies)]
        if self._lost is not None:
            raise WireLost(self._lost)
        return None

    def abort(self) -> None:
        self._lost = self._lost or "the connection was closed on this side"
        try:
            if self._loop.is_running() and self._loop is not asyncio._get_running_loop():
                self._loop.call_soon_threadsafe(self._close)  # its sockets are for its own thread alone
            else:
                self._close()
        except RuntimeError:
            pass  # its event loop is closed: the socket goes with it

    def _close(self) -> None:
        self._transport.abort()  # what is not sent yet is not to be
        # The library's public way to close is a coroutine; a call that was cancelled must not wait for it.
        self._connection._close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, why: str) -> None:
        self._lost = self._lost or why
        self._wake()


class AsyncDriver:
    """Drives a flow to its end, awaiting each step as it comes."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout

    async def run(self, flow: Flow[T]) -> T:
        """The flow's result, or its error."""
        result: Any = None
        problem: BaseException | None = None
        while True:
            try:
                step = flow.send(result) if problem is None else flow.throw(problem)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # what a generator returns has no type here
            try:
                result, problem = await self._do(step), None
            except BaseException as error:
                problem = error

    async def _do(self, step: Step) -> Any:
        match step:
            case Exchange():
                return await self._exchange(step)
            case Hear():
                return await self._hear(step)
            case Connect():
                return await self._connect(step)
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
            case Work(function):
                return await asyncio.to_thread(function)

    async def _connect(self, step: Connect) -> Any:
        address = step.address
        kind: Any = UnixDomainSocketConnection if address.path else SSLConnection if self._endpoint.tls else Connection
        given = connections.arguments(self._endpoint, address, self._timeout, sentinel=step.sentinel)
        # The library's own limit goes through asyncio.wait_for, which can swallow a cancellation before Python 3.12.
        given["socket_timeout"] = None
        connection: Any = kind(retry=Retry(NoBackoff(), 0), **given)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.connect()
        except RedisError as error:
            connection._close()
            if isinstance(error, ResponseError) or connections.is_reply(error):
                return error
            raise ConnectFailed(str(error)) from None
        except OSError as error:
            connection._close()
            raise ConnectFailed(str(error) or f"no answer within {self._timeout:g} s") from None
        except BaseException:
            connection._close()
            raise
        return AsyncWire(connection)

    async def _exchange(self, step: Exchange) -> list[Any]:
        wire = cast(AsyncWire, step.wire)
        if not wire.is_usable:
            raise ConnectFailed("the connection was closed before anything was sent")
        wire.send(step.packed)
        step.pass_the_time()
        replies = await wire.receive(step.replies, self._timeout)
        if replies is None:
            raise WireLost(f"no answer within {self._timeout:g} s")
        return replies

    async def _hear(self, step: Hear) -> Any:
        message = await cast(AsyncWire, step.wire).receive(1, step.seconds)
        return None if message is None else message[0]
