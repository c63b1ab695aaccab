"""Runs plain functions in threads. A thread cannot be stopped: a cancelled job is told, and heard out.

To wake a thread, and the loop again, costs more than a short job does. So a thread takes job after job while there are
any, another is woken only for what the first would not be through with at once, and the loop is called once for all
that end before it comes to look.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from threading import Lock
from time import monotonic
from typing import Any

from windlass.values.outcome import Outcome
from windlass.worker import attempt
from windlass.worker.executors.base import Attempt, Executor

AT_ONCE = 0.0002  # seconds of work for a thread that no other is woken for
OVERDUE = 0.001  # seconds after which what still waits for a thread gets another, whatever was expected
STUCK = 0.005  # seconds without another job taken, while some wait: those threads have long ones
WARY = 1.0  # seconds after that in which no job is left to a thread at work
NO_THREADS = 0.1  # seconds until it is tried again to start one


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


class ThreadExecutor(Executor):
    """Threads, one for each slot, started when they are needed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._pool = ThreadPoolExecutor(max(1, self.limit), thread_name_prefix="windlass-job")
        self._lock = Lock()
        self._begun: deque[tuple[Attempt, asyncio.Future[Outcome]]] = deque()
        self._at_work = 0  # threads that take what has begun; both under the lock
        self._takes = 1.0  # seconds that a job is on its thread, as of late
        self._look: asyncio.TimerHandle | None = None  # whether something is overdue
        self._taken_at = 0.0  # when a thread last took a job
        self._wary_until = 0.0
        self._ended: deque[tuple[asyncio.Future[Outcome], Outcome | BaseException]] = deque()
        self._called = False  # the loop will look at what has ended

    async def _run(self, one: Attempt) -> Outcome | None:
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        with self._lock:
            self._begun.append((one, answer))
            soon_done = len(self._begun) * self._takes <= self._at_work * AT_ONCE and monotonic() > self._wary_until
            help_wanted = self._at_work < self.most and not soon_done
            self._at_work += help_wanted
        if help_wanted:
            self._hire(one, answer)
        elif self._look is None:
            self._look = self._loop.call_later(OVERDUE, self._help_out)
        return await answer

    def _help_out(self) -> None:
        """More threads for what waits behind a job that takes longer than they did of late."""
        self._look = None
        with self._lock:
            wanted = min(len(self._begun), self.most - self._at_work)
            self._at_work += wanted
        now = monotonic()
        if wanted and now - self._taken_at > STUCK:
            self._wary_until = now + WARY
        for hired in range(wanted):
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # no more threads are to be had: those at work take it in their turn
                with self._lock:
                    self._at_work -= wanted - hired
                self._look = self._loop.call_later(NO_THREADS, self._help_out)
                return

    def _hire(self, one: Attempt, answer: asyncio.Future[Outcome]) -> None:
        try:
            self._pool.submit(self._work)
        except BaseException:  # no more threads are to be had: unless another takes it, it was not begun
            with self._lock:
                self._at_work -= 1
                if (one, answer) not in self._begun:
                    return
                self._begun.remove((one, answer))
            raise

    def _work(self) -> None:
        """What a thread does, until nothing is left to do."""
        while True:
            with self._lock:
                if not self._begun:
                    self._at_work = max(0, self._at_work - 1)
                    return
                one, answer = self._begun.popleft()
            self._taken_at = began = monotonic()
            try:
                # In a context of its own: a job must not see what an earlier one has set.
                told: Outcome | BaseException = Context().run(attempt.run, one.plan, one.job, self._wait_for)
            except BaseException as error:  # not the job's own: those are outcomes already
                told = error
            # One that was interrupted by other threads is no reason to think that all take so long.
            self._takes += 0.1 * (min(monotonic() - began, 4 * self._takes) - self._takes)
            self._ended.append((answer, told))
            if not self._called:
                self._called = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    return  # the loop has ended, and nobody waits any more

    def _deliver(self) -> None:
        self._called = False  # first: what comes from now on calls again
        while self._ended:
            answer, told = self._ended.popleft()
            if answer.done():
                continue
            if isinstance(told, BaseException):
                answer.set_exception(told)
            else:
                answer.set_result(told)

    def _wait_for(self, returned: Awaitable[Any]) -> Any:
        """A plain wrapper around an `async def` looks like a plain function, and returns a coroutine."""
        return asyncio.run_coroutine_threadsafe(_awaited(returned), self._loop).result()

    def _interrupt(self, one: Attempt) -> None:
        """Nothing can be done but wait: it is given back when it has ended, or its process has."""

    def close(self) -> None:
        """Begin no more; what runs goes on."""
        if self._look is not None:
            self._look.cancel()
        with self._lock:
            self._begun.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
