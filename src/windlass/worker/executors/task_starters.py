"""Starts the waiting jobs of an executor, so that a job that never waits costs little more than a call.

An asyncio task costs more than such a job, if the event loop has to schedule it. Since Python 3.12 a task can start
eagerly: it takes its first step at once, and the loop never sees it if that was all. On Python 3.11 the jobs share a
task until one has to wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from time import monotonic
from types import coroutine
from typing import Any

MAX_LOOP_HOLD_S = 0.001  # jobs that never wait yield to the event loop this often
MAX_STARTERS = 8  # new shared tasks in one iteration of the event loop, so that they do not delay I/O

Driving = Coroutine[Any, Any, None]  # one attempt, from its start to its end


class Starter:
    """Calls `start_next` while `startable` jobs are left. Each attempt gets a copy of the context."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        startable: Callable[[], int],
        start_next: Callable[[], Driving | None],
    ) -> None:
        self._loop = loop
        self._context = context
        self._startable = startable
        self._start_next = start_next

    def wake(self) -> None:
        """Start waiting jobs soon, if any can be started. Cheap to call often."""
        raise NotImplementedError


if sys.version_info >= (3, 12):

    class EagerStarter(Starter):
        """Gives each job an eager task."""

        _scheduled = False

        def wake(self) -> None:
            if not self._scheduled and self._startable():
                self._scheduled = True
                self._loop.call_soon(self._start_waiting)

        def _start_waiting(self) -> None:
            pause_at = monotonic() + MAX_LOOP_HOLD_S
            try:
                while (driving := self._start_next()) is not None:
                    # Not loop.create_task: its factory is the application's to choose.
                    asyncio.Task(driving, loop=self._loop, context=self._context.copy(), eager_start=True)
                    if monotonic() > pause_at:
                        break
            finally:
                self._scheduled = False
            self.wake()


class SharedTaskStarter(Starter):
    """Runs jobs one after the other in one task, as long as each ends in its first step."""

    _starters = 0  # tasks that are about to start waiting jobs

    def wake(self) -> None:
        if not self._starters:
            self._add_starter()

    def _add_starter(self) -> None:
        if self._starters < min(MAX_STARTERS, self._startable()):
            self._starters += 1
            asyncio.Task(self._run(), loop=self._loop, context=self._context.copy())

    async def _run(self) -> None:
        """Start jobs. The first one that has to wait keeps this task.

        Two more starters then take over, so that a hundred such jobs are running within a few turns of the loop.
        """
        waiting = None
        try:
            waiting = await self._start_waiting()
        finally:
            self._starters -= 1
            self._add_starter()
            self._add_starter()
        if waiting is not None:
            await _finish(*waiting)

    async def _start_waiting(self) -> tuple[Driving, Any] | None:
        """Start waiting jobs. Returns the first one that did not end in its first step, and the future it awaits."""
        task = asyncio.current_task()
        assert task is not None
        pause_at = monotonic() + MAX_LOOP_HOLD_S
        while (driving := self._start_next()) is not None:
            try:
                return driving, driving.send(None)
            except StopIteration:
                pass
            if task.cancelling() or self._context_changed():
                return None  # the job changed this task; the next job needs a fresh one
            if monotonic() > pause_at:
                await asyncio.sleep(0)
                pause_at = monotonic() + MAX_LOOP_HOLD_S
        return None

    def _context_changed(self) -> bool:
        """Return whether a job has changed the context of this task."""
        try:
            return copy_context() != self._context
        except Exception:  # a context variable's value refuses comparison
            return True


@coroutine
def _finish(driving: Driving, waits_for: Any) -> Generator[Any, Any, None]:
    """Drive a coroutine to its end after its first step, which left it waiting for `waits_for`."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = driving.throw(error)
            else:
                waits_for = driving.send(sent)
    except StopIteration:
        pass


def make_starter(
    loop: asyncio.AbstractEventLoop,
    context: Context,
    startable: Callable[[], int],
    start_next: Callable[[], Driving | None],
) -> Starter:
    """Return the best starter for this Python."""
    if sys.version_info >= (3, 12):
        return EagerStarter(loop, context, startable, start_next)
    return SharedTaskStarter(loop, context, startable, start_next)
