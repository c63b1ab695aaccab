"""Support for tests of bad input: a dump of the whole server, to compare and to restore."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import redis


def short(value: object) -> str:
    """A short form of a value, for test ids."""
    return repr(value)[:24]


Refused = Callable[..., AbstractContextManager[None]]
Dump = dict[bytes, bytes]


def dump(client: redis.Redis) -> Dump:
    """All keys on the server, byte for byte."""
    return {bytes(key): bytes(client.dump(key) or b"") for key in client.scan_iter()}


def restore(client: redis.Redis, dumped: Dump) -> None:
    """Replace the server's contents by this dump."""
    with client.pipeline() as pipe:
        for key in client.scan_iter():
            pipe.delete(key)
        for key, value in dumped.items():
            pipe.restore(key, 0, value)
        pipe.execute()
