"""The supervisor: the process that runs no job. It keeps the leases alive, sees who dies, and gives back what they
held.

It shares no interpreter with any job, so nothing that a job does can make it miss a heartbeat. It never imports the
app either: the forkserver does, and tells what must be known.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Collection, Coroutine, Iterable
from time import monotonic, time
from typing import Any

import msgspec

from windlass.app import Windlass
from windlass.errors import InvalidOption, KeyConflict, Undecodable, WindlassError
from windlass.storage.port import Beat, Capability
from windlass.tasks.envelope import read_envelope
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.values.backoff import after_failure
from windlass.values.job import JobRecord, Lease, Limits
from windlass.values.machine import awake
from windlass.values.outcome import Crashed, Failed, Outcome, Released
from windlass.values.validation import in_one_line, shortened
from windlass.values.worker_record import WorkerRecord
from windlass.worker.app_facts import AppFacts
from windlass.worker.cancellations import hear_cancellations
from windlass.worker.executors.processes import Gone, crash_report
from windlass.worker.logs import never_wait
from windlass.worker.presence import show_up
from windlass.worker.reclaim import Decide, all_held, reclaim
from windlass.worker.safety import check_server, tell_processes
from windlass.worker.settings import BEATS, SAFETY, Settings, lease_on, worker_record
from windlass.worker.supervisor.code_watch import check_can_watch, watch_code
from windlass.worker.supervisor.forkserver import Ending, ForkServer
from windlass.worker.supervisor.runner_group import RunnerGroup

log = logging.getLogger("windlass.supervisor")

MONITOR_EVERY_S = 0.05  # seconds between two looks at the slot_table
WEIGH = 1.0  # seconds between two looks at memory
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # before another runner, when they die young
YOUNG = 2.0
FOR_EVER = 1e9
LAG = 5.0  # seconds after which a blocked event loop is worth a warning
LAST_WORDS = 2.0  # seconds for giving back what killed runners held; the lease does the rest
FIRST_TRY = 1.0  # seconds without an answer of the server after which it is worth a word
HIRE_AGAIN = 1.0  # seconds, when no runner could be hired


class Supervisor:
    """One worker: `await Supervisor("module:app", settings).run()` until it is told to stop."""

    def __init__(self, target: str, settings: Settings) -> None:
        self._target = target
        self._asked = settings
        self._groups: list[RunnerGroup] = []
        self._following: set[asyncio.Task[None]] = set()  # one for each group, until it is gone
        self._background: set[asyncio.Task[None]] = set()
        self._duties: set[asyncio.Task[None]] = set()
        self._beats: set[asyncio.Task[WindlassError | None]] = set()  # one for a queue of a group at a time
        self._code = 0
        self._incarnation = 0
        self._stops = 0
        self._hired = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pause = FIRST_PAUSE
        self._started_at = time()
        self._finished = 0  # attempts of groups that are gone

    # -- the whole life ------------------------------------------------------------------------------

    async def run(self) -> int:
        """Work until SIGTERM or SIGINT; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        tell_processes(self._asked.allow_unsafe)
        # Before the app is imported: what changes from then on is seen.
        if self._asked.watch:
            check_can_watch()
            self._do("watching the code", self._watch())
        if not await self._unless_stopped(self._open_forkserver()):
            return self._code
        try:
            self._app = Windlass(**msgspec.structs.asdict(self._facts.app))
            if not await self._unless_stopped(self._hire_first()):
                return self._code
            self._hired.set()
            self._introduce()
            self._do("the heartbeat", self._beat_on())
            self._do("the monitor", self._monitor())
            self._do("the fleet", self._show_up())
            await self._stopping.wait()
            await self._drain()
            await self._end(self._background)
            await self._end(self._duties)
            await self._end(self._beats)
            log.info("stopped; jobs run: %d", self._finished)
        finally:
            await self._forkserver.close()
            await self._app.aclose()
        return self._code

    def _do(self, what: str, duty: Coroutine[Any, Any, None]) -> None:
        """Begin something that goes on as long as the worker does."""
        task = asyncio.create_task(duty)
        self._duties.add(task)
        task.add_done_callback(lambda task: self._check(task, what))

    def _check(self, task: asyncio.Task[Any], what: str) -> None:
        """A worker that only seems to work is worse than none: what fails here ends it, and others take over."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s has failed, and the worker ends", what, exc_info=error)
            self._code = 1
            if not self._stopping.is_set():
                self.stop()

    async def _end(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _introduce(self) -> None:
        settings = self.settings
        queues = ", ".join(name if weight == 1 else f"{name}={weight}" for name, weight in settings.queues.items())
        most = "up to " if settings.auto else ""
        log.info(
            "%s works on %s: %s%d coroutines, %d threads, %d processes",
            settings.name,
            queues,
            most,
            settings.concurrency,
            settings.threads,
            settings.processes,
        )

    async def _unless_stopped(self, beginning: Coroutine[Any, Any, None]) -> bool:
        """Whether it was done before we were told to stop: an import may take long, and so may a server to answer."""
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

    async def _hire_first(self) -> None:
        """The first group. Somebody may look on: if the server does not answer at once they hear what we wait for."""
        try:
            # The embedded server has to be started, perhaps, and takes as long as it takes.
            async with asyncio.timeout(None if self._app.is_embedded else FIRST_TRY):
                await self._app.is_cluster()
        except (ConnectFailed, WireLost, TimeoutError) as error:
            why = str(error) or f"no answer within {FIRST_TRY:g} s"
            log.warning("the server cannot be reached (%s); trying for %g s", why, self._app.given.retry_for)
        await check_server(self._app, allow_unsafe=self.settings.allow_unsafe)
        await self._hire()

    async def _open_forkserver(self) -> None:
        """Have the app imported; what it says of itself counts from the next group on."""
        forkserver = await ForkServer.open(self._target, facts="windlass.worker.app_facts:describe")
        try:
            facts = msgspec.convert(forkserver.facts["windlass"], AppFacts)
            self.settings = self._with_queues(self._asked, facts)
        except BaseException:
            await forkserver.close()
            raise
        self._forkserver, self._facts = forkserver, facts

    def _with_queues(self, settings: Settings, facts: AppFacts) -> Settings:
        """Without a choice, all queues that the app has something for. One child at least: suspects need it."""
        settings = msgspec.structs.replace(settings, processes=max(1, settings.processes))
        if not facts.elsewhere.tasks and not facts.queues:
            raise InvalidOption(f"{self._target} declares no task and no handler: there is nothing to work on")
        for name in settings.queues:
            if name not in facts.queues:
                log.warning("no task, handler or schedule names queue %s: only calls that are sent there are run", name)
        return settings if settings.queues else msgspec.structs.replace(settings, queues=dict.fromkeys(facts.queues, 1))

    def stop(self) -> None:
        """Once: finish what runs. Twice: give it back now. Three times: end at once."""
        self._stops += 1
        if self._stops == 1:
            more = f": running jobs have {self._asked.grace:g} s to finish" if self._hired.is_set() else ""
            log.info("stopping%s", more)
            self._stopping.set()
        elif self._stops == 2:
            log.info("stopping now: running jobs are given back")
            for group in self._groups:
                group.drain(0)
        else:
            log.info("stopping at once")
            os._exit(1)  # the forkserver ends with us, and all that came from it

    async def _drain(self) -> None:
        for group in self._groups:
            group.drain(self._room_for_jobs())
        deadline = monotonic() + self.settings.grace
        while self._following and monotonic() < deadline:
            await asyncio.wait(self._following, timeout=max(0.0, deadline - monotonic()))
        for group in self._groups:
            group.kill("it did not end in time")
        if self._following:
            await asyncio.wait(self._following, timeout=LAST_WORDS)
        if self._following:
            log.error("the server does not answer: what they held comes back when its leases end")
        await self._end(self._following)

    def _room_for_jobs(self) -> float:
        """The part of the grace that jobs may use: the rest is for giving back what is left."""
        return max(0.0, self.settings.grace - min(2.0, self.settings.grace / 3))

    # -- groups ---------------------------------------------------------------------------------------

    async def _hire(self) -> None:
        """A new runner, under a new name: what the old one held stays with the old name until it is given back."""
        self._incarnation += 1
        group = RunnerGroup(self._forkserver, self._facts, self.settings, f"{self.settings.name}.{self._incarnation}")
        try:
            await self._register(group)
            starting = asyncio.create_task(group.start())
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:  # too late: the runner may have jobs already, and has to be told to end
                await starting
        except BaseException:
            group.discard()
            raise
        self._groups.append(group)
        self._track(self._following, self._follow(group))
        if self._stopping.is_set():  # meanwhile
            group.drain(self._room_for_jobs())

    def _track(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)
        task.add_done_callback(lambda task: self._check(task, "the supervisor"))

    async def _follow(self, group: RunnerGroup) -> None:
        """From the hiring of a group to its end, and what comes after."""

        async def cancel(queue: str, id: str, fence: int | None) -> None:
            if fence is not None:
                group.drop(queue, fence)
            else:
                group.cancel(queue, id, await self._cancelled(group.holder, queue, id))

        hearing = asyncio.create_task(hear_cancellations(self._app, group.settings.queues, group.holder, cancel))
        ending = await asyncio.shield(group.runner.exited)
        hearing.cancel()
        group.end()
        if group.forkserver.gone.done():
            group.why = group.why or "the forkserver died"
        in_order = group.leaving and ending.code == 0
        if not in_order and not group.why:
            log.error("the runner died (%s)", ending)
        elif not in_order:
            log.error("the runner was ended: %s", group.why)
        replacing = None if self._stopping.is_set() or group.leaving else asyncio.create_task(self._replace(group))
        await group.children_gone()
        await self._give_back(group, ending)
        self._groups.remove(group)
        self._finished += group.slot_table.finished
        group.slot_table.close()
        group.gone.set_result(None)
        if replacing is not None:
            await replacing

    async def _cancelled(self, holder: str, queue: str, id: str) -> set[int]:
        """The fences of a cancelled job; where a layout has no ids there may be several of that name."""
        layout = self._app.layout(queue)
        if Capability.IDS in layout.can:
            record = await self._app.arun(lambda session: session.perform(layout.get(id)))
            return {record.fence} if record and record.fence else set()
        held = await self._app.arun(lambda session: all_held(session, layout, holder))
        return {record.fence for record in held if record.id == id and record.cancelled and record.fence}

    async def _replace(self, group: RunnerGroup) -> None:
        """Another runner for one that died; if they die before they have done anything, later each time."""
        if group.slot_table.finished and group.runner.exited.result().signal is not None:
            self._pause = FIRST_PAUSE  # it could work, and was killed: what jobs do to it is charged to them
        if group.why:
            self._pause = FIRST_PAUSE  # we ended it ourselves: nothing is wrong with it
        elif monotonic() - group.hired_at < YOUNG:
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        else:
            self._pause = FIRST_PAUSE
        await self._hire_somehow()

    async def _hire_somehow(self) -> None:
        """Hire, and keep trying while it cannot be done."""
        while not self._stopping.is_set():
            try:
                if self._forkserver.gone.done():
                    log.error("the forkserver died (%s): a new one is opened", self._forkserver.gone.result())
                    await self._open_forkserver()
                await self._hire()
                return
            except (WindlassError, OSError) as error:
                log.error("no new runner: %s", error)
                await asyncio.sleep(HIRE_AGAIN)

    # -- giving back what a runner held --------------------------------------------------------------

    async def _give_back(self, group: RunnerGroup, ending: Ending) -> None:
        suspects = {entry.fence for entry in group.suspects()}
        rss = (ending.rss_kb or 0) * 1024 or group.rss
        told = Gone(ending.code, ending.signal, group.why, 0, rss, group.output.last)

        def decide(lease: Lease, record: JobRecord) -> Outcome:
            keep_ms = _keep_ms(record) if group.facts.of(record.queue).tasks else 0
            if lease.fence in group.culprits:
                outcome = after_failure(lease, None, "it went on after its time was over, and its runner was ended")
                return msgspec.structs.replace(outcome, keep_ms=keep_ms) if isinstance(outcome, Failed) else outcome
            if group.blocked and lease.fence in suspects:
                return Crashed(lease, "the event loop was blocked, perhaps by this job", alone=False)
            if group.why or group.leaving or lease.fence not in suspects:
                return Released(lease)
            alone = len(suspects) == 1
            text = crash_report(told, record.progress)
            text = shortened(text if alone else f"one of {len(suspects)} suspects: {text}")
            return Crashed(lease, text, alone, keep_ms=keep_ms)

        await asyncio.gather(*(self._give_back_of(group, queue, decide) for queue in group.settings.queues))

    async def _give_back_of(self, group: RunnerGroup, queue: str, decide: Decide) -> None:
        try:
            outcomes = await reclaim(self._app, queue, group.holder, decide)
        except WindlassError as error:
            log.error("what it held of %s comes back when its leases end: %s", queue, error)
            return
        for outcome in outcomes:
            if not isinstance(outcome, Released):
                message = getattr(outcome, "message", "").partition("\n")[0]
                end = "; failed for good" if _is_last(outcome) else ""
                log.error("%s: %s%s", in_one_line(f"{queue}/{outcome.lease.id}"), message, end)
        back = sum(not _is_last(outcome) for outcome in outcomes)
        if back:
            log.info("%s: %s given back", queue, "1 job" if back == 1 else f"{back} jobs")

    # -- heartbeats ----------------------------------------------------------------------------------

    async def _register(self, group: RunnerGroup) -> None:
        """Become known on every queue; on one at least. The others are waited for a little, and tried on and on."""
        tries = [self._keep(group, queue) for queue in group.settings.queues]
        _, pending = await asyncio.wait(tries, timeout=min(map(self._lease_on, group.settings.queues)) / BEATS)
        while pending and all(each.result() for each in tries if each.done()):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        problems = [error for each in tries if each.done() and (error := each.result()) is not None]
        if len(problems) == len(tries):
            raise problems[0]
        _complain(problems)

    async def _beat_on(self) -> None:
        """Each queue by itself: one that cannot be reached must not hold up the next heartbeat of the others."""
        while True:
            queues = {queue for group in self._groups for queue in group.settings.queues}
            await asyncio.sleep(min(map(self._lease_on, queues), default=self.settings.lease) / BEATS)
            for group in list(self._groups):
                for queue in group.settings.queues:
                    if queue not in group.beating:
                        self._keep(group, queue).add_done_callback(_complain_of)

    def _keep(self, group: RunnerGroup, queue: str) -> asyncio.Task[WindlassError | None]:
        """Begin one sign of life on one queue."""
        group.beating.add(queue)
        task = asyncio.create_task(self._keep_on(group, queue))
        self._beats.add(task)
        task.add_done_callback(self._beats.discard)
        task.add_done_callback(lambda _: group.beating.discard(queue))
        task.add_done_callback(lambda task: self._check(task, "the heartbeat"))
        return task

    async def _keep_on(self, group: RunnerGroup, queue: str) -> WindlassError | None:
        asked_at = awake()
        register = queue in group.unregistered
        try:
            beat = await self._beat(group, queue, register=register)
            if beat.parked:
                await self._unpark(group, queue)
        except KeyConflict as error:
            group.kept_at[queue] = asked_at  # nobody can take a job of such a queue, so nothing is lost by waiting
            return error
        except WindlassError as error:
            return error
        if group.gone.done():  # it ended while the beat was under way
            return None
        if register or beat.known:
            group.unregistered.discard(queue)
            group.kept_at[queue] = asked_at
        elif not group.leaving or group.slot_table.running():
            group.kill("its leases were lost")
        return None

    async def _beat(self, group: RunnerGroup, queue: str, *, register: bool = False) -> Beat:
        call = self._app.layout(queue).beat(
            group.holder, self._lease_on(queue), register=register, failure_handler=self._failure_handler(group, queue)
        )
        patience = None if register else self._lease_on(queue) / BEATS
        return await self._app.arun(lambda session: session.perform(call, patience))

    def _failure_handler(self, group: RunnerGroup, queue: str) -> Limits | None:
        """A queue that the app does not name has what the app has for any; not every layout can do that."""
        able = Capability.FAILURE_HANDLERS in self._app.layout(queue).can
        return group.facts.of(queue).failure_handler if able else None

    def _lease_on(self, queue: str) -> float:
        return lease_on(self._app.layout(queue), self.settings.lease)

    async def _unpark(self, group: RunnerGroup, queue: str) -> None:
        tasks = group.facts.of(queue).tasks
        if tasks:
            call = self._app.layout(queue).unpark(tasks)
            await self._app.arun(lambda session: session.perform(call))

    async def _show_up(self) -> None:
        """Be seen in the fleet. A duty of its own: a registry that is slow or closed must not hold up a heartbeat."""
        await show_up(self._app, self.settings.name, self._about, self.settings.lease / BEATS, self._stopping)

    def _about(self) -> WorkerRecord:
        groups = list(self._groups)
        weights = [group.rss for group in groups] + [child.rss for group in groups for child in group.children.values()]
        return worker_record(
            self.settings,
            started_at=self._started_at,
            running=sum(len(group.slot_table.running()) for group in groups),
            finished=self._finished + sum(group.slot_table.finished for group in groups),
            rss=sum(weight or 0 for weight in weights) or None,
            stopping=self._stopping.is_set(),
            suspended={queue: why for group in groups for queue, why in group.suspended.items()},
        )

    # -- monitor --------------------------------------------------------------------------------------

    async def _monitor(self) -> None:
        """Time limits, memory, and leases that could not be kept."""
        weighed_at = monotonic()
        while True:
            await asyncio.sleep(MONITOR_EVERY_S)
            now = monotonic()
            for group in list(self._groups):
                group.enforce()
                self._fence_off(group)
            if now - weighed_at >= WEIGH:
                weighed_at = now
                for group in list(self._groups):
                    group.weigh()
                    self._recycle(group)
                    self._watch_lag(group)

    def _watch_lag(self, group: RunnerGroup) -> None:
        """A blocked loop loses nothing, but all coroutines wait: say so, once for each time."""
        lag = group.loop_lag()
        if lag < LAG:
            group.lagged = False
        elif not group.lagged and not group.leaving:
            group.lagged = True
            log.warning('the event loop has not turned for %.1f s: a job blocks it; use run="process" for it', lag)

    def _fence_off(self, group: RunnerGroup) -> None:
        """Stop what runs on leases that could not be kept alive, before others begin the same jobs."""
        if group.why:
            return  # it is being ended already
        now = awake()
        safe_until = {queue: kept_at + self._lease_on(queue) * SAFETY for queue, kept_at in group.kept_at.items()}
        group.slot_table.keep_until(max(safe_until.values()))
        late = [queue for queue, end in safe_until.items() if now > end]
        if late and len(late) == len(group.kept_at):
            group.kill("its leases could not be kept alive")
            return
        for queue in set(late) - group.lost_on:  # one node of a cluster is away: the other queues go on
            log.error("%s: its leases could not be kept alive, and what runs of it is stopped", queue)
            group.lose(queue)
        group.lost_on = set(late)

    def _recycle(self, group: RunnerGroup) -> None:
        settings = self.settings
        heavy = settings.max_rss and group.rss and group.rss > settings.max_rss
        old = settings.max_jobs and group.slot_table.finished >= settings.max_jobs
        if (heavy or old) and not group.leaving and not self._stopping.is_set():
            log.info("a fresh runner takes over: the old one %s", "is too large" if heavy else "has done its share")
            group.drain(FOR_EVER)  # nobody is in a hurry: what runs may take its time
            self._track(self._background, self._hire_somehow())

    # -- new code --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """When a file of the program changes, a new runner with the new code takes over; the old one finishes."""
        async for _ in watch_code():
            await self._hired.wait()
            log.info("the code has changed")
            old = self._forkserver, list(self._groups)
            try:
                await self._open_forkserver()
            except WindlassError as error:
                log.error("the old code goes on: %s", error)
                continue
            await self._hire_somehow()
            self._track(self._background, self._let_go(*old))

    async def _let_go(self, forkserver: ForkServer, groups: list[RunnerGroup]) -> None:
        for group in groups:
            group.drain(FOR_EVER)
        for group in groups:
            await asyncio.wait([group.gone])
        await forkserver.close()


def _complain_of(beat: asyncio.Task[WindlassError | None]) -> None:
    if not beat.cancelled() and beat.exception() is None:
        _complain([beat.result()])


def _complain(problems: Iterable[WindlassError | None]) -> None:
    for error in problems:
        if isinstance(error, KeyConflict):
            log.error("%s", error)
        elif error is not None:
            log.warning("no heartbeat: %s", error)


def _is_last(outcome: Outcome) -> bool:
    """Whether the job does not come back after this."""
    if isinstance(outcome, Crashed):
        return outcome.alone and outcome.lease.stalls + 1 >= outcome.lease.limits.max_stalls
    return isinstance(outcome, Failed)


def _keep_ms(record: JobRecord) -> int:
    """How long the end of a task's job is to be kept for those who wait for it."""
    try:
        return round(read_envelope(record.data).keep * 1000)
    except Undecodable:
        return 0


def run_worker(target: str, settings: Settings) -> int:
    """Run a worker in this process until it is told to stop."""
    never_wait()
    return asyncio.run(Supervisor(target, settings).run())
