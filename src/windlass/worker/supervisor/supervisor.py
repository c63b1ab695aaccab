"""The supervisor: a process that runs no job. It renews the leases, watches the runners, and returns the jobs of dead
ones to their queues.

It shares no interpreter with any job, so no job can make it miss a heartbeat. It never imports the app: the forkserver
does, and sends the facts that the supervisor needs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Collection, Coroutine
from time import monotonic, time
from typing import Any

import msgspec

from windlass.app import Windlass
from windlass.errors import InvalidOption, NoSuchQueue, WindlassError
from windlass.storage.port import Capability
from windlass.transport.errors import SERVER_UNAVAILABLE
from windlass.values.name_patterns import did_you_mean, matching
from windlass.values.outcome import Released
from windlass.values.printable import in_one_line
from windlass.values.worker_record import WorkerRecord
from windlass.worker.app_facts import AppFacts
from windlass.worker.cancellations import listen_for_cancellations
from windlass.worker.logs import make_logs_nonblocking
from windlass.worker.presence import keep_presence
from windlass.worker.reclaim import Decide, all_held, reclaim
from windlass.worker.server_check import check_server, export_allow_unsafe
from windlass.worker.settings import BEATS_PER_LEASE, MAX_CALLS_AT_ONCE, Settings, worker_record
from windlass.worker.supervisor.code_watch import check_can_watch, watch_code
from windlass.worker.supervisor.forkserver import Ending, ForkServer
from windlass.worker.supervisor.heartbeats import Heartbeats
from windlass.worker.supervisor.runner_death import is_final, judge
from windlass.worker.supervisor.runner_group import RunnerGroup

log = logging.getLogger("windlass.supervisor")

MONITOR_EVERY_S = 0.05  # between two checks of timeouts and leases: the error of a timeout, at a negligible cost
MEMORY_CHECK_EVERY_S = 1.0  # one read of /proc for each process; memory rarely grows much in a second
MIN_RESPAWN_DELAY_S, MAX_RESPAWN_DELAY_S = 0.1, 10.0  # doubles while runners die young, so a broken app costs little
YOUNG_RUNNER_S = 2.0  # a runner that dies earlier probably died of its start, not of a job
NO_DEADLINE_S = 1e9  # the grace of a replaced runner: 30 years
RECLAIM_TIMEOUT_S = (
    2.0  # for reclaiming the jobs of killed runners at the end; else they come back when their leases end
)
CONNECT_WARNING_AFTER_S = 1.0  # a start that waits longer for the server says so
START_RETRY_S = 1.0  # after a group could not start: the cause, often the server or memory, needs time


class Supervisor:
    """One worker: `await Supervisor("module:app", settings).run()` until it is told to stop."""

    def __init__(self, target: str, settings: Settings) -> None:
        self._target = target
        self._requested = settings
        self._groups: list[RunnerGroup] = []
        self._following: set[asyncio.Task[None]] = set()  # one task for each group, until it is gone
        self._background: set[asyncio.Task[None]] = set()
        self._duties: set[asyncio.Task[None]] = set()
        self._code = 0
        self._incarnation = 0
        self._stops = 0
        self._started = asyncio.Event()
        self._stopping = asyncio.Event()
        self._respawn_delay = MIN_RESPAWN_DELAY_S
        self._started_at = time()
        self._finished = 0  # attempts of groups that are gone

    # -- life cycle ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Work until SIGTERM or SIGINT. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        export_allow_unsafe(self._requested.allow_unsafe)
        # Before the import of the app, so that no later change is missed.
        if self._requested.watch:
            check_can_watch()
            self._start_duty("watching the code", self._watch())
        if not await self._unless_stopped(self._open_forkserver()):
            return self._code
        try:
            self._app = Windlass(**msgspec.structs.asdict(self._facts.app))
            self._heartbeats = Heartbeats(
                self._app, self.settings.lease, lambda beat: self._check(beat, "the heartbeat")
            )
            if not await self._unless_stopped(self._start_first_group()):
                return self._code
            self._started.set()
            self._log_start()
            self._start_duty("the heartbeat", self._heartbeats.keep_all(self._groups))
            self._start_duty("the monitor", self._monitor())
            self._start_duty("presence", self._keep_presence())
            await self._stopping.wait()
            await self._drain()
            await self._end(self._background)
            await self._end(self._duties)
            await self._end(self._heartbeats.under_way)
            log.info("Worker %s stopped; jobs run: %d", self.settings.name, self._finished)
        finally:
            await self._forkserver.close()
            await self._app.aclose()
        return self._code

    def _start_duty(self, what: str, duty: Coroutine[Any, Any, None]) -> None:
        """Start a task that runs as long as the worker."""
        task = asyncio.create_task(duty)
        self._duties.add(task)
        task.add_done_callback(lambda task: self._check(task, what))

    def _check(self, task: asyncio.Task[Any], what: str) -> None:
        """End the worker if one of its duties fails: other workers can only take over from a worker that is gone."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("Internal error in %s; the worker stops. Please report this traceback", what, exc_info=error)
            self._code = 1
            if not self._stopping.is_set():
                self.stop()

    async def _end(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _log_start(self) -> None:
        settings = self.settings
        queues = ", ".join(name if weight == 1 else f"{name}={weight}" for name, weight in settings.queues.items())
        most = "up to " if settings.auto else ""
        log.info(
            "Worker %s started on queues %s: %s%d coroutines, %d threads, %d processes",
            settings.name,
            queues,
            most,
            settings.concurrency,
            settings.threads,
            settings.processes,
        )

    async def _unless_stopped(self, beginning: Coroutine[Any, Any, None]) -> bool:
        """Run a step of the start, unless `stop` comes first. Returns whether the step was completed."""
        begun, stopping = asyncio.create_task(beginning), asyncio.create_task(self._stopping.wait())
        await asyncio.wait([begun, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not begun.done():
            begun.cancel()
            await asyncio.wait([begun])
            if begun.cancelled():
                return False
        await begun
        return True

    async def _start_first_group(self) -> None:
        """Start the first group. Logs a warning if the server does not answer soon."""
        try:
            # No limit for the embedded server, which may have to be started first.
            async with asyncio.timeout(None if self._app.is_embedded else CONNECT_WARNING_AFTER_S):
                await self._app.is_cluster()
        except (*SERVER_UNAVAILABLE, TimeoutError) as error:
            why = str(error) or f"no answer within {CONNECT_WARNING_AFTER_S:g} s"
            log.warning("Cannot reach the server, trying for %g s: %s", self._app.given.retry_for, why)
        await check_server(self._app, allow_unsafe=self.settings.allow_unsafe)
        await self._start_group()

    async def _open_forkserver(self) -> None:
        """Start a forkserver, which imports the app. Its facts apply from the next group on."""
        forkserver = await ForkServer.open(self._target, facts="windlass.worker.app_facts:describe")
        try:
            facts = msgspec.convert(forkserver.facts["windlass"], AppFacts)
            self.settings = self._with_queues(self._requested, facts)
        except BaseException:
            await forkserver.close()
            raise
        self._forkserver, self._facts = forkserver, facts

    def _with_queues(self, settings: Settings, facts: AppFacts) -> Settings:
        """Fill in the app's own queues if none or patterns were given, and one child process, which suspects need."""
        settings = msgspec.structs.replace(settings, processes=max(1, settings.processes))
        if not facts.elsewhere.tasks and not facts.queues:
            raise InvalidOption(
                f"{self._target} declares no task and no handler: declare one with @app.task or @app.handler"
            )
        own = set(facts.queues)
        queues = self._chosen_queues(settings.queues, own) if settings.queues else dict.fromkeys(facts.queues, 1)
        for name in queues:
            if name not in own:
                text = (
                    "Queue %s has no task, handler or schedule in %s: the worker runs only calls that are sent there.%s"
                )
                log.warning(text, name, self._target, did_you_mean(name, own))
        return msgspec.structs.replace(settings, queues=queues)

    def _chosen_queues(self, given: dict[str, int], own: set[str]) -> dict[str, int]:
        """Replace patterns by the names of the app's own queues; the weight of a plain name counts."""
        queues: dict[str, int] = {}
        for name, weight in given.items():
            if not (found := matching(name, own)):
                raise NoSuchQueue(f"no queue of {self._target} matches {name!r}: it has {', '.join(sorted(own))}")
            queues |= dict.fromkeys(found, weight)
        return queues | {name: weight for name, weight in given.items() if name in queues}

    def stop(self) -> None:
        """First call: finish running jobs. Second: release them now. Third: exit at once."""
        self._stops += 1
        if self._stops == 1:
            more = f"; running jobs have {self._requested.grace:g} s to finish" if self._started.is_set() else ""
            log.info("Stopping%s", more)
            self._stopping.set()
        elif self._stops == 2:
            log.info("Stopping now; running jobs are released")
            for group in self._groups:
                group.drain(0)
        else:
            log.info("Exiting at once; the runner releases its jobs, or they come back when their leases end")
            os._exit(1)  # the forkserver and all its processes end with this process

    async def _drain(self) -> None:
        for group in self._groups:
            group.drain(self._job_grace())
        deadline = monotonic() + self.settings.grace
        while self._following and monotonic() < deadline:
            await asyncio.wait(self._following, timeout=max(0.0, deadline - monotonic()))
        for group in self._groups:
            group.kill("it did not end within the grace period")
        if self._following:
            await asyncio.wait(self._following, timeout=RECLAIM_TIMEOUT_S)
        if self._following:
            log.error("The server does not answer; the jobs of the killed runners come back when their leases end")
        await self._end(self._following)

    def _job_grace(self) -> float:
        """Return the part of the grace for jobs. The rest is for releasing unfinished ones."""
        return max(0.0, self.settings.grace - min(2.0, self.settings.grace / 3))

    # -- groups ---------------------------------------------------------------------------------------

    async def _start_group(self) -> None:
        """Start a group under a new holder name. The old name keeps its leases until they are reclaimed."""
        self._incarnation += 1
        group = RunnerGroup(self._forkserver, self._facts, self.settings, f"{self.settings.name}.{self._incarnation}")
        try:
            await self._heartbeats.register(group)
            starting = asyncio.create_task(group.start())
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:  # too late: the runner may have jobs already and must be drained
                await starting
        except BaseException:
            group.discard()
            raise
        self._groups.append(group)
        self._track(self._following, self._follow(group))
        if self._stopping.is_set():  # `stop` was called meanwhile
            group.drain(self._job_grace())

    def _track(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)
        task.add_done_callback(lambda task: self._check(task, "the supervisor"))

    async def _follow(self, group: RunnerGroup) -> None:
        """Follow a group from its start until it is gone, reclaim its jobs, and replace it."""

        async def cancel(queue: str, id: str, fence: int | None) -> None:
            if fence is not None:
                group.stop_attempt(queue, fence)
            else:
                group.cancel(queue, id, await self._cancelled(group.holder, queue, id))

        listening = asyncio.create_task(
            listen_for_cancellations(self._app, group.settings.queues, group.holder, cancel)
        )
        ending = await asyncio.shield(group.runner.exited)
        listening.cancel()
        group.kill_children()
        if group.forkserver.gone.done():
            group.why = group.why or "the forkserver died"
        ended_cleanly = group.leaving and ending.code == 0
        if not ended_cleanly and not group.why:
            log.error("Runner %s died (%s); reclaiming its jobs", group.holder, ending)
        elif not ended_cleanly:
            log.error("Runner %s was killed: %s; reclaiming its jobs", group.holder, group.why)
        replacing = None if self._stopping.is_set() or group.leaving else asyncio.create_task(self._replace(group))
        await group.children_gone()
        await self._reclaim(group, ending)
        self._groups.remove(group)
        self._finished += group.slot_table.finished
        group.slot_table.close()
        group.gone.set_result(None)
        if replacing is not None:
            await replacing

    async def _cancelled(self, holder: str, queue: str, id: str) -> set[int]:
        """Return the fences of a cancelled job; in a layout without unique ids there may be several."""
        layout = self._app.layout(queue)
        if Capability.IDS in layout.can:
            record = await self._app._flows.arun(lambda session: session.perform(layout.get(id)))
            return {record.fence} if record and record.fence else set()
        held = await self._app._flows.arun(lambda session: all_held(session, layout, holder))
        return {record.fence for record in held if record.id == id and record.cancelled and record.fence}

    async def _replace(self, group: RunnerGroup) -> None:
        """Start another group for one that died, with a growing delay while runners die young."""
        if group.slot_table.finished and group.runner.exited.result().signal is not None:
            self._respawn_delay = MIN_RESPAWN_DELAY_S  # it ran jobs until a signal killed it, so its start is fine
        if group.why:
            self._respawn_delay = MIN_RESPAWN_DELAY_S  # we killed it ourselves
        elif monotonic() - group.started_at < YOUNG_RUNNER_S:
            await asyncio.sleep(self._respawn_delay)
            self._respawn_delay = min(self._respawn_delay * 2, MAX_RESPAWN_DELAY_S)
        else:
            self._respawn_delay = MIN_RESPAWN_DELAY_S
        await self._start_group_until_done()

    async def _start_group_until_done(self) -> None:
        """Start a group, and keep trying until it works or the worker stops."""
        while not self._stopping.is_set():
            try:
                if self._forkserver.gone.done():
                    log.error("The forkserver died (%s); starting a new one", self._forkserver.gone.result())
                    await self._open_forkserver()
                await self._start_group()
                return
            except (WindlassError, OSError) as error:
                log.error("Cannot start a new runner; retrying in %g s: %s", START_RETRY_S, error)
                await asyncio.sleep(START_RETRY_S)

    # -- reclaiming the jobs of a dead runner --------------------------------------------------------

    async def _reclaim(self, group: RunnerGroup, ending: Ending) -> None:
        decide = judge(group, ending)
        at_once = asyncio.Semaphore(MAX_CALLS_AT_ONCE)

        async def reclaim_queue(queue: str) -> None:
            async with at_once:
                await self._reclaim_queue(group, queue, decide)

        # Queues that cannot be reached come last: their calls keep their places until they time out.
        await asyncio.gather(
            *map(reclaim_queue, sorted(group.settings.queues, key=self._heartbeats.failing.__contains__))
        )

    async def _reclaim_queue(self, group: RunnerGroup, queue: str, decide: Decide) -> None:
        try:
            outcomes = await reclaim(self._app, queue, group.holder, decide)
        except WindlassError as error:
            log.error(
                "Cannot reclaim the runner's jobs of queue %s; they come back when their leases end: %s", queue, error
            )
            return
        for outcome in outcomes:
            if not isinstance(outcome, Released):
                message = getattr(outcome, "message", "").partition("\n")[0]
                end = "; failed for good" if is_final(outcome) else ""
                log.error("%s: %s%s", in_one_line(f"{queue}/{outcome.lease.id}"), message, end)
        back = sum(not is_final(outcome) for outcome in outcomes)
        if back:
            log.info("Queue %s: %s reclaimed", queue, "1 job" if back == 1 else f"{back} jobs")

    # -- presence -------------------------------------------------------------------------------------

    async def _keep_presence(self) -> None:
        """Publish the worker's record, in a task of its own, so that a slow registry does not delay heartbeats."""
        await keep_presence(
            self._app, self.settings.name, self._record, self.settings.lease / BEATS_PER_LEASE, self._stopping
        )

    def _record(self) -> WorkerRecord:
        groups = list(self._groups)
        sizes = [group.rss for group in groups] + [child.rss for group in groups for child in group.children.values()]
        return worker_record(
            self.settings,
            started_at=self._started_at,
            running=sum(len(group.slot_table.running()) for group in groups),
            finished=self._finished + sum(group.slot_table.finished for group in groups),
            rss=sum(size or 0 for size in sizes) or None,
            stopping=self._stopping.is_set(),
            known=self._facts.known,
            suspended={queue: why for group in groups for queue, why in group.suspended.items()},
        )

    # -- monitor --------------------------------------------------------------------------------------

    async def _monitor(self) -> None:
        """Enforce timeouts, memory limits and lease expiry."""
        measured_at = monotonic()
        while True:
            await asyncio.sleep(MONITOR_EVERY_S)
            now = monotonic()
            for group in list(self._groups):
                group.enforce()
                self._heartbeats.stop_expired(group)
            if now - measured_at >= MEMORY_CHECK_EVERY_S:
                measured_at = now
                for group in list(self._groups):
                    group.measure_memory()
                    self._recycle(group)
                    group.watch_lag()

    def _recycle(self, group: RunnerGroup) -> None:
        settings = self.settings
        heavy = settings.max_rss and group.rss and group.rss > settings.max_rss
        old = settings.max_jobs and group.slot_table.finished >= settings.max_jobs
        if (heavy or old) and not group.leaving and not self._stopping.is_set():
            why = "its memory is above max_rss" if heavy else "it has run max_jobs jobs"
            log.info("Replacing runner %s: %s", group.holder, why)
            group.drain(NO_DEADLINE_S)
            self._track(self._background, self._start_group_until_done())

    # -- new code --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Start a new runner whenever a file of the program changes; the old one finishes its jobs."""
        async for _ in watch_code():
            await self._started.wait()
            log.info("The code has changed; starting a new runner")
            old = self._forkserver, list(self._groups)
            try:
                await self._open_forkserver()
            except WindlassError as error:
                log.error("Cannot load the new code; the old code goes on: %s", error)
                continue
            await self._start_group_until_done()
            self._track(self._background, self._retire(*old))

    async def _retire(self, forkserver: ForkServer, groups: list[RunnerGroup]) -> None:
        for group in groups:
            group.drain(NO_DEADLINE_S)
        for group in groups:
            await asyncio.wait([group.gone])
        await forkserver.close()


def run_worker(target: str, settings: Settings) -> int:
    """Run a worker in this process until it is stopped. Returns the exit code."""
    make_logs_nonblocking()
    return asyncio.run(Supervisor(target, settings).run())
