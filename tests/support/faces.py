"""The sync and async methods of a queue behind one set of names, so that one test runs for both."""

from __future__ import annotations

import asyncio
from typing import Any

from windlass import Queue


class Blocking:
    """The sync methods, unchanged."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def close(self) -> None:
        """Nothing to close."""


class Awaitable(Blocking):
    """Each method `x` runs `ax` on an event loop of its own."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        twin = getattr(self._queue, f"a{name}", None)
        if twin is None:
            return getattr(self._queue, name)
        return lambda *args, **kwargs: self._runner.run(self._run(twin, args, kwargs))

    @staticmethod
    async def _run(twin: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = twin(*args, **kwargs)
        return [item async for item in result] if hasattr(result, "__aiter__") else await result

    def close(self) -> None:
        """Close the loop."""
        self._runner.run(asyncio.sleep(0))
        self._runner.close()


Face = Blocking
FACES = [Blocking, Awaitable]
