"""Runs coroutines on the runner's own event loop. A time limit cancels; the keeper sees to those that will not stop."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from windlass.outcome import Completed, Outcome
from windlass.worker import attempt
from windlass.worker.executor import Attempt, Executor, Stop

log = logging.getLogger("windlass.worker")


class LoopExecutor(Executor):
    """Coroutines, many at a time."""

    async def _run(self, one: Attempt) -> Outcome | None:
        plan = one.plan
        if plan.timeout:
            loop = asyncio.get_running_loop()
            one.alarm = loop.call_later(plan.timeout, self.stop, plan.lease.fence, Stop.TIMEOUT)
        outcome = await attempt.arun(plan, one.job)
        took = monotonic() - one.began
        if plan.timeout and took > plan.timeout and isinstance(outcome, Completed):
            # Nothing could cancel it: the loop did not turn. What is done is done.
            told = '%s: done, but after %.1f s, and its limit is %g s: a job blocks the event loop; use run="process"'
            log.warning(told, plan.title, took, plan.timeout)
        return outcome
