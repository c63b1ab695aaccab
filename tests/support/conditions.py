"""Waiting on an event loop for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.waiting import LIMIT_S


async def until(condition: Callable[[], object], seconds: float = LIMIT_S) -> None:
    """Poll a condition until it holds; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # other processes send no event
            await asyncio.sleep(0.005)
