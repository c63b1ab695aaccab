"""The runner: leases jobs in batches, runs them, and settles them in batches.

A turn settles and leases in one round trip. Two turns run at a time: while the server works on one, outcomes for the
other collect. The cost of a turn hardly depends on its number of jobs, so batches grow by themselves under load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from math import ceil, inf
from time import monotonic
from typing import Any

from windlass.app import Windlass
from windlass.errors import WindlassError
from windlass.storage.port import Turn
from windlass.tasks.declaration import Declaration
from windlass.values.job import Lease
from windlass.values.outcome import Broken, Completed, Outcome, Released, UnknownTask
from windlass.values.printable import in_one_line
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors.base import Attempt, Executor, Stop
from windlass.worker.executors.loop import LoopExecutor
from windlass.worker.executors.processes import ChildSource, ProcessExecutor
from windlass.worker.executors.threads import ThreadExecutor
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.runner.concurrency import adapt_forever, set_initial_limits
from windlass.worker.runner.job_services import RunnerServices
from windlass.worker.runner.outcome_log import OutcomeLog, log_turn
from windlass.worker.runner.queue_consumer import QueueConsumer
from windlass.worker.runner.upkeep import Upkeep
from windlass.worker.runner.wakeups import Wakeups
from windlass.worker.settings import Settings

log = logging.getLogger("windlass.worker")

CONCURRENT_TURNS = 2  # one at the server while the other collects outcomes
COMMON_SHARE = 0.5  # a kind above this share of a queue's jobs is never leased beyond its free slots
MIN_TURN_INTERVAL_S = 0.004  # while jobs run: larger batches cost the server less than many small ones
SLOW_TURN_AFTER_S = 0.5  # a slower turn goes to the background: its server may be down, and other queues must go on
MANY_QUEUES = 64  # up to this number, each turn looks at all queues anew
LOOK_COST_S = 0.000_02  # pause for each of many queues, so that idle looks at all of them take a tenth of a CPU
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
        slots, services = settings.slots, RunnerServices(app, lambda: self.executors.values())
        self._services = services
        self.executors: dict[str, Executor] = {
            "loop": LoopExecutor(slots["loop"], slot_table, services, self._finished),
            "thread": ThreadExecutor(slots["thread"], slot_table, services, self._finished),
            "process": ProcessExecutor(
                slots["process"], slot_table, services, self._finished, source=source, max_jobs=settings.max_jobs
            ),
            "isolated": ProcessExecutor(
                slots["isolated"], slot_table, services, self._finished, source=source, max_jobs=1
            ),
        }
        kinds = kinds_by_queue(app, settings.queues)
        self.consumers = {
            queue: self._consumer(queue, weight, kinds[queue], holder) for queue, weight in settings.queues.items()
        }
        if settings.auto:
            set_initial_limits(self._adapted)
        self._order: deque[QueueConsumer] = deque()  # with many queues: those that are due, fairest first
        self._reserved = dict.fromkeys(self.executors, 0)
        self._batching = False  # the next queue has enough work: its outcomes can wait for a larger batch
        self._leasing = True
        self._ended = False
        self._drain_deadline = inf
        self._problem: BaseException | None = None
        self._slow: set[asyncio.Task[None]] = set()
        self._undecodable: dict[int, Broken] = {}  # by fence, from the batch that is being admitted
        self._outcome_log = OutcomeLog(settings)
        self._upkeep = Upkeep(app, self._notify, self.stop_attempt)
        self._wakeups = Wakeups(app, self.consumers.values(), self._notify)

    def _consumer(self, queue: str, weight: int, kinds: frozenset[str], holder: str) -> QueueConsumer:
        # A kind without slots, such as "process" inside another program, must not stop the others.
        kinds = frozenset(kind for kind in kinds if self.executors[kind].capacity > 0) or kinds
        one_by_one = sum(self.executors[kind].capacity for kind in kinds) == 1
        lease = self._settings.lease
        known: Callable[[], Collection[str]] = tuple if queue in self._app.handlers else lambda: self._known_tasks
        return QueueConsumer(
            self._app, queue, weight, kinds, holder, lease, self._notify, strictly=one_by_one, known=known
        )

    @cached_property  # a task that is declared while the worker runs gets its parked jobs with the heartbeats
    def _known_tasks(self) -> frozenset[str]:
        """The names of the tasks that this runner knows and has slots for."""
        tasks = {name: self._app.find_task(name) for name in self._app.task_names}
        return frozenset(
            name
            for name, task in tasks.items()
            if task is not None and all(self.executors[kind].capacity > 0 for kind in task.kinds)
        )

    # -- life cycle --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `drain` has finished."""
        turn_loops = [asyncio.create_task(self._turn_loop()) for _ in range(CONCURRENT_TURNS)]
        duties = (self._wakeups.listen(), self._upkeep.declare_schedules(self.consumers.values()), self._mark_alive())
        others = [asyncio.create_task(duty) for duty in duties]
        if self._settings.auto:
            others.append(asyncio.create_task(adapt_forever(self._adapted, self._wake_all)))
        for other in others:
            other.add_done_callback(self._check)
        try:
            await asyncio.gather(*turn_loops)
            await self._upkeep.finish()
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
        await self._app._flows.arun(lambda session: session.perform(turn, 1.0))

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
            if self._leasing and not self._order:
                self._upkeep.run_ticks(self.consumers.values())
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
        for consumer in self._in_order(now):
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

    def _in_order(self, now: float) -> Iterable[QueueConsumer]:
        """Return the queues in the order in which they may have a turn.

        A look at thousands of queues costs more than a turn: then one order serves for all queues that were due.
        """
        if len(self.consumers) <= MANY_QUEUES:
            return sorted(self.consumers.values(), key=_claim)
        return self._shared_order(now)

    def _shared_order(self, now: float) -> Iterator[QueueConsumer]:
        while self._order:
            yield self._order.popleft()
        due = [each for each in self.consumers.values() if each.outcomes or (self._leasing and each.wants_poll(now))]
        self._order.extend(sorted(due, key=_claim))
        while self._order:
            yield self._order.popleft()

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
        least = len(consumers) * LOOK_COST_S if len(consumers) > MANY_QUEUES else 0.0
        return max(least, min(times) - monotonic()) if times else 1.0

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
        log_turn(consumer.queue, sent, turn)
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
        self._upkeep.after_turn(consumer)
        if not self._order:
            self._level_served()

    def _level_served(self) -> None:
        """Raise `served` of idle queues to the lowest of the others.

        Otherwise a queue that was idle would get all turns until its count catches up.
        """
        idle: list[QueueConsumer] = []
        busy: list[QueueConsumer] = []
        for each in self.consumers.values():
            (idle if each.poll.looks_empty or each.guard.suspended else busy).append(each)
        least = min((each.served for each in busy), default=0.0)
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
                self._outcome_log.add(planned)
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
            self._outcome_log.add(outcome)
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
                "Queue %s suspended: %s. %s. This worker now leases only one job at a time, to try, at growing "
                "intervals. To see the broken jobs: windlass dead list --broken %s",
                consumer.queue,
                guard.reason,
                guard.remedy,
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
        self._services.forget(one.key)
        if one.stop is None and type(outcome) is Completed and not self._outcome_log.includes_completed:
            self._settle(outcome)  # the fast path: most jobs end here
            return
        if one.stop is Stop.ABANDONED:
            self._settle(outcome or Released(one.plan.lease))  # the fence refuses it if another worker has the job
        elif outcome is not None:
            self._outcome_log.add(outcome, one)
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


def _claim(consumer: QueueConsumer) -> tuple[float, bool]:
    """Sort queues: first the one that got the fewest jobs for its weight."""
    return consumer.served, not consumer.poll.looks_empty


def kinds_by_queue(app: Windlass, queues: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the kinds of executors that the jobs of each queue may need, from its own tasks, or all if it has none."""
    own: dict[str, list[Declaration[..., Any]]] = {queue: [handler] for queue, handler in app.handlers.items()}
    for task in app.tasks.values():
        own.setdefault(task.queue, []).append(task)
    all_kinds = _kinds(app.tasks.values())
    return {queue: _kinds(own[queue]) if queue in own else all_kinds for queue in queues}


def _kinds(declared: Iterable[Declaration[..., Any]]) -> frozenset[str]:
    kinds = {kind for each in declared for kind in each.kinds}
    return frozenset(kinds or {"loop"})


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        pass
