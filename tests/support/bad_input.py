"""What the tests of bad input share: the whole server as a value, to compare and to put back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import redis


def short(value: object) -> str:
    """How a value is named in the name of a test."""
    return repr(value)[:24]


Refused = Callable[..., AbstractContextManager[None]]
Dump = dict[bytes, bytes]


def dump(client: redis.Redis) -> Dump:
    """Everything on the server, byte for byte."""
    return {bytes(key): bytes(client.dump(key) or b"") for key in client.scan_iter()}


def restore(client: redis.Redis, dumped: Dump) -> None:
    """Makes the server hold that, and nothing else."""
    with client.pipeline() as pipe:
        for key in client.scan_iter():
            pipe.delete(key)
        for key, value in dumped.items():
            pipe.restore(key, 0, value)
        pipe.execute()
