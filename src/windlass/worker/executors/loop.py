"""Runs coroutines on the runner's own event loop.

A time limit cancels the coroutine. If it ignores that, the supervisor kills the runner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from time import monotonic

from windlass.values.outcome import Completed, Outcome
from windlass.worker import attempt
from windlass.worker.executors.base import Attempt, Executor, Stop

log = logging.getLogger("windlass.worker")


class LoopExecutor(Executor):
    """Runs coroutines concurrently."""

    def _run(self, one: Attempt) -> Awaitable[Outcome | None]:
        plan = one.plan
        if plan.timeout:
            one.alarm = self._loop.call_later(plan.timeout, self.stop, one.key, Stop.TIMEOUT)
        return attempt.arun(plan, one.job)

    def _after_timed_attempt(self, alarm: asyncio.TimerHandle, one: Attempt, outcome: Outcome | None) -> None:
        super()._after_timed_attempt(alarm, one, outcome)
        plan, took = one.plan, monotonic() - one.began
        if plan.timeout and isinstance(outcome, Completed) and took > plan.timeout:
            # The blocked event loop could not cancel the job, and its work is done.
            text = '%s: done after %.1f s, over its timeout of %g s: a job blocks the event loop; use run="process"'
            log.warning(text, plan.title, took, plan.timeout)
