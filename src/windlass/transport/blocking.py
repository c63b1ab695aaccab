"""Runs a session's steps in the calling thread."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from windlass.transport import connections
from windlass.transport.endpoint import Endpoint
from windlass.transport.faults import ConnectFailed, WireLost
from windlass.transport.wire import Connect, Exchange, Flow, Hear, Sleep, Step, Work

T = TypeVar("T")


class BlockingWire:
    """One connection of the client library."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def abort(self) -> None:
        self.connection.disconnect()


class BlockingRunner:
    """Drives a flow to its end, doing each step as it comes."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout

    def run(self, flow: Flow[T]) -> T:
        """The flow's result, or its error."""
        result: Any = None
        problem: BaseException | None = None
        while True:
            try:
                step = flow.send(result) if problem is None else flow.throw(problem)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # what a generator returns has no type here
            try:
                result, problem = self._do(step), None
            except BaseException as error:
                problem = error

    def _do(self, step: Step) -> Any:
        match step:
            case Exchange():
                return self._exchange(step)
            case Hear():
                return self._hear(step)
            case Connect():
                return self._connect(step)
            case Sleep(seconds):
                return time.sleep(seconds)
            case Work(function):
                return function()

    def _connect(self, step: Connect) -> Any:
        address = step.address
        kind: Any = UnixDomainSocketConnection if address.path else SSLConnection if self._endpoint.tls else Connection
        given = connections.arguments(self._endpoint, address, self._timeout, sentinel=step.sentinel)
        connection: Any = kind(retry=Retry(NoBackoff(), 0), **given)
        try:
            connection.connect()
        except RedisError as error:
            connection.disconnect()
            if isinstance(error, ResponseError) or connections.is_reply(error):
                return error
            raise ConnectFailed(str(error)) from None
        except OSError as error:
            connection.disconnect()
            raise ConnectFailed(str(error)) from None
        return BlockingWire(connection)

    def _exchange(self, step: Exchange) -> list[Any]:
        assert isinstance(step.wire, BlockingWire)
        connection = step.wire.connection
        if not connection.is_connected:
            raise ConnectFailed("the connection was closed before anything was sent")
        try:
            connection.send_packed_command([step.packed], check_health=False)
            step.pass_the_time()
            return [_read(connection) for _ in range(step.replies)]
        except (RedisError, OSError) as error:
            raise WireLost(str(error)) from None

    def _hear(self, step: Hear) -> list[Any] | None:
        assert isinstance(step.wire, BlockingWire)
        connection = step.wire.connection
        try:
            if not connection.can_read(timeout=max(0.0, step.seconds)):
                return None
            message: list[Any] = connection.read_response()
            return message
        except (RedisError, OSError) as error:
            raise WireLost(str(error)) from None


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except RedisError as error:
        if isinstance(error, ResponseError) or connections.is_reply(error):
            return error
        raise
