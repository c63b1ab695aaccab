"""Runs coroutines on the runner's own event loop. A time limit cancels; the supervisor sees to those that will not
stop."""

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
    """Coroutines, many at a time."""

    def _run(self, one: Attempt) -> Awaitable[Outcome | None]:
        plan = one.plan
        if plan.timeout:
            one.alarm = self._loop.call_later(plan.timeout, self.stop, one.key, Stop.TIMEOUT)
        return attempt.arun(plan, one.job)

    def _disarm(self, alarm: asyncio.TimerHandle, one: Attempt, outcome: Outcome | None) -> None:
        super()._disarm(alarm, one, outcome)
        plan, took = one.plan, monotonic() - one.began
        if plan.timeout and isinstance(outcome, Completed) and took > plan.timeout:
            # Nothing could cancel it: the loop did not turn. What is done is done.
            told = '%s: done, but after %.1f s, and its limit is %g s: a job blocks the event loop; use run="process"'
            log.warning(told, plan.title, took, plan.timeout)
