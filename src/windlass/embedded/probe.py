"""Talks to an embedded server: ping, info and shutdown.

Each function uses one short connection without retries. The caller decides what silence means.
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

ANSWER_TIMEOUT_S = 2.0  # one reply; a slower server is asked again


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
        return Answer.READY  # such as BUSY: the server runs, and its clients get the same error
    except (RedisError, OSError) as error:
        return Answer.READY if "max number of clients" in str(error) else Answer.SILENT
    return Answer.READY


def info(socket: Path) -> dict[str, Any] | None:
    """The server's INFO, or `None` if it does not answer."""
    try:
        with closing(_connect(socket)) as client:
            return dict(client.info())
    except (RedisError, OSError):
        return None


def shutdown(socket: Path, run_id: str) -> str | None:
    """Ask the server with this run id to save its data and exit. Returns the reason if it refuses."""
    try:
        # Both commands on one connection: a server that has just replaced this one must not be stopped.
        with closing(_connect(socket)) as client:
            if client.info("server").get("run_id") == run_id:
                client.shutdown()
    except ResponseError as error:
        return str(error)
    except (RedisError, OSError):
        pass  # the server closes the connection as it exits; the caller watches the lock anyway
    return None


def _connect(socket: Path) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(socket),
        socket_timeout=ANSWER_TIMEOUT_S,
        socket_connect_timeout=ANSWER_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        single_connection_client=True,
        decode_responses=True,
        encoding_errors="backslashreplace",
        protocol=2,
    )
