"""Performs a session's I/O steps on an asyncio event loop."""

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
from windlass.transport.io_steps import AwaitMessage, Connect, Exchange, Flow, Sleep, Step, Work

T = TypeVar("T")


class AsyncWire(asyncio.Protocol):
    """One connection. The client library opens it; its bytes are read here, not by the library's streams."""

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

    # -- called by the event loop ----------------------------------------------------------------

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
        # `connection_lost` follows one loop iteration later; a request sent in between would have an unknown outcome.
        self._end("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "the server closed the connection"))

    # -- called by the driver --------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether it is open and has no unread data: that would be taken for the next reply."""
        return self._lost is None and not self._replies and not self._reader.has_data()

    def send(self, packed: bytes) -> None:
        self._transport.write(packed)

    async def receive(self, replies: int, seconds: float) -> list[Any] | None:
        """Read `replies` replies, including errors; `None` if they do not all arrive in time. Raises WireLost."""
        assert self._waiter is None, "two calls read from one connection"
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
                self._loop.call_soon_threadsafe(self._close)  # only the loop's own thread may close the socket
            else:
                self._close()
        except RuntimeError:
            pass  # the event loop is closed, and the socket with it

    def _close(self) -> None:
        self._transport.abort()  # drops unsent data
        # The library's public close is a coroutine; a cancelled call must not wait for it.
        self._connection._close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, why: str) -> None:
        self._lost = self._lost or why
        self._wake()


class AsyncDriver:
    """Runs a flow to its end and awaits each of its steps."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout

    async def run(self, flow: Flow[T]) -> T:
        """Return the flow's result, or raise its error."""
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
            case AwaitMessage():
                return await self._await_message(step)
            case Connect():
                return await self._connect(step)
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
            case Work(function):
                return await asyncio.to_thread(function)

    async def _connect(self, step: Connect) -> Any:
        address = step.address
        kind: Any = UnixDomainSocketConnection if address.path else SSLConnection if self._endpoint.tls else Connection
        arguments = connections.arguments(self._endpoint, address, self._timeout, sentinel=step.sentinel)
        # The library's own limit goes through asyncio.wait_for, which can swallow a cancellation before Python 3.12.
        arguments["socket_timeout"] = None
        connection: Any = kind(retry=Retry(NoBackoff(), 0), **arguments)
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
        step.run_meanwhile()
        replies = await wire.receive(step.replies, self._timeout)
        if replies is None:
            raise WireLost(f"no answer within {self._timeout:g} s")
        return replies

    async def _await_message(self, step: AwaitMessage) -> Any:
        message = await cast(AsyncWire, step.wire).receive(1, step.seconds)
        return None if message is None else message[0]
