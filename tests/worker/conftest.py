"""Workshops: a server, a journal and real workers, all gone after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.workers import Workshop


@pytest.fixture
def shop(server: Server, tmp_path: Path) -> Iterator[Workshop]:
    """One for a test."""
    with Workshop(server, tmp_path) as shop:
        yield shop


@pytest.fixture(scope="module")
def shared_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """One for all tests of a module, which share its workers, on a server of its own."""
    with Server() as server, Workshop(server, tmp_path_factory.mktemp("shop")) as shop:
        yield shop
