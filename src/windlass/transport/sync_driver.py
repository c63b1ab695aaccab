"""Performs a session's I/O steps in the calling thread."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any, TypeVar, cast

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from windlass.transport import connections
from windlass.transport.endpoint import Endpoint
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.io_steps import AwaitMessage, Connect, Exchange, Flow, Sleep, Step, Work

T = TypeVar("T")
_READ_BYTES = 1 << 16


class SyncWire:
    """One connection. The client library opens it; its bytes are sent and read here (see async_driver.py)."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._reader = connections.reply_reader()
        self._socket: socket.socket | None = connection._sock

    @property
    def is_usable(self) -> bool:
        """Whether it is open and has no unread data: that would be taken for the next reply."""
        return self._socket is not None and not self._reader.has_data()

    def send(self, packed: bytes) -> None:
        """Raises OSError."""
        self._open_socket().sendall(packed)

    def receive(self) -> Any:
        """Read the next reply, which may be an error. Raises OSError (on a timeout too) and RedisError."""
        while (reply := self._reader.gets()) is connections.NOT_YET:
            self._reader.feed(self._read())
        return reply

    def wait(self, seconds: float) -> Any:
        """Read the next reply; `None` if none arrives within `seconds`."""
        reply = self._reader.gets()
        deadline = time.monotonic() + seconds
        open_socket = self._open_socket()
        try:
            while reply is connections.NOT_YET:
                open_socket.settimeout(max(0.0, deadline - time.monotonic()))
                self._reader.feed(self._read())
                reply = self._reader.gets()
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return None
        finally:
            if self._socket is not None:
                open_socket.settimeout(self._timeout)
        return reply

    def abort(self) -> None:
        self._socket = None
        self._connection.disconnect()

    def _open_socket(self) -> socket.socket:
        open_socket = self._socket  # read once: another thread may close it at any time
        if open_socket is None:
            raise OSError("the connection was closed on this side")
        return open_socket

    def _read(self) -> bytes:
        data = self._open_socket().recv(_READ_BYTES)
        if not data:
            raise OSError("the server closed the connection")
        return data


class SyncDriver:
    """Runs a flow to its end and performs each of its steps."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout

    def run(self, flow: Flow[T]) -> T:
        """Return the flow's result, or raise its error."""
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
            case AwaitMessage():
                return self._await_message(step)
            case Connect():
                return self._connect(step)
            case Sleep(seconds):
                return time.sleep(seconds)
            case Work(function):
                return function()

    def _connect(self, step: Connect) -> Any:
        address = step.address
        kind: Any = UnixDomainSocketConnection if address.path else SSLConnection if self._endpoint.tls else Connection
        arguments = connections.arguments(self._endpoint, address, self._timeout, sentinel=step.sentinel)
        connection: Any = kind(retry=Retry(NoBackoff(), 0), **arguments)
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
        return SyncWire(connection, self._timeout)

    def _exchange(self, step: Exchange) -> list[Any]:
        wire = cast(SyncWire, step.wire)
        if not wire.is_usable:
            raise ConnectFailed("the connection was closed before anything was sent")
        try:
            wire.send(step.packed)
            step.run_meanwhile()
            return [wire.receive() for _ in range(step.replies)]
        except TimeoutError:
            raise WireLost(f"no answer within {self._timeout:g} s") from None
        except (RedisError, OSError) as error:
            raise WireLost(str(error)) from None

    def _await_message(self, step: AwaitMessage) -> Any:
        try:
            return cast(SyncWire, step.wire).wait(step.seconds)
        except (RedisError, OSError) as error:
            raise WireLost(str(error)) from None
