"""A queue in this layout, and a look at the keys that its peers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from windlass import Queue, Windlass

PREFIX = "parcels"
Look = Callable[[], dict[str, Any]]


@pytest.fixture
def queue(app: Windlass) -> Iterator[Queue]:
    """A queue of this layout, purged in the end."""
    queue = app.queue(PREFIX, layout="workqueue")
    yield queue
    queue.purge()


@pytest.fixture
def look(client: redis.Redis) -> Look:
    """What is stored below the prefix, key → value; Windlass's own ledger is not there."""
    return lambda: stored(client, PREFIX)


def stored(client: redis.Redis, prefix: str) -> dict[str, Any]:
    """All keys below a prefix, without it, and what they hold: the bytes of a string, the entries of a list."""
    read = {b"string": client.get, b"list": lambda key: client.lrange(key, 0, -1)}
    return {
        key.decode().removeprefix(f"{prefix}:"): read[client.type(key)](key) for key in sorted(client.keys(f"{prefix}:*"))
    }


def lease_keys(id: str) -> tuple[str, str]:
    """Where the lease of an item is: the document's key, and that of the packages 0.1.x."""
    return f"{PREFIX}:lease:{id}", f"{PREFIX}:leased_by_session:{id}"
