"""Runs coroutines on the runner's own event loop. A time limit cancels; the keeper sees to those that will not stop."""

from __future__ import annotations

import asyncio

from windlass.outcome import Outcome
from windlass.worker import attempt
from windlass.worker.executor import Attempt, Executor, Stop


class LoopExecutor(Executor):
    """Coroutines, many at a time."""

    async def _run(self, one: Attempt) -> Outcome | None:
        if one.plan.timeout:
            loop = asyncio.get_running_loop()
            one.alarm = loop.call_later(one.plan.timeout, self.stop, one.plan.lease.fence, Stop.TIMEOUT)
        return await attempt.arun(one.plan, one.job)
