"""The runner: leases jobs in batches, runs them, and settles them in batches.

A turn settles and leases in one round trip. Two turns run at a time: while the server works on one, outcomes for the
other collect. The cost of a turn hardly depends on its number of jobs, so batches grow by themselves under load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil, inf
from time import monotonic
from typing import Any

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.storage.port import Turn
from windlass.tasks.call import TaskCall
from windlass.values.job import Lease
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    HandOver,
    NoFailureHandler,
    Outcome,
    Released,
    Retried,
    UnknownTask,
    name_of,
)
from windlass.values.validation import in_one_line
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors.base import Attempt, Executor, Key, Stop, key_of
from windlass.worker.executors.loop import LoopExecutor
from windlass.worker.executors.processes import ChildSource, ProcessExecutor
from windlass.worker.executors.threads import ThreadExecutor
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.runner.concurrency import adapt_forever, set_initial_limits
from windlass.worker.runner.outbox import empty_outbox
from windlass.worker.runner.queue_consumer import QueueConsumer
from windlass.worker.runner.wakeups import Wakeups
from windlass.worker.settings import Settings

log = logging.getLogger("windlass.worker")

CONCURRENT_TURNS = 2  # one at the server while the other collects outcomes
COMMON_SHARE = 0.5  # a kind above this share of a queue's jobs is never leased beyond its free slots
MIN_TURN_INTERVAL_S = 0.004  # while jobs run: larger batches cost the server less than many small ones
SLOW_TURN_AFTER_S = 0.5  # a slower turn goes to the background: its server may be down, and other queues must go on
PROGRESS_EVERY_S = 0.1  # between two progress reports of one job: enough for a person, cheap for the server
DECLARE_EVERY_S = 300.0  # a purge or restore may remove declared schedules; they come back within this time
OUTBOX_RETRY_S = 2.0  # after an error: the target queue's server may be down for a while
ALIVE_EVERY_S = 0.1  # marks of the event loop in the slot table: far below LAG_WARNING_S and any timeout
CANCEL_TIMEOUT_S = 0.5  # for cancelled jobs to clean up at the end of a drain; then the process ends


class Runner:
    """Runs the jobs of all queues of one worker process."""

    def __init__(
        self,
        app: Windlass,
        settings: Settings,
        holder: str,
        slot_table: SlotTable,
        source: ChildSource,
        on_holder_unknown: Callable[[str], None],
        on_suspended: Callable[[dict[str, str]], None] = lambda queues: None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._slot_table = slot_table
        self._on_holder_unknown = on_holder_unknown
        self._on_suspended = on_suspended
        self._changed = asyncio.Event()
        slots = settings.slots
        self.executors: dict[str, Executor] = {
            "loop": LoopExecutor(slots["loop"], slot_table, self, self._finished),
            "thread": ThreadExecutor(slots["thread"], slot_table, self, self._finished),
            "process": ProcessExecutor(
                slots["process"], slot_table, self, self._finished, source=source, max_jobs=settings.max_jobs
            ),
            "isolated": ProcessExecutor(slots["isolated"], slot_table, self, self._finished, source=source, max_jobs=1),
        }
        self.consumers = {queue: self._consumer(queue, weight, holder) for queue, weight in settings.queues.items()}
        if settings.auto:
            set_initial_limits(self._adapted)
        self._reserved = dict.fromkeys(self.executors, 0)
        self._loop = asyncio.get_running_loop()
        self._batching = False  # the next queue has enough work: its outcomes can wait for a larger batch
        self._leasing = True
        self._ended = False
        self._drain_deadline = inf
        self._problem: BaseException | None = None
        self._progress: dict[Key, tuple[Lease, float]] = {}
        self._progress_task: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()
        self._undecodable: dict[int, Broken] = {}  # by fence, from the batch that is being admitted
        self._logs_completed = settings.log_jobs or log.isEnabledFor(logging.DEBUG)
        self._wakeups = Wakeups(app, self.consumers.values(), self._notify)

    def _consumer(self, queue: str, weight: int, holder: str) -> QueueConsumer:
        kinds = kinds_on(self._app, queue)
        one_by_one = sum(self.executors[kind].capacity for kind in kinds) == 1
        lease = self._settings.lease
        return QueueConsumer(self._app, queue, weight, kinds, holder, lease, self._notify, strictly=one_by_one)

    # -- life cycle --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `drain` has finished."""
        turn_loops = [asyncio.create_task(self._turn_loop()) for _ in range(CONCURRENT_TURNS)]
        duties = (self._wakeups.listen(), self._declare_schedules(), self._mark_alive())
        others = [asyncio.create_task(duty) for duty in duties]
        if self._settings.auto:
            others.append(asyncio.create_task(adapt_forever(self._adapted, self._wake_all)))
        for other in others:
            other.add_done_callback(self._check)
        try:
            await asyncio.gather(*turn_loops)
            await asyncio.gather(*self._background, return_exceptions=True)
        finally:
            tasks = (*others, *turn_loops, *self._slow)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Release threads and children."""
        for executor in self.executors.values():
            executor.close()

    def _check(self, duty: asyncio.Task[None]) -> None:
        """End the runner if one of its duties fails; the supervisor starts another."""
        if not duty.cancelled() and (error := duty.exception()) is not None:
            self._problem = error
            self._notify()

    async def drain(self, grace: float) -> None:
        """Lease no more jobs, give running ones `grace` seconds to finish, release the rest, and end."""
        self._leasing = False
        for consumer in self.consumers.values():
            consumer.outcomes.end_delays()
        self._release_waiting()
        self._notify()
        self.shorten_drain(grace)  # an earlier call may have set a shorter grace
        while not self._idle and monotonic() < self._drain_deadline:
            self._changed.clear()
            await _wait(self._changed, min(0.2, self._drain_deadline - monotonic()))
            self._release_waiting()  # a child may have had jobs that could not be withdrawn before
        for executor in self.executors.values():
            executor.set_limit(0)
            for key in list(executor.running):
                executor.stop(key, Stop.SHUTDOWN)
        await self._abandon_unstoppable()
        self._release_waiting()
        self._ended = True
        self._notify()

    def _release_waiting(self) -> None:
        for executor in self.executors.values():
            for plan in executor.withdraw_standby():
                self._settle(Released(plan.lease))

    def shorten_drain(self, grace: float) -> None:
        """Wait at most `grace` more seconds for running jobs."""
        self._drain_deadline = min(self._drain_deadline, monotonic() + grace)
        self._notify()

    async def _abandon_unstoppable(self) -> None:
        """Wait briefly for cancelled jobs. Those that go on keep their leases until this process is gone."""
        running = [one for executor in self.executors.values() for one in executor.running.values()]
        tasks = [one.task for one in running if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S)
        for executor in self.executors.values():
            for one in executor.running.values():
                log.warning("%s: does not stop; it is reclaimed when this process ends", one.plan.title)
                one.stop = Stop.ABANDONED

    async def release_running(self) -> None:
        """Release the running jobs, just before this process ends because its supervisor died."""
        running = [one.plan.lease for executor in self.executors.values() for one in executor.running.values()]
        leases = {
            consumer: [lease for lease in running if lease.queue == consumer.queue]
            for consumer in self.consumers.values()
        }
        await asyncio.gather(*(self._release_leases(*each) for each in leases.items()), return_exceptions=True)

    async def _release_leases(self, consumer: QueueConsumer, leases: list[Lease]) -> None:
        turn = consumer.layout.turn([Released(lease) for lease in leases])
        await self._app.arun(lambda session: session.perform(turn, 1.0))

    @property
    def _adapted(self) -> list[Executor]:
        """The executors that share this interpreter, and whose limits follow its CPU use."""
        return [self.executors["loop"], self.executors["thread"]]

    @property
    def _idle(self) -> bool:
        return all(executor.idle for executor in self.executors.values())

    async def _mark_alive(self) -> None:
        """Show the supervisor that the event loop runs, and release jobs that wait too long for a slot."""
        while True:
            self._slot_table.mark_loop_alive()
            for executor in self.executors.values():
                for plan in executor.withdraw_stuck():
                    self._settle(Released(plan.lease))
            await asyncio.sleep(ALIVE_EVERY_S)

    # -- turns -------------------------------------------------------------------------------------

    async def _turn_loop(self) -> None:
        while True:
            if self._problem is not None:
                raise self._problem
            if self._leasing:
                self._run_ticks()
            consumer, want = self._choose()
            if consumer is not None:
                await self._run_turn(consumer, want)
            elif self._ended and not any(
                consumer.outcomes or consumer.in_flight for consumer in self.consumers.values()
            ):
                self._notify()
                return
            elif self._batching:
                await asyncio.sleep(MIN_TURN_INTERVAL_S / 2)  # do not wake up for each outcome
            else:
                self._changed.clear()
                await _wait(self._changed, self._pause())

    async def _run_turn(self, consumer: QueueConsumer, want: int) -> None:
        """Run one turn. If it is slow and there are other queues, it goes on in the background."""
        reserved = {kind: ceil(want * share) for kind, share in consumer.shares.items()}
        for kind, count in reserved.items():
            self._reserved[kind] += count
        turning = self._turn(consumer, want, probe=consumer.may_probe(want))
        consumer.turn_began_at = monotonic()
        if want:  # before the other turn loop chooses a queue
            consumer.poll.begin()
        try:
            if len(self.consumers) > 1:
                await self._wait_for_turn(consumer, asyncio.create_task(turning), want)
            else:  # no other queue waits, and a task of its own would cost more than a short job
                try:
                    await turning
                finally:
                    if want:
                        consumer.poll.end()
        finally:
            for kind, count in reserved.items():
                self._reserved[kind] -= count
        await asyncio.sleep(0)  # start the leased jobs before the next poll

    async def _wait_for_turn(self, consumer: QueueConsumer, turn: asyncio.Task[None], want: int) -> None:
        if want:
            turn.add_done_callback(consumer.poll.end)
        try:
            await asyncio.wait([turn], timeout=SLOW_TURN_AFTER_S)
        except BaseException:
            turn.cancel()
            raise
        if turn.done():
            return turn.result()
        consumer.slow = True
        self._slow.add(turn)

        def over(turn: asyncio.Task[None]) -> None:
            consumer.slow = False
            self._slow.discard(turn)
            self._check(turn)
            self._notify()

        turn.add_done_callback(over)
        return None

    def _choose(self) -> tuple[QueueConsumer | None, int]:
        """Choose the next queue and how many jobs to lease from it."""
        now = monotonic()
        self._batching = False
        for consumer in sorted(self.consumers.values(), key=lambda each: (each.served, not each.poll.looks_empty)):
            if consumer.poll.is_backing_off(now) or consumer.slow or consumer.leases.reconciling:
                continue
            if self._leasing and now < consumer.turn_began_at + MIN_TURN_INTERVAL_S and self._has_work(consumer):
                self._batching = True
                break  # its turn comes soon, and another queue must not take it
            wanted = self._leasing and consumer.wants_poll(now)
            room = self._room(consumer) if wanted else 0
            if room > 1 and consumer.guard.suspended:
                room = 1
            if room > 0 or consumer.outcomes:
                return consumer, room
        return None, 0

    def _has_work(self, consumer: QueueConsumer) -> bool:
        """Return whether the leased jobs keep every executor of this queue busy until the next turn."""
        return all(self.executors[kind].has_work_for(MIN_TURN_INTERVAL_S) for kind in consumer.kinds)

    def _room(self, consumer: QueueConsumer) -> int:
        """Return how many jobs of this queue could start now, if their kinds are mixed as in recent batches.

        One job of a rare kind may wait for a slot, so that its full executor does not stop the other kinds.
        """
        rooms = []
        for kind, share in consumer.shares.items():
            free = self.executors[kind].room - self._reserved[kind]
            rooms.append(free if share > COMMON_SHARE else int((free + 1) / share))
        return max(0, min(consumer.layout.largest_turn, *rooms))

    def _pause(self) -> float:
        if not self._leasing:
            return 0.2
        consumers = self.consumers.values()
        idle = [consumer for consumer in consumers if not consumer.in_flight and not consumer.leases.reconciling]
        times = [consumer.poll.next_at for consumer in idle if self._room(consumer) > 0 or consumer.outcomes]
        times += [at for consumer in consumers if (at := consumer.schedules.next_at) is not None]
        return max(0.0, min(times) - monotonic()) if times else 1.0

    async def _turn(self, consumer: QueueConsumer, want: int, *, probe: bool) -> None:
        try:
            if probe and not await consumer.probe():
                return
            sent, turn = await consumer.turn(want)
        except WindlassError as error:
            # The server is down or this queue cannot be used; the other queues go on.
            log.warning("Cannot lease or settle jobs of queue %s, trying again: %s", consumer.queue, error)
            consumer.poll.back_off()
            return
        self._report(consumer, sent, turn)
        if turn.lost and self._leasing:
            self._on_holder_unknown(consumer.queue)
        for outcome in turn.undecodable:
            self._settle_undecodable(consumer, outcome)
        if self._leasing:
            self._admit_all(consumer, turn.leases)
        else:
            for lease in turn.leases:
                self._settle(Released(lease))
        self._guard_queue(consumer, sent, turn)
        self._run_background(consumer)
        self._level_served()

    def _report(self, consumer: QueueConsumer, sent: list[Outcome], turn: Turn) -> None:
        if turn.dropped:
            log.warning(
                "Queue %s has more than max_dead dead jobs; dropped the %d oldest", consumer.queue, turn.dropped
            )
        for id in turn.expired:
            log.warning("%s: expired before it could start; it was dropped", in_one_line(f"{consumer.queue}/{id}"))
        if all(turn.settled):
            return
        for outcome, is_settled in zip(sent, turn.settled, strict=True):
            if not is_settled:
                title = in_one_line(f"{outcome.lease.queue}/{outcome.lease.id}")
                log.warning("%s: lease lost; its outcome is ignored", title)

    def _level_served(self) -> None:
        """Raise `served` of idle queues to the lowest of the others.

        Otherwise a queue that was idle would get all turns until its count catches up.
        """
        idle = [each for each in self.consumers.values() if each.poll.looks_empty or each.guard.suspended]
        least = min((each.served for each in self.consumers.values() if each not in idle), default=0.0)
        for consumer in idle:
            consumer.served = max(consumer.served, least)

    # -- attempts ------------------------------------------------------------------------------------

    def _admit_all(self, consumer: QueueConsumer, leases: Sequence[Lease]) -> None:
        kinds = [self._admit(lease) for lease in leases]
        if self._undecodable or not consumer.guard.all_decoded:
            self._record_decoding(consumer, leases, kinds)
        if len(consumer.kinds) == 1 or not any(kinds):
            return
        came = Counter(kind for kind in kinds if kind)
        consumer.note_kinds(came)
        for kind in came.keys() & consumer.shares:  # a batch with too many of one kind: other workers may have slots
            for plan in self.executors[kind].withdraw_surplus():
                self._settle(Released(plan.lease))

    def _admit(self, lease: Lease) -> str | None:
        """Give a job to its executor and return the executor's kind, or settle a job that cannot run."""
        planned = attempt.plan(self._app, lease)
        if not isinstance(planned, Plan):
            if isinstance(planned, Broken):
                self._undecodable[lease.fence] = planned  # settled after the whole batch is planned
            else:
                self._log_outcome(planned)
                self._settle(planned)
            return None
        # A job that may have killed a runner goes to a process of its own.
        kind: str = planned.run
        if lease.marks and lease.suspect and self.executors["isolated"].capacity > 0:
            kind = "isolated"
        executor = self.executors[kind]
        if executor.capacity > 0:
            executor.submit(planned)
            return kind
        self._settle(UnknownTask(lease, planned.task or ""))  # a worker inside another program has no processes
        return None

    def _record_decoding(self, consumer: QueueConsumer, leases: Sequence[Lease], kinds: Sequence[str | None]) -> None:
        """Tell the queue's guard, in lease order, which jobs of a batch could be decoded."""
        for lease, kind in zip(leases, kinds, strict=True):
            if (broken := self._undecodable.pop(lease.fence, None)) is not None:
                self._settle_undecodable(consumer, broken)
            elif kind is not None and consumer.guard.record_decoded():
                self._log_resumed(consumer, "a job could be decoded")

    def _settle_undecodable(self, consumer: QueueConsumer, outcome: Outcome) -> None:
        """Settle a job that cannot run here. If many in a row cannot be decoded, the others are released."""
        if isinstance(outcome, Broken):
            outcome = consumer.guard.record_undecodable(outcome)
        if not isinstance(outcome, Released):
            self._log_outcome(outcome)
        self._settle(outcome)

    def _guard_queue(self, consumer: QueueConsumer, sent: list[Outcome], turn: Turn) -> None:
        """Suspend the queue if this worker cannot decode its jobs, or if it keeps too many broken ones."""
        guard = consumer.guard
        if guard.all_decoded and not turn.broken_over_limit:
            return
        if (
            not turn.broken_over_limit
            and any(isinstance(outcome, Broken) for outcome in sent)
            and guard.record_stored()
        ):
            self._log_resumed(consumer, "there is room for broken jobs again")
        if guard.record_broken_limit() if turn.broken_over_limit else guard.suspend_if_too_many():
            log.error(
                "Queue %s suspended: %s. Check the worker's code and keys. This worker now leases only one job at a "
                "time, at growing intervals, until it can decode one. To see these jobs: "
                "windlass dead list --broken %s",
                consumer.queue,
                guard.reason,
                consumer.queue,
            )
            for executor in self.executors.values():
                for plan in executor.withdraw_standby(consumer.queue):
                    self._settle(Released(plan.lease))
            self._on_suspended(self.suspended)

    def _log_resumed(self, consumer: QueueConsumer, why: str) -> None:
        log.warning("Queue %s resumed: %s", consumer.queue, why)
        self._on_suspended(self.suspended)

    @property
    def suspended(self) -> dict[str, str]:
        """The suspended queues, with the reasons."""
        return {
            consumer.queue: consumer.guard.reason for consumer in self.consumers.values() if consumer.guard.suspended
        }

    def _finished(self, one: Attempt, outcome: Outcome | None) -> None:
        self._progress.pop(one.key, None)
        if one.stop is None and type(outcome) is Completed and not self._logs_completed:
            self._settle(outcome)  # the fast path: most jobs end here
            return
        if one.stop is Stop.ABANDONED:
            self._settle(outcome or Released(one.plan.lease))  # the fence refuses it if another worker has the job
        elif outcome is not None:
            self._log_outcome(outcome, one)
            self._settle(outcome)
        self._notify()

    def _settle(self, outcome: Outcome) -> None:
        self.consumers[outcome.lease.queue].outcomes.add(outcome)

    def _notify(self) -> None:
        self._changed.set()

    def _wake_all(self) -> None:
        for consumer in self.consumers.values():
            consumer.poll.wake()
        self._notify()

    def stop_jobs(self, queue: str) -> None:
        """Stop all jobs of one queue, because its leases could not be renewed.

        The jobs are still released: if the server itself hung, it knows our holder name, and the next
        heartbeat would renew these leases although no job runs.
        """
        for executor in self.executors.values():
            for plan in executor.withdraw_standby(queue):
                self._settle(Released(plan.lease))
            for key in executor.running_keys(queue):
                executor.stop(key, Stop.ABANDONED)

    def restart_as(self, holder: str) -> None:
        """Stop every attempt, because all leases are lost, and lease under another holder name."""
        for executor in self.executors.values():
            executor.withdraw_standby()
            for queue in self.consumers:
                for key in executor.running_keys(queue):
                    executor.stop(key, Stop.ABANDONED)
        for consumer in self.consumers.values():
            consumer.leases.restart_as(holder)

    def stop_attempt(self, queue: str, fence: int) -> None:
        """Stop one attempt that has lost its job."""
        for executor in self.executors.values():
            for plan in executor.withdraw_standby(queue, fence):
                self._settle(Released(plan.lease))  # the fence refuses it if another worker has the job
            executor.stop((queue, fence), Stop.ABANDONED)

    def cancel(self, queue: str, id: str) -> None:
        """Stop a cancelled job if it runs here."""
        for executor in self.executors.values():
            if (waiting := executor.withdraw(queue, id)) is not None:
                self._settle(Released(waiting.lease))
            for key in executor.running_keys(queue, id):
                log.info("%s: cancelled", in_one_line(f"{queue}/{id}"))
                executor.stop(key, Stop.CANCELLED)

    def _log_outcome(self, outcome: Outcome, one: Attempt | None = None) -> None:
        if isinstance(outcome, Completed) and not self._logs_completed:
            return
        lease = outcome.lease
        level, text = _describe_outcome(outcome)
        if isinstance(outcome, Completed) and one is not None:
            text = f"done in {monotonic() - one.began:.2f} s"
            level = logging.INFO if self._settings.log_jobs else level
        fields = {
            "queue": lease.queue,
            "id": lease.id,
            "attempt": lease.attempt,
            "outcome": name_of(outcome),
        }
        if one is not None and one.plan.task:
            fields["task"] = one.plan.task
        if one is not None and one.plan.failed_id:
            fields["failed_id"] = one.plan.failed_id
        title = one.plan.title if one else in_one_line(f"{lease.queue}/{lease.id}")
        if self._settings.log_arguments:
            fields["data"] = lease.data.decode("utf-8", "backslashreplace")
            title += f" {fields['data']}"
        log.log(level, "%s: %s", title, text, extra={"job": fields})

    # -- services of running jobs ------------------------------------------------------------------

    def is_cancelled(self, lease: Lease) -> bool:
        """Return whether a job should stop. Thread-safe."""
        for executor in self.executors.values():
            one = executor.running.get(key_of(lease))
            if one is not None:
                return one.stop is not None
        return True  # the worker has lost this job

    def progress(self, lease: Lease, value: float) -> None:
        """Send a job's progress soon; only the last value counts. Thread-safe."""
        self._progress[key_of(lease)] = (lease, value)
        if self._progress_task is None:
            self._loop.call_soon_threadsafe(self._begin_progress)

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

    async def aprogress(self, lease: Lease, value: float) -> bool:
        """Send a job's progress. Returns False if its lease is lost."""
        call = self.consumers[lease.queue].layout.progress(lease, value)
        return await self._app.arun(lambda session: session.perform(call))

    def prepare(self, lease: Lease, call: TaskCall) -> HandOver:
        """Check a call that a job hands over, and build its job."""
        return self._app.hand_over(lease.queue, call)

    # -- background work ---------------------------------------------------------------------------

    def _run_background(self, consumer: QueueConsumer) -> None:
        if consumer.leases.need_reconcile:
            consumer.leases.reconciling = True
            self._in_background(self._reconcile(consumer))
        if consumer.outbox and not consumer.forwarding:
            consumer.forwarding = True
            self._in_background(self._empty_outbox(consumer))

    def _run_ticks(self) -> None:
        now = monotonic()
        for consumer in self.consumers.values():
            if (at := consumer.schedules.next_at) is not None and at <= now:
                consumer.schedules.ticking = True
                self._in_background(self._tick(consumer))

    async def _tick(self, consumer: QueueConsumer) -> None:
        try:
            report = await consumer.tick()
        except WindlassError as error:
            log.warning("Cannot fire the schedules of queue %s, trying again: %s", consumer.queue, error)
            return
        for name in report.unreadable:
            self._warn_once(
                f"Schedule {name} of queue {consumer.queue} is due, but this Windlass version cannot read it: "
                "upgrade Windlass, or delete the schedule"
            )
        self._notify()

    async def _declare_schedules(self) -> None:
        """Store the declared schedules at the start, and again later, because a purge removes them."""
        again = False
        while True:
            for consumer in self.consumers.values():
                try:
                    for name in await consumer.schedules.declare(again=again):
                        self._warn_once(
                            f"Cannot declare schedule {name} of queue {consumer.queue}: this Windlass version cannot "
                            "read the stored one. Upgrade Windlass, or delete the schedule"
                        )
                except WindlassError as error:
                    log.warning(
                        "Cannot declare the schedules of queue %s, trying again in %g s: %s",
                        consumer.queue,
                        DECLARE_EVERY_S,
                        error,
                    )
            again = True
            self._notify()
            await asyncio.sleep(DECLARE_EVERY_S)

    def _warn_once(self, about: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("%s", about)

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _reconcile(self, consumer: QueueConsumer) -> None:
        """Compare our leases with the server's, because it restarted or lost data.

        No turn starts meanwhile: its leases would be on the server before they are here.
        """
        try:
            while consumer.in_flight:
                self._changed.clear()
                await _wait(self._changed, 0.05)
            released, lost, rewound = await self._app.arun(consumer.leases.reconcile)
        except WindlassError as error:
            text = "Cannot compare the leases of queue %s with the server's, trying again with the next turn: %s"
            log.warning(text, consumer.queue, error)
            return
        finally:
            consumer.leases.reconciling = False
            self._notify()
        if released or lost or rewound:
            log.error(
                "Queue %s: the server has lost data (it was purged, flushed or restored, or a replica behind the "
                "primary took over). Jobs may be lost or run again. Leases released, because their jobs do not run "
                "here: %d; running jobs stopped, because their leases are gone: %d",
                consumer.queue,
                released,
                len(lost),
            )
        for fence in lost:
            self.stop_attempt(consumer.queue, fence)

    async def _empty_outbox(self, consumer: QueueConsumer) -> None:
        try:
            await self._app.arun(lambda session: empty_outbox(session, consumer.layout, self._app.layout))
        except WindlassError as error:
            log.warning(
                "Cannot forward the outbox of queue %s, trying again in %g s: %s", consumer.queue, OUTBOX_RETRY_S, error
            )
            await asyncio.sleep(OUTBOX_RETRY_S)
        finally:
            consumer.forwarding = False


def _describe_outcome(outcome: Outcome) -> tuple[int, str]:
    """Return the log level and the text for an outcome."""
    match outcome:
        case Retried(message=message):
            return logging.WARNING, f"failed (attempt {outcome.lease.attempt}), will be retried: {message}"
        case Failed(message=message):
            return logging.ERROR, f"failed for good: {message}"
        case Crashed(message=message):
            return logging.ERROR, f"crashed: {message.partition(chr(10))[0]}"
        case Broken(message=message):
            return logging.ERROR, f"cannot be decoded: {message}"
        case UnknownTask(task=task):
            return logging.WARNING, f"this worker has no task {task!r}; left for a worker that has it"
        case Released():
            return logging.INFO, "returned to the queue"
        case NoFailureHandler():
            return logging.DEBUG, "has no failure handler; moved to dead"
        case Completed():
            return logging.DEBUG, "done"


def kinds_on(app: Windlass, queue: str) -> frozenset[str]:
    """Return the kinds of executors that a queue's jobs may need, from its own tasks, or all tasks if it has none."""
    handler = app.handlers.get(queue)
    tasks = list(app.tasks.values())
    declared = [handler] if handler else [task for task in tasks if task.queue == queue] or tasks
    kinds = {each.run for each in declared} | {
        each.failure_handler.run for each in declared if each.failure_handler is not None
    }
    return frozenset(kinds or {"loop"})


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        pass
