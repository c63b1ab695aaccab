"""Runs plain functions in threads. A thread cannot be stopped: a cancelled job is told, and heard out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from windlass.outcome import Outcome
from windlass.worker import attempt
from windlass.worker.executor import Attempt, Executor


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


class ThreadExecutor(Executor):
    """Threads, one for each slot, started when they are needed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._pool = ThreadPoolExecutor(max(1, self.limit), thread_name_prefix="windlass-job")

    async def _run(self, one: Attempt) -> Outcome | None:
        loop = asyncio.get_running_loop()

        def wait_for(returned: Awaitable[Any]) -> Any:
            """A plain wrapper around an `async def` looks like a plain function, and returns a coroutine."""
            return asyncio.run_coroutine_threadsafe(_awaited(returned), loop).result()

        return await loop.run_in_executor(self._pool, attempt.run, one.plan, one.job, wait_for)

    def _interrupt(self, one: Attempt) -> None:
        """Nothing can be done but wait: it is given back when it has ended, or its process has."""

    def close(self) -> None:
        """Begin no more; what runs goes on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
