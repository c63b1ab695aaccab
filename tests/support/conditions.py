"""Waiting on an event loop for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 15) -> None:
    """Poll a condition until it holds; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # other processes send no event
            await asyncio.sleep(0.005)
