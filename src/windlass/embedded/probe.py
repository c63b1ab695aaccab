"""The few things that are said to an embedded server: are you there, what are you, please stop.

Each is one short connection without retries: the caller decides what silence means.
"""

from __future__ import annotations

import enum
from contextlib import closing
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.retry import Retry

PATIENCE = 2.0  # seconds for one answer; a server that is slower than that is asked again


class Answer(enum.Enum):
    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"


def ping(socket: Path) -> Answer:
    """Whether a server answers at the socket."""
    try:
        with closing(_connect(socket)) as client:
            client.ping()
    except BusyLoadingError:
        return Answer.LOADING
    except ResponseError:
        return Answer.READY  # such as BUSY: it lives, and its clients will be told the same
    except (RedisError, OSError) as error:
        return Answer.READY if "max number of clients" in str(error) else Answer.SILENT
    return Answer.READY


def info(socket: Path) -> dict[str, Any] | None:
    """What the server says about itself, or None if it does not answer."""
    try:
        with closing(_connect(socket)) as client:
            return dict(client.info())
    except (RedisError, OSError):
        return None


def shutdown(socket: Path, run_id: str) -> str | None:
    """Ask this very run of the server to write everything out and leave; says why it refuses, if it does."""
    try:
        # Both commands on one connection: one that has just taken the place of the first must not be stopped.
        with closing(_connect(socket)) as client:
            if client.info("server").get("run_id") == run_id:
                client.shutdown()
    except ResponseError as error:
        return str(error)
    except (RedisError, OSError):
        pass  # a connection that ends is the answer hoped for; the caller watches the lock anyway
    return None


def _connect(socket: Path) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(socket),
        socket_timeout=PATIENCE,
        socket_connect_timeout=PATIENCE,
        retry=Retry(NoBackoff(), 0),
        single_connection_client=True,
        decode_responses=True,
        encoding_errors="backslashreplace",
        protocol=2,
    )
