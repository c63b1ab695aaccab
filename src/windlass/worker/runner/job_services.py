"""What a running job may ask of its runner: whether it is cancelled, to send its progress, to hand over a job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.tasks.call import TaskCall
from windlass.values.job import Lease
from windlass.values.outcome import HandOver
from windlass.values.printable import in_one_line
from windlass.worker.executors.base import Executor, Key, key_of

log = logging.getLogger("windlass.worker")

PROGRESS_EVERY_S = 0.1  # between two progress reports of one job: enough for a person, cheap for the server


class RunnerServices:
    """Serves the jobs of one runner. `executors` returns those that may run the job that asks."""

    def __init__(self, app: Windlass, executors: Callable[[], Iterable[Executor]]) -> None:
        self._app = app
        self._executors = executors
        self._loop = asyncio.get_running_loop()
        self._progress: dict[Key, tuple[Lease, float]] = {}
        self._progress_task: asyncio.Task[None] | None = None

    def is_cancelled(self, lease: Lease) -> bool:
        """Return whether a job should stop. Thread-safe."""
        for executor in self._executors():
            one = executor.running.get(key_of(lease))
            if one is not None:
                return one.stop is not None
        return True  # the worker has lost this job

    def progress(self, lease: Lease, value: float) -> None:
        """Send a job's progress soon; only the last value counts. Thread-safe."""
        self._progress[key_of(lease)] = (lease, value)
        if self._progress_task is None:
            self._loop.call_soon_threadsafe(self._begin_progress)

    async def aprogress(self, lease: Lease, value: float) -> bool:
        """Send a job's progress. Returns False if its lease is lost."""
        call = self._app.layout(lease.queue).progress(lease, value)
        return await self._app._flows.arun(lambda session: session.perform(call))

    def prepare(self, lease: Lease, call: TaskCall) -> HandOver:
        """Check a call that a job hands over, and build its job."""
        return self._app.hand_over(lease.queue, call)

    def forget(self, key: Key) -> None:
        """Drop the progress of a job that has ended."""
        self._progress.pop(key, None)

    def _begin_progress(self) -> None:
        if self._progress_task is None:
            self._progress_task = asyncio.create_task(self._send_progress())

    async def _send_progress(self) -> None:
        try:
            while self._progress:
                lease, value = self._progress.pop(next(iter(self._progress)))
                try:
                    await self.aprogress(lease, value)
                except WindlassError as error:
                    title = in_one_line(f"{lease.queue}/{lease.id}")
                    log.warning("%s: progress %g was not stored: %s", title, value, error)
                await asyncio.sleep(PROGRESS_EVERY_S / max(1, len(self._progress)))
        finally:
            self._progress_task = None
