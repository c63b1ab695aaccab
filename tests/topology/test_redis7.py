"""The oldest server that is supported runs the same queue."""

from __future__ import annotations

import pytest

from tests.support.server import Server
from tests.topology.life import QueueLife


@pytest.fixture
def server(redis7: Server) -> Server:
    return redis7


def test_it_is_the_old_one(server: Server) -> None:
    assert server.info("server")["redis_version"].startswith("7.0.")


class TestOnRedis7(QueueLife):
    """The representative life."""
