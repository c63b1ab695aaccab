"""The keeper: the process that runs no job. It keeps the leases alive, sees who dies, and gives back what they held.

It shares no interpreter with any job, so nothing that a job does can make it miss a heartbeat. It never imports the
app either: the nursery does, and tells what must be known.
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
from windlass.worker.executors.processes import Gone, obituary
from windlass.worker.logs import never_wait
from windlass.worker.presence import show_up
from windlass.worker.reclaim import Verdict, all_held, hand_back
from windlass.worker.safety import check_server, tell_processes
from windlass.worker.settings import BEATS, SAFETY, Settings, lease_on, worker_record
from windlass.worker.supervisor.code_watch import check_can_watch, watch_code
from windlass.worker.supervisor.forkserver import Ending, Nursery
from windlass.worker.supervisor.runner_group import Crew

log = logging.getLogger("windlass.keeper")

PATROL = 0.05  # seconds between two looks at the board
WEIGH = 1.0  # seconds between two looks at memory
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # before another runner, when they die young
YOUNG = 2.0
FOR_EVER = 1e9
LAG = 5.0  # seconds after which a blocked event loop is worth a warning
LAST_WORDS = 2.0  # seconds for giving back what killed runners held; the lease does the rest
FIRST_TRY = 1.0  # seconds without an answer of the server after which it is worth a word
HIRE_AGAIN = 1.0  # seconds, when no runner could be hired


class Keeper:
    """One worker: `await Keeper("module:app", settings).run()` until it is told to stop."""

    def __init__(self, target: str, settings: Settings) -> None:
        self._target = target
        self._asked = settings
        self._crews: list[Crew] = []
        self._following: set[asyncio.Task[None]] = set()  # one for each crew, until it is gone
        self._errands: set[asyncio.Task[None]] = set()
        self._duties: set[asyncio.Task[None]] = set()
        self._beats: set[asyncio.Task[WindlassError | None]] = set()  # one for a queue of a crew at a time
        self._code = 0
        self._incarnation = 0
        self._stops = 0
        self._hired = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pause = FIRST_PAUSE
        self._started_at = time()
        self._finished = 0  # attempts of crews that are gone

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
        if not await self._unless_stopped(self._open_nursery()):
            return self._code
        try:
            self._app = Windlass(**msgspec.structs.asdict(self._facts.app))
            if not await self._unless_stopped(self._hire_first()):
                return self._code
            self._hired.set()
            self._introduce()
            self._do("the heartbeat", self._beat_on())
            self._do("the patrol", self._patrol())
            self._do("the fleet", self._show_up())
            await self._stopping.wait()
            await self._drain()
            await self._end(self._errands)
            await self._end(self._duties)
            await self._end(self._beats)
            log.info("stopped; jobs run: %d", self._finished)
        finally:
            await self._nursery.close()
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
        """The first crew. Somebody may look on: if the server does not answer at once they hear what we wait for."""
        try:
            # The embedded server has to be started, perhaps, and takes as long as it takes.
            async with asyncio.timeout(None if self._app.is_embedded else FIRST_TRY):
                await self._app.is_cluster()
        except (ConnectFailed, WireLost, TimeoutError) as error:
            why = str(error) or f"no answer within {FIRST_TRY:g} s"
            log.warning("the server cannot be reached (%s); trying for %g s", why, self._app.given.retry_for)
        await check_server(self._app, allow_unsafe=self.settings.allow_unsafe)
        await self._hire()

    async def _open_nursery(self) -> None:
        """Have the app imported; what it says of itself counts from the next crew on."""
        nursery = await Nursery.open(self._target, facts="windlass.worker.app_facts:describe")
        try:
            facts = msgspec.convert(nursery.facts["windlass"], AppFacts)
            self.settings = self._with_queues(self._asked, facts)
        except BaseException:
            await nursery.close()
            raise
        self._nursery, self._facts = nursery, facts

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
            for crew in self._crews:
                crew.drain(0)
        else:
            log.info("stopping at once")
            os._exit(1)  # the nursery ends with us, and all that came from it

    async def _drain(self) -> None:
        for crew in self._crews:
            crew.drain(self._room_for_jobs())
        deadline = monotonic() + self.settings.grace
        while self._following and monotonic() < deadline:
            await asyncio.wait(self._following, timeout=max(0.0, deadline - monotonic()))
        for crew in self._crews:
            crew.kill("it did not end in time")
        if self._following:
            await asyncio.wait(self._following, timeout=LAST_WORDS)
        if self._following:
            log.error("the server does not answer: what they held comes back when its leases end")
        await self._end(self._following)

    def _room_for_jobs(self) -> float:
        """The part of the grace that jobs may use: the rest is for giving back what is left."""
        return max(0.0, self.settings.grace - min(2.0, self.settings.grace / 3))

    # -- crews ---------------------------------------------------------------------------------------

    async def _hire(self) -> None:
        """A new runner, under a new name: what the old one held stays with the old name until it is given back."""
        self._incarnation += 1
        crew = Crew(self._nursery, self._facts, self.settings, f"{self.settings.name}.{self._incarnation}")
        try:
            await self._register(crew)
            starting = asyncio.create_task(crew.start())
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:  # too late: the runner may have jobs already, and has to be told to end
                await starting
        except BaseException:
            crew.discard()
            raise
        self._crews.append(crew)
        self._track(self._following, self._follow(crew))
        if self._stopping.is_set():  # meanwhile
            crew.drain(self._room_for_jobs())

    def _track(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)
        task.add_done_callback(lambda task: self._check(task, "the keeper"))

    async def _follow(self, crew: Crew) -> None:
        """From the hiring of a crew to its end, and what comes after."""

        async def cancel(queue: str, id: str, fence: int | None) -> None:
            if fence is not None:
                crew.drop(queue, fence)
            else:
                crew.cancel(queue, id, await self._cancelled(crew.holder, queue, id))

        hearing = asyncio.create_task(hear_cancellations(self._app, crew.settings.queues, crew.holder, cancel))
        ending = await asyncio.shield(crew.runner.exited)
        hearing.cancel()
        crew.end()
        if crew.nursery.gone.done():
            crew.why = crew.why or "the nursery died"
        in_order = crew.leaving and ending.code == 0
        if not in_order and not crew.why:
            log.error("the runner died (%s)", ending)
        elif not in_order:
            log.error("the runner was ended: %s", crew.why)
        replacing = None if self._stopping.is_set() or crew.leaving else asyncio.create_task(self._replace(crew))
        await crew.children_gone()
        await self._give_back(crew, ending)
        self._crews.remove(crew)
        self._finished += crew.board.finished
        crew.board.close()
        crew.gone.set_result(None)
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

    async def _replace(self, crew: Crew) -> None:
        """Another runner for one that died; if they die before they have done anything, later each time."""
        if crew.board.finished and crew.runner.exited.result().signal is not None:
            self._pause = FIRST_PAUSE  # it could work, and was killed: what jobs do to it is charged to them
        if crew.why:
            self._pause = FIRST_PAUSE  # we ended it ourselves: nothing is wrong with it
        elif monotonic() - crew.hired_at < YOUNG:
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        else:
            self._pause = FIRST_PAUSE
        await self._hire_somehow()

    async def _hire_somehow(self) -> None:
        """Hire, and keep trying while it cannot be done."""
        while not self._stopping.is_set():
            try:
                if self._nursery.gone.done():
                    log.error("the nursery died (%s): a new one is opened", self._nursery.gone.result())
                    await self._open_nursery()
                await self._hire()
                return
            except (WindlassError, OSError) as error:
                log.error("no new runner: %s", error)
                await asyncio.sleep(HIRE_AGAIN)

    # -- giving back what a runner held --------------------------------------------------------------

    async def _give_back(self, crew: Crew, ending: Ending) -> None:
        suspects = {entry.fence for entry in crew.suspects()}
        rss = (ending.rss_kb or 0) * 1024 or crew.rss
        told = Gone(ending.code, ending.signal, crew.why, 0, rss, crew.output.last)

        def verdict(lease: Lease, record: JobRecord) -> Outcome:
            keep_ms = _keep_ms(record) if crew.facts.of(record.queue).tasks else 0
            if lease.fence in crew.culprits:
                outcome = after_failure(lease, None, "it went on after its time was over, and its runner was ended")
                return msgspec.structs.replace(outcome, keep_ms=keep_ms) if isinstance(outcome, Failed) else outcome
            if crew.blocked and lease.fence in suspects:
                return Crashed(lease, "the event loop was blocked, perhaps by this job", alone=False)
            if crew.why or crew.leaving or lease.fence not in suspects:
                return Released(lease)
            alone = len(suspects) == 1
            text = obituary(told, record.progress)
            text = shortened(text if alone else f"one of {len(suspects)} suspects: {text}")
            return Crashed(lease, text, alone, keep_ms=keep_ms)

        await asyncio.gather(*(self._give_back_of(crew, queue, verdict) for queue in crew.settings.queues))

    async def _give_back_of(self, crew: Crew, queue: str, verdict: Verdict) -> None:
        try:
            outcomes = await hand_back(self._app, queue, crew.holder, verdict)
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

    async def _register(self, crew: Crew) -> None:
        """Become known on every queue; on one at least. The others are waited for a little, and tried on and on."""
        tries = [self._keep(crew, queue) for queue in crew.settings.queues]
        _, pending = await asyncio.wait(tries, timeout=min(map(self._lease_on, crew.settings.queues)) / BEATS)
        while pending and all(each.result() for each in tries if each.done()):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        problems = [error for each in tries if each.done() and (error := each.result()) is not None]
        if len(problems) == len(tries):
            raise problems[0]
        _complain(problems)

    async def _beat_on(self) -> None:
        """Each queue by itself: one that cannot be reached must not hold up the next heartbeat of the others."""
        while True:
            queues = {queue for crew in self._crews for queue in crew.settings.queues}
            await asyncio.sleep(min(map(self._lease_on, queues), default=self.settings.lease) / BEATS)
            for crew in list(self._crews):
                for queue in crew.settings.queues:
                    if queue not in crew.beating:
                        self._keep(crew, queue).add_done_callback(_complain_of)

    def _keep(self, crew: Crew, queue: str) -> asyncio.Task[WindlassError | None]:
        """Begin one sign of life on one queue."""
        crew.beating.add(queue)
        task = asyncio.create_task(self._keep_on(crew, queue))
        self._beats.add(task)
        task.add_done_callback(self._beats.discard)
        task.add_done_callback(lambda _: crew.beating.discard(queue))
        task.add_done_callback(lambda task: self._check(task, "the heartbeat"))
        return task

    async def _keep_on(self, crew: Crew, queue: str) -> WindlassError | None:
        asked_at = awake()
        register = queue in crew.unregistered
        try:
            beat = await self._beat(crew, queue, register=register)
            if beat.parked:
                await self._unpark(crew, queue)
        except KeyConflict as error:
            crew.kept_at[queue] = asked_at  # nobody can take a job of such a queue, so nothing is lost by waiting
            return error
        except WindlassError as error:
            return error
        if crew.gone.done():  # it ended while the beat was under way
            return None
        if register or beat.known:
            crew.unregistered.discard(queue)
            crew.kept_at[queue] = asked_at
        elif not crew.leaving or crew.board.running():
            crew.kill("its leases were lost")
        return None

    async def _beat(self, crew: Crew, queue: str, *, register: bool = False) -> Beat:
        call = self._app.layout(queue).beat(
            crew.holder, self._lease_on(queue), register=register, catcher=self._catcher(crew, queue)
        )
        patience = None if register else self._lease_on(queue) / BEATS
        return await self._app.arun(lambda session: session.perform(call, patience))

    def _catcher(self, crew: Crew, queue: str) -> Limits | None:
        """A queue that the app does not name has what the app has for any; not every layout can do that."""
        able = Capability.FAILURE_HANDLERS in self._app.layout(queue).can
        return crew.facts.of(queue).catcher if able else None

    def _lease_on(self, queue: str) -> float:
        return lease_on(self._app.layout(queue), self.settings.lease)

    async def _unpark(self, crew: Crew, queue: str) -> None:
        tasks = crew.facts.of(queue).tasks
        if tasks:
            call = self._app.layout(queue).unpark(tasks)
            await self._app.arun(lambda session: session.perform(call))

    async def _show_up(self) -> None:
        """Be seen in the fleet. A duty of its own: a registry that is slow or closed must not hold up a heartbeat."""
        await show_up(self._app, self.settings.name, self._about, self.settings.lease / BEATS, self._stopping)

    def _about(self) -> WorkerRecord:
        crews = list(self._crews)
        weights = [crew.rss for crew in crews] + [child.rss for crew in crews for child in crew.children.values()]
        return worker_record(
            self.settings,
            started_at=self._started_at,
            running=sum(len(crew.board.running()) for crew in crews),
            finished=self._finished + sum(crew.board.finished for crew in crews),
            rss=sum(weight or 0 for weight in weights) or None,
            stopping=self._stopping.is_set(),
            suspended={queue: why for crew in crews for queue, why in crew.suspended.items()},
        )

    # -- patrol --------------------------------------------------------------------------------------

    async def _patrol(self) -> None:
        """Time limits, memory, and leases that could not be kept."""
        weighed_at = monotonic()
        while True:
            await asyncio.sleep(PATROL)
            now = monotonic()
            for crew in list(self._crews):
                crew.enforce()
                self._fence_off(crew)
            if now - weighed_at >= WEIGH:
                weighed_at = now
                for crew in list(self._crews):
                    crew.weigh()
                    self._recycle(crew)
                    self._watch_lag(crew)

    def _watch_lag(self, crew: Crew) -> None:
        """A blocked loop loses nothing, but all coroutines wait: say so, once for each time."""
        lag = crew.loop_lag()
        if lag < LAG:
            crew.lagged = False
        elif not crew.lagged and not crew.leaving:
            crew.lagged = True
            log.warning('the event loop has not turned for %.1f s: a job blocks it; use run="process" for it', lag)

    def _fence_off(self, crew: Crew) -> None:
        """Stop what runs on leases that could not be kept alive, before others begin the same jobs."""
        if crew.why:
            return  # it is being ended already
        now = awake()
        safe_until = {queue: kept_at + self._lease_on(queue) * SAFETY for queue, kept_at in crew.kept_at.items()}
        crew.board.keep_until(max(safe_until.values()))
        late = [queue for queue, end in safe_until.items() if now > end]
        if late and len(late) == len(crew.kept_at):
            crew.kill("its leases could not be kept alive")
            return
        for queue in set(late) - crew.lost_on:  # one node of a cluster is away: the other queues go on
            log.error("%s: its leases could not be kept alive, and what runs of it is stopped", queue)
            crew.lose(queue)
        crew.lost_on = set(late)

    def _recycle(self, crew: Crew) -> None:
        settings = self.settings
        heavy = settings.max_rss and crew.rss and crew.rss > settings.max_rss
        old = settings.max_jobs and crew.board.finished >= settings.max_jobs
        if (heavy or old) and not crew.leaving and not self._stopping.is_set():
            log.info("a fresh runner takes over: the old one %s", "is too large" if heavy else "has done its share")
            crew.drain(FOR_EVER)  # nobody is in a hurry: what runs may take its time
            self._track(self._errands, self._hire_somehow())

    # -- new code --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """When a file of the program changes, a new runner with the new code takes over; the old one finishes."""
        async for _ in watch_code():
            await self._hired.wait()
            log.info("the code has changed")
            old = self._nursery, list(self._crews)
            try:
                await self._open_nursery()
            except WindlassError as error:
                log.error("the old code goes on: %s", error)
                continue
            await self._hire_somehow()
            self._track(self._errands, self._let_go(*old))

    async def _let_go(self, nursery: Nursery, crews: list[Crew]) -> None:
        for crew in crews:
            crew.drain(FOR_EVER)
        for crew in crews:
            await asyncio.wait([crew.gone])
        await nursery.close()


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
    return asyncio.run(Keeper(target, settings).run())
