"""A worker inside another program: `await app.worker().run()`. No supervisor watches over it; a thread keeps the
leases.

What that cannot do: a job that holds the interpreter for longer than the lease loses it, and nothing can be killed. So
tasks that run in processes are refused here, and `windlass worker` is what production wants.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from windlass.app import Windlass
from windlass.errors import InvalidOption, KeyConflict, WindlassError
from windlass.transport import Flow, Session
from windlass.values.machine import awake
from windlass.values.worker_record import WorkerRecord
from windlass.worker import process_info
from windlass.worker.app_facts import describe_queue
from windlass.worker.cancellations import hear_cancellations
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.presence import show_up
from windlass.worker.runner.runner import Runner, kinds_on
from windlass.worker.safety import check_server
from windlass.worker.settings import BEATS, SAFETY, Settings, lease_on, worker_record

log = logging.getLogger("windlass.worker")


class Worker:
    """Runs an app's jobs on this event loop and in threads of this process."""

    def __init__(self, app: Windlass, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        for queue in settings.queues:
            if "process" in kinds_on(app, queue):
                raise InvalidOption(
                    f'queue {queue!r} has a task with run="process", which a worker inside another program cannot run: '
                    "start `windlass worker module:app` for it, or leave the queue out"
                )
        self._runner: Runner | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop` is called or this is cancelled; what then still runs is given back."""
        if self._stopping.is_set():
            return
        loop = asyncio.get_running_loop()
        settings = self._settings
        if settings.allow_unsafe:
            self._app.tolerate_eviction()
        await check_server(self._app, allow_unsafe=settings.allow_unsafe)
        keeping = _Heartbeat(self._app, settings, lambda: loop.call_soon_threadsafe(self._begin_again))
        slot_table = SlotTable.create(settings.entries)
        self._runner = Runner(
            self._app, settings, settings.name, slot_table, _NoChildren(), lambda queue: keeping.hurry()
        )
        await asyncio.to_thread(keeping.register)
        keeping.start()
        self._keeping = keeping
        self._listen()
        self._slot_table, self._started_at = slot_table, time.time()
        showing = asyncio.create_task(
            show_up(self._app, settings.name, self._about, settings.lease / BEATS, self._stopping)
        )
        working = asyncio.create_task(self._runner.run())
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await self._runner.drain(0)
            await working
            raise
        finally:
            if self._hearing is not None:
                self._hearing.cancel()
            showing.cancel()
            await asyncio.wait([showing])
            await asyncio.to_thread(keeping.stop)
            await self._retire(keeping.holder)
            self._runner.close()
            log.info("stopped; jobs run: %d", slot_table.finished)
            slot_table.close()

    async def _retire(self, holder: str) -> None:
        """Peers must not find a name that is silent for good, and call it lost."""
        calls = [self._app.layout(queue).retire(holder) for queue in self._settings.queues]

        def flow(session: Session) -> Flow[None]:
            for call in calls:
                yield from session.perform(call, 1.0)

        try:
            await self._app.arun(flow)
        except WindlassError as error:
            log.debug("%s", error)

    async def stop(self, grace: float | None = None) -> None:
        """Take no more jobs, let those that run finish (for the worker's grace), and end."""
        self._stopping.set()
        if self._runner is not None:
            await self._runner.drain(self._settings.grace if grace is None else grace)

    def _about(self) -> WorkerRecord:
        return worker_record(
            self._settings,
            started_at=self._started_at,
            running=len(self._slot_table.running()),
            finished=self._slot_table.finished,
            rss=process_info.rss(os.getpid()),
            stopping=self._stopping.is_set(),
            suspended=self._runner.suspended if self._runner else {},
        )

    def _listen(self) -> None:
        async def cancel(queue: str, id: str, fence: int | None) -> None:
            assert self._runner is not None
            if fence is not None:
                self._runner.drop(queue, fence)
            else:
                self._runner.cancel(queue, id)

        if self._hearing is not None:
            self._hearing.cancel()
        hearing = hear_cancellations(self._app, self._settings.queues, self._keeping.holder, cancel)
        self._hearing = asyncio.create_task(hearing)

    def _begin_again(self) -> None:
        """The leases are gone: whatever runs has lost its right to."""
        assert self._runner is not None
        log.error("the leases were lost: running jobs are stopped, and what they return does not count")
        self._runner.begin_again(self._keeping.holder)
        self._listen()


class _Heartbeat(threading.Thread):
    """Keeps the leases of one holder alive; when they are lost, takes a new name and says so."""

    def __init__(self, app: Windlass, settings: Settings, on_lost: Callable[[], object]) -> None:
        super().__init__(name="windlass-heartbeat", daemon=True)
        self._app = app
        self._settings = settings
        self._on_lost = on_lost
        self._names = 0
        self._over = False
        self._wanted = threading.Event()
        self.holder = settings.name
        self._lease = min(lease_on(app.layout(queue), settings.lease) for queue in settings.queues)
        self._kept_at = awake()

    def register(self) -> None:
        """Make the holder known on every queue."""
        for queue in self._settings.queues:
            try:
                self._beat(queue, register=True)
            except KeyConflict as error:
                log.error("%s", error)  # the other queues need a worker all the same
        self._kept_at = awake()

    def run(self) -> None:
        while not self._pause():
            asked_at = awake()
            try:
                if all([self._keep(queue) for queue in self._settings.queues]):  # noqa: C419  # each of them
                    self._kept_at = asked_at
                    continue
            except WindlassError as error:
                log.warning("no heartbeat: %s", error)
                if awake() - self._kept_at < self._lease * SAFETY:
                    continue
            self._begin_again()

    def _pause(self) -> bool:
        """Until the next beat is due or wanted; whether this is the end."""
        self._wanted.wait(self._lease / BEATS)
        self._wanted.clear()
        return self._over

    def hurry(self) -> None:
        """Look now whether the leases are still there."""
        self._wanted.set()

    def _begin_again(self) -> None:
        self._names += 1
        self.holder = f"{self._settings.name}.{self._names}"
        try:
            self.register()
        except WindlassError as error:
            log.warning("no heartbeat: %s", error)
        self._on_lost()

    def _keep(self, queue: str) -> bool:
        try:
            return self._beat(queue)
        except KeyConflict as error:
            log.error("%s", error)  # nobody can take a job of such a queue
            return True

    def _beat(self, queue: str, *, register: bool = False) -> bool:
        layout = self._app.layout(queue)
        facts = describe_queue(self._app, queue)
        lease = lease_on(layout, self._settings.lease)
        call = layout.beat(self.holder, lease, register=register, failure_handler=facts.failure_handler)
        patience = None if register else lease / BEATS
        beat = self._app.run(lambda session: session.perform(call, patience))
        if beat.parked and facts.tasks:
            self._app.run(lambda session: session.perform(layout.unpark(facts.tasks)))
        return beat.known or register

    def stop(self) -> None:
        """No more heartbeats."""
        self._over = True
        self._wanted.set()
        self.join()


class _NoChildren:
    """There are no processes here, and no task wants one."""

    async def child(self, slot: int) -> NoReturn:
        raise InvalidOption("a worker inside another program has no child processes")

    async def ending(self, pid: int) -> NoReturn:
        raise InvalidOption("a worker inside another program has no child processes")

    def forget(self, pid: int) -> None:
        pass

    def kill(self, slot: int, why: str) -> None:
        pass
