"""Runs plain functions in threads. A thread cannot be stopped: a cancelled job sees `job.cancelled` and runs on.

Waking a thread, and then the event loop, costs more than a short job. So a thread takes jobs as long as there are any,
another thread wakes only for work that the busy ones cannot finish quickly, and the loop is called once for all jobs
that end before it runs.
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

SHORT_BACKLOG_S = 0.0002  # a busy thread finishes this much work sooner than another thread would wake up
RECHECK_AFTER_S = 0.001  # a job that still waits after this gets another thread, in case the estimate was wrong
LONG_JOB_AFTER_S = 0.005  # no thread took a waiting job for this long: the threads run long jobs
NO_SHARING_FOR_S = 1.0  # after that, each job gets a thread at once: long jobs often come in a series
THREAD_RETRY_S = 0.1  # between two tries to start a thread when the system has none left


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


class ThreadExecutor(Executor):
    """Runs functions in threads, at most one per slot, started on demand."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._pool = ThreadPoolExecutor(max(1, self.limit), thread_name_prefix="windlass-job")
        self._lock = Lock()
        self._pending: deque[tuple[Attempt, asyncio.Future[Outcome]]] = deque()
        self._busy = 0  # threads that take jobs from `_pending`; the lock guards both
        self._typical_run_s = 1.0  # moving average of a job's time on its thread
        self._recheck: asyncio.TimerHandle | None = None  # checks for jobs that still wait for a thread
        self._taken_at = 0.0  # when a thread last took a job
        self._no_sharing_until = 0.0
        self._ended: deque[tuple[asyncio.Future[Outcome], Outcome | BaseException]] = deque()
        self._delivery_scheduled = False  # the loop will call `_deliver`

    async def _run(self, one: Attempt) -> Outcome | None:
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        with self._lock:
            self._pending.append((one, answer))
            soon_done = (
                len(self._pending) * self._typical_run_s <= self._busy * SHORT_BACKLOG_S
                and monotonic() > self._no_sharing_until
            )
            wants_thread = self._busy < self.capacity and not soon_done
            self._busy += wants_thread
        if wants_thread:
            self._add_thread(one, answer)
        elif self._recheck is None:
            self._recheck = self._loop.call_later(RECHECK_AFTER_S, self._add_threads)
        return await answer

    def _add_threads(self) -> None:
        """Start more threads for jobs that wait behind one that takes longer than usual."""
        self._recheck = None
        with self._lock:
            missing = min(len(self._pending), self.capacity - self._busy)
            self._busy += missing
        now = monotonic()
        if missing and now - self._taken_at > LONG_JOB_AFTER_S:
            self._no_sharing_until = now + NO_SHARING_FOR_S
        for started in range(missing):
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # the system has no more threads: the busy ones take these jobs later
                with self._lock:
                    self._busy -= missing - started
                self._recheck = self._loop.call_later(THREAD_RETRY_S, self._add_threads)
                return

    def _add_thread(self, one: Attempt, answer: asyncio.Future[Outcome]) -> None:
        try:
            self._pool.submit(self._work)
        except BaseException:  # the system has no more threads: the job fails unless a busy thread took it
            with self._lock:
                self._busy -= 1
                if (one, answer) not in self._pending:
                    return
                self._pending.remove((one, answer))
            raise

    def _work(self) -> None:
        """Run pending jobs in this thread until none is left."""
        while True:
            with self._lock:
                if not self._pending:
                    self._busy = max(0, self._busy - 1)
                    return
                one, answer = self._pending.popleft()
            self._taken_at = began = monotonic()
            try:
                # A context of its own: a job must not see context variables of an earlier job.
                result: Outcome | BaseException = Context().run(attempt.run, one.plan, one.job, self._wait_for)
            except BaseException as error:  # a bug in the executor: errors of the job are outcomes already
                result = error
            # Bounded, because a job that other threads interrupt looks much longer than it is.
            self._typical_run_s += 0.1 * (min(monotonic() - began, 4 * self._typical_run_s) - self._typical_run_s)
            self._ended.append((answer, result))
            if not self._delivery_scheduled:
                self._delivery_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    return  # the loop has ended, so no task waits for the result

    def _deliver(self) -> None:
        self._delivery_scheduled = False  # first, so that jobs that end from now on schedule another delivery
        while self._ended:
            answer, result = self._ended.popleft()
            if answer.done():
                continue
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    def _wait_for(self, returned: Awaitable[Any]) -> Any:
        """Await what a function returned: a plain wrapper around an `async def` returns a coroutine."""
        return asyncio.run_coroutine_threadsafe(_awaited(returned), self._loop).result()

    def _interrupt(self, one: Attempt) -> None:
        """Do nothing: a thread cannot be stopped. Its job goes back when it ends or its process does."""

    def close(self) -> None:
        """Start no more jobs; running ones go on."""
        if self._recheck is not None:
            self._recheck.cancel()
        with self._lock:
            self._pending.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
