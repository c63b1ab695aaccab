"""The arguments for the client library's connections.

Windlass uses only the library's connections. Its clients retry by themselves, and a retried script runs twice.
"""

from __future__ import annotations

from typing import Any

from hiredis import Reader
from redis.connection import DefaultParser
from redis.driver_info import DriverInfo
from redis.exceptions import InvalidResponse, RedisError

from windlass import __version__
from windlass.transport.endpoint import Address, Endpoint


def arguments(endpoint: Endpoint, address: Address, timeout: float, *, sentinel: bool) -> dict[str, Any]:
    """The arguments that blocking and asyncio connections share."""
    chosen: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, 5.0),
        "health_check_interval": 0,
        "protocol": 2,
        "client_name": "windlass",
        "driver_info": DriverInfo(name="windlass", lib_version=__version__),
    }
    if sentinel:
        chosen["password"] = endpoint.sentinel_password
    else:
        chosen |= {"username": endpoint.username, "password": endpoint.password, "db": endpoint.db}
    if address.path:
        return chosen | {"path": address.path}
    chosen |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    if endpoint.tls:
        chosen |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        for name, value in endpoint.tls_options:
            chosen[name] = value.lower() not in ("0", "no", "false") if name == "ssl_check_hostname" else value
    return chosen


def is_reply(error: RedisError) -> bool:
    """Whether the server sent this error, as opposed to a connection error."""
    return getattr(error, "status_code", None) is not None


NOT_YET = object()
"""The reader returns this while a reply is incomplete."""


def reply_reader() -> Reader:
    """Make a reply parser. It returns error replies as the client library's exceptions, as values."""
    return Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=NOT_YET)
