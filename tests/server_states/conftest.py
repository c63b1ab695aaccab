"""Servers that the tests of one file may change, and the check that no key is left on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.marks import is_mark
from tests.support.server import Server
from tests.support.server_states import PASSWORD


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server whose settings and life the tests of this module may change."""
    with Server(tcp=True) as server:
        yield server


@pytest.fixture
def tidy(own: Server) -> Iterator[None]:
    """The check that no key is left on it, but for marks, and what is remembered of lost calls for ten minutes."""
    yield
    with own.client() as client:
        left = [key for key in client.keys("*") if not (0 < client.pttl(key) <= 600_000 or is_mark(client, key))]
    own.command("FLUSHALL")
    assert left == []


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(tcp=True, config={"requirepass": PASSWORD}) as server:
        yield server
