"""A queue `mail` in this layout, a peer of the published kind on it, and time that passes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.compat.hworker.peer import Peer
from tests.support.server import Server
from windlass import Lease, Queue, Windlass
from windlass.storage.compat.base.keys import ledger_keys

Lose = Callable[[str | Lease], None]


@pytest.fixture
def app(server: Server, client: redis.Redis) -> Iterator[Windlass]:
    with Windlass(server.url, retry_for=5, layouts={"mail": "hworker"}) as app:
        yield app
        app.queue("mail").purge()


@pytest.fixture
def mail(app: Windlass) -> Queue:
    """The queue."""
    return app.queue("mail")


@pytest.fixture
def peer(client: redis.Redis) -> Peer:
    """Somebody who has never heard of Windlass."""
    return Peer(client, "mail")


@pytest.fixture
def lose(client: redis.Redis) -> Lose:
    """Make a holder, or whoever has a raw lease, one that has been silent for too long."""
    holders = ledger_keys("hworker", "mail")[2]

    def lose(who: str | Lease) -> None:
        name = who if isinstance(who, str) else who.holder or f".{who.fence}"
        assert client.zadd(holders, {name: 1}, xx=True, ch=True) == 1

    return lose
