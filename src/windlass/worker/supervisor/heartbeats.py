"""The heartbeats of a worker's runner groups: each queue of each group by itself, so none delays another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from windlass.app import Windlass
from windlass.errors import KeyConflict, WindlassError
from windlass.values.boot_clock import awake
from windlass.worker.heartbeat import send_heartbeat
from windlass.worker.settings import BEATS_PER_LEASE, MAX_CALLS_AT_ONCE, MAX_FAILING_CALLS, SAFE_LEASE_SHARE, lease_on
from windlass.worker.supervisor.runner_group import RunnerGroup

log = logging.getLogger("windlass.supervisor")

BeatTask = asyncio.Task[WindlassError | None]  # its result: the error, if it failed


class Heartbeats:
    """Registers runner groups and renews their leases. `on_bug` is called with every task, in case it raises."""

    def __init__(self, app: Windlass, lease: float, on_bug: Callable[[BeatTask], None]) -> None:
        self._app = app
        self._lease = lease
        self._on_bug = on_bug
        self._calls = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        self._failing_calls = asyncio.Semaphore(MAX_FAILING_CALLS)
        self.failing: set[str] = set()  # queues that the last heartbeat could not reach
        self.under_way: set[BeatTask] = set()  # at most one for each queue of a group

    async def register(self, group: RunnerGroup) -> None:
        """Register the holder on every queue. Waits shortly for all of them, and then until one has worked.

        The heartbeats register it on the others later.
        """
        tries = [self._start(group, queue) for queue in group.settings.queues]
        _, pending = await asyncio.wait(tries, timeout=self._interval(group.settings.queues))
        while pending and all(each.result() for each in tries if each.done()):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        problems = [error for each in tries if each.done() and (error := each.result()) is not None]
        if len(problems) == len(tries):
            raise problems[0]
        _log_errors(problems)

    async def keep_all(self, groups: Sequence[RunnerGroup]) -> None:
        """Send heartbeats for all groups of a list that others change, until this task is cancelled."""
        while True:
            await asyncio.sleep(self._interval({queue for group in groups for queue in group.settings.queues}))
            for group in list(groups):
                for queue in group.settings.queues:
                    if queue not in group.beating:
                        self._start(group, queue).add_done_callback(_log_result)

    def stop_expired(self, group: RunnerGroup) -> None:
        """Stop jobs whose leases could not be renewed, before other workers start the same jobs."""
        if group.why:
            return  # it is being killed already
        now = awake()
        safe_until = {
            queue: renewed_at + self._lease_on(queue) * SAFE_LEASE_SHARE
            for queue, renewed_at in group.renewed_at.items()
        }
        group.slot_table.set_safe_until(max(safe_until.values()))
        late = [queue for queue, end in safe_until.items() if now > end]
        if late and len(late) == len(group.renewed_at):
            group.kill("its leases could not be renewed")
            return
        for queue in set(late) - group.lost_on:  # for example one node of a cluster is down; the other queues go on
            log.error("Queue %s: leases could not be renewed; stopping its running jobs", queue)
            group.stop_jobs(queue)
        group.lost_on = set(late)

    def _lease_on(self, queue: str) -> float:
        return lease_on(self._app.layout(queue), self._lease)

    def _interval(self, queues: Iterable[str]) -> float:
        return min(map(self._lease_on, queues), default=self._lease) / BEATS_PER_LEASE

    def _start(self, group: RunnerGroup, queue: str) -> BeatTask:
        """Start one heartbeat on one queue."""
        group.beating.add(queue)
        task = asyncio.create_task(self._beat(group, queue))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        task.add_done_callback(lambda _: group.beating.discard(queue))
        task.add_done_callback(self._on_bug)
        return task

    async def _beat(self, group: RunnerGroup, queue: str) -> WindlassError | None:
        async with self._failing_calls if queue in self.failing else self._calls:
            error = await self._beat_now(group, queue)
        if error is None or isinstance(error, KeyConflict):
            self.failing.discard(queue)
        else:
            self.failing.add(queue)
        return error

    async def _beat_now(self, group: RunnerGroup, queue: str) -> WindlassError | None:
        asked_at = awake()
        register = queue in group.unregistered
        layout, facts = self._app.layout(queue), group.facts.of(queue)
        try:
            known = await self._app._flows.arun(
                lambda session: send_heartbeat(session, layout, group.holder, self._lease, facts, register=register)
            )
        except KeyConflict as error:
            group.renewed_at[queue] = asked_at  # no worker can lease from this queue either, so its leases are safe
            return error
        except WindlassError as error:
            return error
        if group.gone.done():  # the group ended during the heartbeat
            return None
        if known:
            group.unregistered.discard(queue)
            group.renewed_at[queue] = asked_at
        elif not group.leaving or group.slot_table.running():
            group.kill("it lost its leases")
        return None


def _log_result(beat: BeatTask) -> None:
    if not beat.cancelled() and beat.exception() is None:
        _log_errors([beat.result()])


def _log_errors(problems: Iterable[WindlassError | None]) -> None:
    for error in problems:
        if isinstance(error, KeyConflict):
            log.error("%s", error)
        elif error is not None:
            log.warning("Heartbeat failed; retrying: %s", error)
