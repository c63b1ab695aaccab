"""Waiting on an event loop until something is so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 15) -> None:
    """Wait for a condition that nobody announces; fail when it takes too long."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # there is no event for what other processes do
            await asyncio.sleep(0.005)
