"""Runs coroutines on the runner's own event loop. A time limit cancels; the keeper sees to those that will not stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Coroutine
from time import monotonic
from typing import Any

from windlass.outcome import Completed, Outcome
from windlass.worker import attempt
from windlass.worker.executor import Attempt, Executor, Stop

log = logging.getLogger("windlass.worker")


class LoopExecutor(Executor):
    """Coroutines, many at a time."""

    if sys.version_info >= (3, 12):

        def _begin(self, driving: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            """Its first step is taken at once: a job that never waits needs no turn of the loop."""
            return asyncio.Task(driving, loop=self._loop, eager_start=True, context=self._context.copy())

    def _run(self, one: Attempt) -> Awaitable[Outcome | None]:
        plan = one.plan
        if plan.timeout:
            one.alarm = self._loop.call_later(plan.timeout, self.stop, plan.lease.fence, Stop.TIMEOUT)
        return attempt.arun(plan, one.job)

    def _end(self, one: Attempt, outcome: Outcome | None) -> None:
        plan = one.plan
        if plan.timeout and isinstance(outcome, Completed) and (took := monotonic() - one.began) > plan.timeout:
            # Nothing could cancel it: the loop did not turn. What is done is done.
            told = '%s: done, but after %.1f s, and its limit is %g s: a job blocks the event loop; use run="process"'
            log.warning(told, plan.title, took, plan.timeout)
        super()._end(one, outcome)
