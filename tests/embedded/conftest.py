"""Homes for embedded servers, whose servers end with the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import MakeHome, kill, servers_of


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WINDLASS_HOME", "WINDLASS_SERVER_BIN", "WINDLASS_QUIET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make_home() -> Iterator[MakeHome]:
    """Gives paths for homes, short ones, and ends every server that was started in them."""
    # Under pytest's own tmp_path a socket's path may be too long, which is for other tests to try.
    base = Path(tempfile.mkdtemp(prefix="wl-")).resolve()
    homes: list[Path] = []

    def make(name: str = "home") -> Path:
        homes.append(base / name)
        return homes[-1]

    yield make
    for home in homes:
        for pid in servers_of(home):
            kill(pid)
    shutil.rmtree(base)


@pytest.fixture
def home(make_home: MakeHome) -> Path:
    return make_home()
