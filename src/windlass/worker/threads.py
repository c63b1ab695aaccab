"""Runs plain functions in threads. A thread cannot be stopped: a cancelled job is told, and heard out."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from windlass.outcome import Outcome
from windlass.worker import attempt
from windlass.worker.executor import Attempt, Executor, Stop


class ThreadExecutor(Executor):
    """Threads, one for each slot, started when they are needed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._pool = ThreadPoolExecutor(max(1, self.limit), thread_name_prefix="windlass-job")

    async def _run(self, one: Attempt) -> Outcome | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, attempt.run, one.plan, one.job)

    def _interrupt(self, one: Attempt) -> None:
        if one.stop is not Stop.CANCELLED:  # the program ends, or the lease is lost: nobody waits for the thread
            super()._interrupt(one)
