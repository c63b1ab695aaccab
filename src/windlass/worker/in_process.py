"""A worker inside another program: `await app.worker().run()`. It has no supervisor; a thread renews the leases.

Its limits: a job that holds the GIL for longer than the lease loses the lease, and no job can be killed. So this worker
leaves tasks that run in processes to other workers. Use `windlass worker` in production.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn

from msgspec import structs

from windlass.app import Windlass
from windlass.errors import InvalidOption, KeyConflict, WindlassError
from windlass.transport import Flow, Session
from windlass.values.boot_clock import awake
from windlass.values.worker_record import WorkerRecord
from windlass.worker import process_info
from windlass.worker.app_facts import KnownTasks, QueueFacts, facts_of, is_for_processes, needs_processes
from windlass.worker.cancellations import listen_for_cancellations
from windlass.worker.heartbeat import send_heartbeat
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.presence import keep_presence
from windlass.worker.runner.runner import Runner
from windlass.worker.server_check import check_server
from windlass.worker.settings import BEATS_PER_LEASE, SAFE_LEASE_SHARE, Settings, lease_on, worker_record

log = logging.getLogger("windlass.worker")

_REMEDY = "start `windlass worker module:app` for them"


class Worker:
    """Runs an app's jobs on this event loop and in threads of this process."""

    def __init__(self, app: Windlass, settings: Settings, *, queues_are_chosen: bool) -> None:
        """Raises `InvalidOption` for a chosen queue that this worker cannot serve. Of all queues, it leaves it out."""
        self._app = app
        self._known = KnownTasks.of(app)
        self._settings = settings if queues_are_chosen else _without_process_queues(app, settings)
        if unfit := sorted(filter(partial(needs_processes, app), self._settings.queues)):
            raise InvalidOption(
                f'{_named("queue", unfit)}: all tasks there have run="process", and a worker inside another program '
                f"has no child processes: {_REMEDY}"
            )
        self._runner: Runner | None = None
        self._cancellations: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop` is called or this task is cancelled; then return the running jobs to their queues."""
        if self._stopping.is_set():
            return
        loop = asyncio.get_running_loop()
        settings = self._settings
        _warn_of_process_tasks(self._app, settings.queues)
        if settings.allow_unsafe:
            self._app.tolerate_eviction()
        await check_server(self._app, allow_unsafe=settings.allow_unsafe)
        heartbeat = _Heartbeat(self._app, settings, lambda: loop.call_soon_threadsafe(self._restart))
        slot_table = SlotTable.create(settings.entries)
        self._runner = Runner(
            self._app, settings, settings.name, slot_table, NoChildren(), lambda queue: heartbeat.beat_now()
        )
        await asyncio.to_thread(heartbeat.register)
        heartbeat.start()
        self._heartbeat = heartbeat
        self._listen()
        self._slot_table, self._started_at = slot_table, time.time()
        presence = asyncio.create_task(
            keep_presence(self._app, settings.name, self._record, settings.lease / BEATS_PER_LEASE, self._stopping)
        )
        working = asyncio.create_task(self._runner.run())
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await self._runner.drain(0)
            await working
            raise
        finally:
            if self._cancellations is not None:
                self._cancellations.cancel()
            presence.cancel()
            await asyncio.wait([presence])
            await asyncio.to_thread(heartbeat.stop)
            await self._unregister(heartbeat.holder)
            self._runner.close()
            log.info("Worker %s stopped; jobs run: %d", settings.name, slot_table.finished)
            slot_table.close()

    async def _unregister(self, holder: str) -> None:
        """Forget the holder on every queue, or its peers would later count it as a lost worker."""
        calls = [self._app.layout(queue).unregister_holder(holder) for queue in self._settings.queues]

        def flow(session: Session) -> Flow[None]:
            for call in calls:
                yield from session.perform(call, 1.0)

        try:
            await self._app._flows.arun(flow)
        except WindlassError as error:
            log.debug("Cannot unregister holder %s; its registration will expire: %s", holder, error)

    async def stop(self, grace: float | None = None) -> None:
        """Lease no more jobs, give running ones `grace` seconds (default: the worker's) to finish, and end."""
        self._stopping.set()
        if self._runner is not None:
            await self._runner.drain(self._settings.grace if grace is None else grace)

    def _record(self) -> WorkerRecord:
        return worker_record(
            self._settings,
            started_at=self._started_at,
            running=len(self._slot_table.running()),
            finished=self._slot_table.finished,
            rss=process_info.rss(os.getpid()),
            stopping=self._stopping.is_set(),
            suspended=self._runner.suspended if self._runner else {},
            known=self._known,
        )

    def _listen(self) -> None:
        async def cancel(queue: str, id: str, fence: int | None) -> None:
            assert self._runner is not None
            if fence is not None:
                self._runner.stop_attempt(queue, fence)
            else:
                self._runner.cancel(queue, id)

        if self._cancellations is not None:
            self._cancellations.cancel()
        listening = listen_for_cancellations(self._app, self._settings.queues, self._heartbeat.holder, cancel)
        self._cancellations = asyncio.create_task(listening)

    def _restart(self) -> None:
        """Stop all jobs, because their leases are lost, and go on under the heartbeat's new holder name."""
        assert self._runner is not None
        log.error(
            "Worker %s lost its leases: stopping its running jobs and ignoring their results", self._settings.name
        )
        self._runner.restart_as(self._heartbeat.holder)
        self._listen()


class _Heartbeat(threading.Thread):
    """Renews the leases of one holder. When they are lost, it takes a new holder name and calls `on_lost`."""

    def __init__(self, app: Windlass, settings: Settings, on_lost: Callable[[], object]) -> None:
        super().__init__(name="windlass-heartbeat", daemon=True)
        self._app = app
        self._settings = settings
        self._on_lost = on_lost
        self._names = 0
        self._ended = False
        self._beat_wanted = threading.Event()
        self.holder = settings.name
        self._lease = min(lease_on(app.layout(queue), settings.lease) for queue in settings.queues)
        self._kept_at = awake()

    def register(self) -> None:
        """Register the holder on every queue."""
        facts = facts_of(self._app, with_processes=False)
        for queue in self._settings.queues:
            try:
                self._beat(queue, facts.of(queue), register=True)
            except KeyConflict as error:
                log.error("Queue %s cannot be used, going on with the others: %s", queue, error)
        self._kept_at = awake()

    def run(self) -> None:
        while not self._pause():
            asked_at = awake()
            try:
                is_lost = not self._beat_all()
            except Exception as error:  # also a bug: without this thread every lease would end
                is_bug = not isinstance(error, WindlassError)
                text = "Heartbeat failed; retrying in %.1f s: %s"
                log.warning(text, self._lease / BEATS_PER_LEASE, error, exc_info=error if is_bug else None)
                is_lost = awake() - self._kept_at >= self._lease * SAFE_LEASE_SHARE
            else:
                self._kept_at = self._kept_at if is_lost else asked_at
            if is_lost:
                self._restart()

    def _beat_all(self) -> bool:
        """Beat on every queue, even if one has lost the leases. Returns whether all leases are renewed."""
        facts = facts_of(self._app, with_processes=False)  # anew: tasks may have been declared since
        return all([self._beat_safely(queue, facts.of(queue)) for queue in self._settings.queues])  # noqa: C419  # all

    def _pause(self) -> bool:
        """Wait until the next beat is due or requested. Returns whether the thread must end."""
        self._beat_wanted.wait(self._lease / BEATS_PER_LEASE)
        self._beat_wanted.clear()
        return self._ended

    def beat_now(self) -> None:
        """Beat now, to learn whether the leases still exist."""
        self._beat_wanted.set()

    def _restart(self) -> None:
        self._names += 1
        self.holder = f"{self._settings.name}.{self._names}"
        try:
            self.register()
        except WindlassError as error:
            log.warning("Cannot register holder %s; retrying with the next heartbeat: %s", self.holder, error)
        self._on_lost()

    def _beat_safely(self, queue: str, facts: QueueFacts) -> bool:
        try:
            return self._beat(queue, facts)
        except KeyConflict as error:
            log.error("Queue %s cannot be used: %s", queue, error)
            return True  # no worker can lease from a damaged queue, so its leases are safe

    def _beat(self, queue: str, facts: QueueFacts, *, register: bool = False) -> bool:
        layout = self._app.layout(queue)
        return self._app._flows.run(
            lambda session: send_heartbeat(session, layout, self.holder, self._settings.lease, facts, register=register)
        )

    def stop(self) -> None:
        """End the thread."""
        self._ended = True
        self._beat_wanted.set()
        self.join()


def _without_process_queues(app: Windlass, settings: Settings) -> Settings:
    """The settings without the queues that need processes, unless no queue would remain."""
    fit = {queue: weight for queue, weight in settings.queues.items() if not needs_processes(app, queue)}
    left_out = sorted(settings.queues.keys() - fit.keys())
    if not fit or not left_out:
        return settings
    text = '%s left out: all tasks there have run="process", and this worker has no child processes: %s'
    log.warning(text, _named("Queue", left_out), _REMEDY)
    return structs.replace(settings, queues=fit)


def _warn_of_process_tasks(app: Windlass, queues: Iterable[str]) -> None:
    served = set(queues)
    if left := sorted(task.name for task in app.tasks.values() if task.queue in served and is_for_processes(task)):
        text = '%s: jobs wait for another worker, because run="process" needs child processes: %s'
        log.warning(text, _named("Task", left), _REMEDY)


def _named(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"


class NoChildren:
    """Stands in for the source of child processes: this worker has none, and none of its tasks needs one."""

    async def child(self, slot: int) -> NoReturn:
        raise InvalidOption("a worker inside another program has no child processes")

    async def ending(self, pid: int) -> NoReturn:
        raise InvalidOption("a worker inside another program has no child processes")

    def forget(self, pid: int) -> None:
        pass

    def kill(self, slot: int, why: str) -> None:
        pass
