"""Runs a session's steps on an asyncio event loop."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from windlass.transport import connections
from windlass.transport.endpoint import Endpoint
from windlass.transport.faults import ConnectFailed, WireLost
from windlass.transport.wire import Connect, Exchange, Flow, Hear, Sleep, Step, Work

T = TypeVar("T")


class AwaitableWire:
    """One connection of the client library."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()

    def abort(self) -> None:
        # The library's public way to close is a coroutine; a call that was cancelled must not wait for it.
        try:
            if self._loop.is_running() and self._loop is not asyncio._get_running_loop():
                self._loop.call_soon_threadsafe(self.connection._close)  # its sockets are for its own thread alone
            else:
                self.connection._close()
        except RuntimeError:
            pass  # its event loop is closed: the socket goes with it


class AwaitableRunner:
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
        return AwaitableWire(connection)

    async def _exchange(self, step: Exchange) -> list[Any]:
        assert isinstance(step.wire, AwaitableWire)
        connection = step.wire.connection
        if not connection.is_connected:
            raise ConnectFailed("the connection was closed before anything was sent")
        try:
            async with asyncio.timeout(self._timeout):
                await connection.send_packed_command([step.packed], check_health=False)
                step.pass_the_time()
                return [await _read(connection) for _ in range(step.replies)]
        except (RedisError, OSError) as error:
            raise WireLost(str(error) or f"no answer within {self._timeout:g} s") from None

    async def _hear(self, step: Hear) -> list[Any] | None:
        assert isinstance(step.wire, AwaitableWire)
        connection = step.wire.connection
        try:
            message: list[Any] | None = await connection.read_response(timeout=max(0.0, step.seconds))
        except (RedisError, OSError) as error:
            raise WireLost(str(error)) from None
        return message


async def _read(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except RedisError as error:
        if isinstance(error, ResponseError) or connections.is_reply(error):
            return error
        raise
