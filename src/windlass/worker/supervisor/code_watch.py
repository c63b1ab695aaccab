"""Watches the program's files for `--watch`: yields once for each burst of changes to Python files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

from windlass.errors import InvalidOption


def check_can_watch() -> None:
    """Refuse `--watch` if the package that watches files is missing."""
    if find_spec("watchfiles") is None:
        raise InvalidOption("--watch needs the package watchfiles: pip install watchfiles")


async def watch_code(folder: Path | None = None) -> AsyncIterator[None]:
    """Yield whenever Python files below the folder (by default the current one) have changed."""
    from watchfiles import PythonFilter, awatch

    async for _ in awatch(folder or Path.cwd(), watch_filter=PythonFilter(), debounce=200):
        yield
