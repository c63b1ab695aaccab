"""The runner: leases jobs in batches, has them run, settles them in batches.

Two turns of the wheel are under way at a time: while the server works on one, the outcomes of the other gather. What a
turn costs does not depend on how many jobs it moves, so under load the batches grow by themselves.
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
    Child,
    Completed,
    Crashed,
    Failed,
    Outcome,
    Released,
    Retried,
    Unhandled,
    Unknown,
)
from windlass.values.validation import in_one_line
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors.base import Attempt, Executor, Key, Stop, key_of
from windlass.worker.executors.loop import LoopExecutor
from windlass.worker.executors.processes import ChildSource, ProcessExecutor
from windlass.worker.executors.threads import ThreadExecutor
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.runner.concurrency import adapt_forever, begin_small
from windlass.worker.runner.outbox import empty_outbox
from windlass.worker.runner.queue_consumer import QueueConsumer
from windlass.worker.runner.wakeups import Wakeups
from windlass.worker.settings import Settings

log = logging.getLogger("windlass.worker")

TURNS = 2  # under way at a time
OFTEN = 0.5  # a kind of which at least so many jobs are: no more are leased than it has room for
GATHER = 0.004  # seconds from turn to turn, at least, while there is work in hand
PROMPT = 0.5  # seconds after which a turn no longer counts as one of these: its queue may be out of reach
PROGRESS_EVERY = 0.1  # seconds between two reports of the same job
DECLARE_EVERY = 300.0
OUTBOX_PAUSE = 2.0  # seconds, when it could not be emptied
SHOW_LIFE = 0.1  # seconds between two signs that the loop turns
STUBBORN = 0.5  # seconds for what was cancelled to end


class Runner:
    """All queues of one worker process."""

    def __init__(
        self,
        app: Windlass,
        settings: Settings,
        holder: str,
        slot_table: SlotTable,
        source: ChildSource,
        on_lost: Callable[[str], None],
        on_suspended: Callable[[dict[str, str]], None] = lambda queues: None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._slot_table = slot_table
        self._on_lost = on_lost
        self._on_suspended = on_suspended
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
            begin_small(self._adapted)
        self._reserved = dict.fromkeys(self.executors, 0)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._batcher = False  # whose turn it is has work in hand: what is to be settled can wait for more
        self._leasing = True
        self._ended = False
        self._patience_ends = inf
        self._problem: BaseException | None = None
        self._progress: dict[Key, tuple[Lease, float]] = {}
        self._progress_task: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._complaints: set[str] = set()
        self._undecodable: dict[int, Broken] = {}  # of the batch that is being admitted, by fence
        self._tells_all = settings.log_jobs or log.isEnabledFor(logging.DEBUG)
        self._wakeups = Wakeups(app, self.consumers.values(), self._notify)

    def _consumer(self, queue: str, weight: int, holder: str) -> QueueConsumer:
        kinds = kinds_on(self._app, queue)
        one_by_one = sum(self.executors[kind].most for kind in kinds) == 1
        return QueueConsumer(self._app, queue, weight, kinds, holder, self._settings.lease, strictly=one_by_one)

    # -- the whole life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `drain` has come to its end."""
        turners = [asyncio.create_task(self._turn_on()) for _ in range(TURNS)]
        duties = (self._wakeups.listen(), self._declare_schedules(), self._show_life())
        others = [asyncio.create_task(duty) for duty in duties]
        if self._settings.auto:
            others.append(asyncio.create_task(adapt_forever(self._adapted, self._look_all)))
        for other in others:
            other.add_done_callback(self._check)
        try:
            await asyncio.gather(*turners)
            await asyncio.gather(*self._background, return_exceptions=True)
        finally:
            tasks = (*others, *turners, *self._slow)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Let threads and children go."""
        for executor in self.executors.values():
            executor.close()

    def _check(self, duty: asyncio.Task[None]) -> None:
        """A runner that only half works is ended, and the supervisor hires another."""
        if not duty.cancelled() and (error := duty.exception()) is not None:
            self._problem = error
            self._notify()

    async def drain(self, grace: float) -> None:
        """Take no more jobs, let those that run finish for so long, give back what is left, and end."""
        self._leasing = False
        for consumer in self.consumers.values():
            consumer.let_all_go()
        self._give_back_waiting()
        self._notify()
        self.shorten(grace)  # to less, if that was said already
        while not self._idle and monotonic() < self._patience_ends:
            self._changed.clear()
            await _wait(self._changed, min(0.2, self._patience_ends - monotonic()))
            self._give_back_waiting()  # what could not be taken back from a child before
        for executor in self.executors.values():
            executor.set_limit(0)
            for key in list(executor.running):
                executor.stop(key, Stop.SHUTDOWN)
        await self._leave_the_stubborn()
        self._give_back_waiting()
        self._ended = True
        self._notify()

    def _give_back_waiting(self) -> None:
        for executor in self.executors.values():
            for plan in executor.give_up_standby():
                self._settle(Released(plan.lease))

    def shorten(self, grace: float) -> None:
        """Wait no longer for running jobs than so many seconds from now."""
        self._patience_ends = min(self._patience_ends, monotonic() + grace)
        self._notify()

    async def _leave_the_stubborn(self) -> None:
        """What does not stop is not given back from here, for it runs: the supervisor does so when this process is
        gone."""
        tasks = [one.task for executor in self.executors.values() for one in executor.running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=STUBBORN)
        for executor in self.executors.values():
            for one in executor.running.values():
                log.warning("%s: it does not stop", one.plan.title)
                one.stop = Stop.LOST

    async def give_back_running(self) -> None:
        """The last deed of a runner whose supervisor is gone: what still runs ends with this process, right after
        this."""
        running = [one.plan.lease for executor in self.executors.values() for one in executor.running.values()]
        gifts = {
            consumer: [lease for lease in running if lease.queue == consumer.queue]
            for consumer in self.consumers.values()
        }
        await asyncio.gather(*(self._part(*gift) for gift in gifts.items()), return_exceptions=True)

    async def _part(self, consumer: QueueConsumer, leases: list[Lease]) -> None:
        turn = consumer.layout.turn([Released(lease) for lease in leases])
        await self._app.arun(lambda session: session.perform(turn, 1.0))

    @property
    def _adapted(self) -> list[Executor]:
        """What shares this interpreter, and is adapted to its use."""
        return [self.executors["loop"], self.executors["thread"]]

    @property
    def _idle(self) -> bool:
        return all(executor.idle for executor in self.executors.values())

    async def _show_life(self) -> None:
        """Let the supervisor see that the loop turns. And see that no job waits here for one that takes long."""
        while True:
            self._slot_table.tick()
            for executor in self.executors.values():
                for plan in executor.give_up_stuck():
                    self._settle(Released(plan.lease))
            await asyncio.sleep(SHOW_LIFE)

    # -- turning the wheel -------------------------------------------------------------------------

    async def _turn_on(self) -> None:
        while True:
            if self._problem is not None:
                raise self._problem
            if self._leasing:
                self._run_ticks()
            consumer, want = self._choose()
            if consumer is not None:
                await self._turn_promptly(consumer, want)
            elif self._ended and not any(
                consumer.outcomes or consumer.in_flight for consumer in self.consumers.values()
            ):
                self._notify()
                return
            elif self._batcher:
                await asyncio.sleep(GATHER / 2)  # and not at each outcome that comes
            else:
                self._changed.clear()
                await _wait(self._changed, self._pause())

    async def _turn_promptly(self, consumer: QueueConsumer, want: int) -> None:
        """One turn. If it takes long, and there are other queues, it goes on by itself: none of them waits for it."""
        reserved = {kind: ceil(want * share) for kind, share in consumer.shares.items()}
        for kind, count in reserved.items():
            self._reserved[kind] += count
        turning = self._turn(consumer, want, probe=consumer.may_probe(want))
        consumer.turned_at = monotonic()
        if want:  # said at once, before the other turner chooses
            consumer.look_begins()
        try:
            if len(self.consumers) > 1:
                await self._wait_for_turn(consumer, asyncio.create_task(turning), want)
            else:  # nobody else waits, and a task of its own would take longer than a short job
                try:
                    await turning
                finally:
                    if want:
                        consumer.look_ends(None)
        finally:
            for kind, count in reserved.items():
                self._reserved[kind] -= count
        await asyncio.sleep(0)  # what was found begins before the next look

    async def _wait_for_turn(self, consumer: QueueConsumer, turn: asyncio.Task[None], want: int) -> None:
        if want:
            turn.add_done_callback(consumer.look_ends)
        try:
            await asyncio.wait([turn], timeout=PROMPT)
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
        """The queue whose turn it is, and how many jobs to ask it for."""
        now = monotonic()
        self._batcher = False
        for consumer in sorted(self.consumers.values(), key=lambda consumer: (consumer.served, not consumer.is_empty)):
            if consumer.rests(now) or consumer.slow or consumer.comparing:
                continue
            if self._leasing and now < consumer.turned_at + GATHER and self._has_work(consumer):
                self._batcher = True
                break  # its turn is soon: no other queue is to have it instead
            wanted = self._leasing and consumer.wants_look(now) and not consumer.hands_full
            room = self._room(consumer) if wanted else 0
            if room > 1 and consumer.guard.suspended:
                room = 1
            if room > 0 or consumer.outcomes:
                return consumer, room
        return None, 0

    def _has_work(self, consumer: QueueConsumer) -> bool:
        """Whether what was leased ahead will do for a while, in each way that its jobs are run."""
        return all(self.executors[kind].has_work_for(GATHER) for kind in consumer.kinds)

    def _room(self, consumer: QueueConsumer) -> int:
        """How many jobs of this queue could be run now, if they are mixed as they were of late.

        Of a kind that is rare one may wait for its place, so that the others need not.
        """
        rooms = []
        for kind, share in consumer.shares.items():
            free = self.executors[kind].room - self._reserved[kind]
            rooms.append(free if share > OFTEN else int((free + 1) / share))
        return max(0, min(consumer.layout.largest_turn, *rooms))

    def _pause(self) -> float:
        if not self._leasing:
            return 0.2
        consumers = self.consumers.values()
        idle = [consumer for consumer in consumers if not consumer.in_flight and not consumer.comparing]
        times = [consumer.next_look for consumer in idle if self._room(consumer) > 0 or consumer.outcomes]
        times += [consumer.tick_at for consumer in consumers if consumer.tick_at is not None and not consumer.ticking]
        return max(0.0, min(times) - monotonic()) if times else 1.0

    async def _turn(self, consumer: QueueConsumer, want: int, *, probe: bool) -> None:
        try:
            if probe and not await consumer.probe():
                return
            sent, turn = await consumer.turn(want)
        except WindlassError as error:
            # A server that is away, or one queue that is damaged: the other queues go on.
            log.warning("%s; trying again", error)
            consumer.rest()
            return
        self._report(consumer, sent, turn)
        if turn.lost and self._leasing:
            self._on_lost(consumer.queue)
        for refused in turn.refused:
            self._settle_refused(consumer, refused)
        if self._leasing:
            self._admit_all(consumer, turn.leases)
        else:
            for lease in turn.leases:
                self._settle(Released(lease))
        self._guard_queue(consumer, sent, turn)
        self._run_background(consumer)
        self._level()

    def _report(self, consumer: QueueConsumer, sent: list[Outcome], turn: Turn) -> None:
        if turn.dropped:
            log.warning(
                "%s: dropped the oldest dead jobs, there are more than max_dead: %d", consumer.queue, turn.dropped
            )
        if all(turn.settled):
            return
        for outcome, ours in zip(sent, turn.settled, strict=True):
            if not ours:
                title = in_one_line(f"{outcome.lease.queue}/{outcome.lease.id}")
                log.warning("%s: the lease was lost, its outcome does not count", title)

    def _level(self) -> None:
        """A queue that has nothing is not owed for that time: it keeps up with the one that is next."""
        least = min((consumer.served for consumer in self.consumers.values() if not consumer.is_empty), default=0.0)
        for consumer in self.consumers.values():
            if consumer.is_empty:
                consumer.served = max(consumer.served, least)

    # -- attempts ------------------------------------------------------------------------------------

    def _admit_all(self, consumer: QueueConsumer, leases: Sequence[Lease]) -> None:
        kinds = [self._admit(lease) for lease in leases]
        if self._undecodable or not consumer.guard.untouched:
            self._sort_undecodable(consumer, leases, kinds)
        if len(consumer.kinds) == 1 or not any(kinds):
            return
        came = Counter(kind for kind in kinds if kind)
        consumer.note_kinds(came)
        for kind in came.keys() & consumer.shares:  # more than was to be expected: others may have a place for them
            for plan in self.executors[kind].give_up_surplus():
                self._settle(Released(plan.lease))

    def _admit(self, lease: Lease) -> str | None:
        """Have a job run, soon; in which way, None if it cannot be."""
        planned = attempt.plan(self._app, lease)
        if not isinstance(planned, Plan):
            if isinstance(planned, Broken):
                self._undecodable[lease.fence] = planned  # settled when the whole batch is known
            else:
                self._log_outcome(planned)
                self._settle(planned)
            return None
        # What may have killed a whole runner is tried where it can only kill itself.
        kind: str = planned.run
        if lease.marks and lease.suspect and self.executors["isolated"].most > 0:
            kind = "isolated"
        executor = self.executors[kind]
        if executor.most > 0:
            executor.submit(planned)
            return kind
        self._settle(Unknown(lease, planned.task or ""))  # a worker inside another program has no processes
        return None

    def _sort_undecodable(self, consumer: QueueConsumer, leases: Sequence[Lease], kinds: Sequence[str | None]) -> None:
        """Tell the queue's guard, in order, which jobs of a batch could be decoded."""
        for lease, kind in zip(leases, kinds, strict=True):
            if (broken := self._undecodable.pop(lease.fence, None)) is not None:
                self._settle_refused(consumer, broken)
            elif kind is not None and consumer.guard.decoded():
                self._tell_resumed(consumer, "a job could be decoded")

    def _settle_refused(self, consumer: QueueConsumer, outcome: Outcome) -> None:
        """Settle a job that cannot be run here. If many in a row cannot be decoded, the others are given back."""
        if isinstance(outcome, Broken):
            outcome = consumer.guard.undecodable(outcome)
        if not isinstance(outcome, Released):
            self._log_outcome(outcome)
        self._settle(outcome)

    def _guard_queue(self, consumer: QueueConsumer, sent: list[Outcome], turn: Turn) -> None:
        """Suspend the queue if this worker cannot decode its jobs, or if it keeps too many broken ones."""
        guard = consumer.guard
        if guard.untouched and not turn.returned:
            return
        if not turn.returned and any(isinstance(outcome, Broken) for outcome in sent) and guard.stored():
            self._tell_resumed(consumer, "there is room for broken jobs again")
        if guard.no_room() if turn.returned else guard.check_run():
            log.error(
                "%s: suspended, this worker takes no more jobs from the queue: %s. Check its code and keys. It tries "
                "one job now and then, and goes on when it can decode one. To see them: windlass dead list --broken %s",
                consumer.queue,
                guard.reason,
                consumer.queue,
            )
            for executor in self.executors.values():
                for plan in executor.give_up_standby(consumer.queue):
                    self._settle(Released(plan.lease))
            self._on_suspended(self.suspended)

    def _tell_resumed(self, consumer: QueueConsumer, why: str) -> None:
        log.warning("%s: resumed, %s", consumer.queue, why)
        self._on_suspended(self.suspended)

    @property
    def suspended(self) -> dict[str, str]:
        """The queues from which no jobs are taken, with the reasons."""
        return {
            consumer.queue: consumer.guard.reason for consumer in self.consumers.values() if consumer.guard.suspended
        }

    def _finished(self, one: Attempt, outcome: Outcome | None) -> None:
        self._progress.pop(one.key, None)
        if one.stop is None and type(outcome) is Completed and not self._tells_all:
            self._settle(outcome)  # what most jobs come to
            return
        if one.stop is Stop.LOST:
            self._settle(outcome or Released(one.plan.lease))  # refused by the fence if it is another's by now
        elif outcome is not None:
            self._log_outcome(outcome, one)
            self._settle(outcome)
        self._notify()

    def _settle(self, outcome: Outcome) -> None:
        self.consumers[outcome.lease.queue].settle(outcome, self._notify)

    def _notify(self) -> None:
        self._changed.set()

    def _look_all(self) -> None:
        for consumer in self.consumers.values():
            consumer.wake()
        self._notify()

    def lose(self, queue: str) -> None:
        """The leases of one queue could not be kept alive: stop what runs of it, and begin nothing more.

        All is given back, when the server can be reached: if it stood still itself our name is known there, and with
        the next heartbeat these leases would be ours for ever.
        """
        for executor in self.executors.values():
            for plan in executor.give_up_standby(queue):
                self._settle(Released(plan.lease))
            for key in executor.begun(queue):
                executor.stop(key, Stop.LOST)

    def begin_again(self, holder: str) -> None:
        """All leases are lost: stop every attempt, and lease under another name."""
        for executor in self.executors.values():
            executor.give_up_standby()
            for queue in self.consumers:
                for key in executor.begun(queue):
                    executor.stop(key, Stop.LOST)
        for consumer in self.consumers.values():
            consumer.begin_again(holder)

    def drop(self, queue: str, fence: int) -> None:
        """One attempt has lost its job to another."""
        for executor in self.executors.values():
            for plan in executor.give_up_standby(queue, fence):
                self._settle(Released(plan.lease))  # refused, if it is another's by now
            executor.stop((queue, fence), Stop.LOST)

    def cancel(self, queue: str, id: str) -> None:
        """A running job was cancelled: stop it if it is here."""
        for executor in self.executors.values():
            if (waiting := executor.give_up(queue, id)) is not None:
                self._settle(Released(waiting.lease))
            for key in executor.begun(queue, id):
                log.info("%s: cancelled", in_one_line(f"{queue}/{id}"))
                executor.stop(key, Stop.CANCELLED)

    def _log_outcome(self, outcome: Outcome, one: Attempt | None = None) -> None:
        if isinstance(outcome, Completed) and not self._tells_all:
            return
        lease = outcome.lease
        level, text = _words_for(outcome)
        if isinstance(outcome, Completed) and one is not None:
            text = f"done in {monotonic() - one.began:.2f} s"
            level = logging.INFO if self._settings.log_jobs else level
        told = {
            "queue": lease.queue,
            "id": lease.id,
            "attempt": lease.attempt,
            "outcome": type(outcome).__name__.lower(),
        }
        if one is not None and one.plan.task:
            told["task"] = one.plan.task
        if one is not None and one.plan.failed_id:
            told["failed_id"] = one.plan.failed_id
        title = one.plan.title if one else in_one_line(f"{lease.queue}/{lease.id}")
        if self._settings.log_arguments:
            told["data"] = lease.data.decode("utf-8", "backslashreplace")
            title += f" {told['data']}"
        log.log(level, "%s: %s", title, text, extra={"job": told})

    # -- what running jobs want --------------------------------------------------------------------

    def is_cancelled(self, lease: Lease) -> bool:
        """Whether a job is to stop. For any thread."""
        for executor in self.executors.values():
            one = executor.running.get(key_of(lease))
            if one is not None:
                return one.stop is not None
        return True  # it is not ours any more

    def progress(self, lease: Lease, value: float) -> None:
        """Send how far a job is, soon; the last value counts. For any thread."""
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
                    log.warning("%s", error)
                await asyncio.sleep(PROGRESS_EVERY / max(1, len(self._progress)))
        finally:
            self._progress_task = None

    async def aprogress(self, lease: Lease, value: float) -> bool:
        """Send how far a job is; whether it is still ours."""
        call = self.consumers[lease.queue].layout.progress(lease, value)
        return await self._app.arun(lambda session: session.perform(call))

    def prepare(self, lease: Lease, call: TaskCall) -> Child:
        """Check what a job wants to hand over."""
        return self._app.hand_over(lease.queue, call)

    # -- errands: what a turn found to do beside jobs ------------------------------------------------

    def _run_background(self, consumer: QueueConsumer) -> None:
        if consumer.in_doubt:
            consumer.comparing = True
            self._in_background(self._compare_notes(consumer))
        if consumer.outbox and not consumer.emptying:
            consumer.emptying = True
            self._in_background(self._empty_outbox(consumer))

    def _run_ticks(self) -> None:
        now = monotonic()
        for consumer in self.consumers.values():
            if consumer.wants_tick(now):
                consumer.ticking = True
                self._in_background(self._tick(consumer))

    async def _tick(self, consumer: QueueConsumer) -> None:
        try:
            report = await consumer.tick()
        except WindlassError as error:
            log.warning("the schedules of %s could not be ticked: %s", consumer.queue, error)
            return
        for name in report.unreadable:
            self._complain_once(f"schedule {name} of {consumer.queue} is due, and cannot be read by this version")
        self._notify()

    async def _declare_schedules(self) -> None:
        """Put declared schedules into the server: at first, and again, for a purge takes them away."""
        again = False
        while True:
            for consumer in self.consumers.values():
                try:
                    for name in await consumer.declare(again=again):
                        self._complain_once(f"schedule {name} of {consumer.queue} is there already, and cannot be read")
                except WindlassError as error:
                    log.warning("the schedules of %s could not be declared: %s", consumer.queue, error)
            again = True
            self._notify()
            await asyncio.sleep(DECLARE_EVERY)

    def _complain_once(self, about: str) -> None:
        if about not in self._complaints:
            self._complaints.add(about)
            log.warning("%s", about)

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _compare_notes(self, consumer: QueueConsumer) -> None:
        """The server was restarted, or is another: what it says that we hold is compared with what we have.

        Until then there is no new turn: what one leases would be on one side only.
        """
        rewinds = consumer.rewinds
        try:
            while consumer.in_flight:
                self._changed.clear()
                await _wait(self._changed, 0.05)
            ghosts, lost = await consumer.compare_notes()
        except WindlassError as error:
            log.warning("%s; comparing again with the next turn", error)
            return
        finally:
            consumer.comparing = False
            self._notify()
        if ghosts or lost or consumer.layout.rewinds != rewinds:
            log.error(
                "%s: the server has lost data (it was purged, flushed or restored, or a replica took over that was "
                "behind): jobs may be gone, or run again. Given back, for they are not in "
                "our hands: %d; stopped, for they are not ours any more: %d",
                consumer.queue,
                ghosts,
                len(lost),
            )
        for fence in lost:
            self.drop(consumer.queue, fence)

    async def _empty_outbox(self, consumer: QueueConsumer) -> None:
        try:
            await self._app.arun(lambda session: empty_outbox(session, consumer.layout, self._app.layout))
        except WindlassError as error:
            log.warning("what %s handed over is still to be sent: %s", consumer.queue, error)
            await asyncio.sleep(OUTBOX_PAUSE)
        finally:
            consumer.emptying = False


def _words_for(outcome: Outcome) -> tuple[int, str]:
    """How an outcome is told in the log, and how loud."""
    match outcome:
        case Retried(message=message):
            return logging.WARNING, f"failed (attempt {outcome.lease.attempt}), to be tried again: {message}"
        case Failed(message=message):
            return logging.ERROR, f"failed for good: {message}"
        case Crashed(message=message):
            return logging.ERROR, f"crashed: {message.partition(chr(10))[0]}"
        case Broken(message=message):
            return logging.ERROR, f"cannot be decoded: {message}"
        case Unknown(task=task):
            return logging.WARNING, f"no task {task!r} here; left for a worker that knows it"
        case Released():
            return logging.INFO, "given back"
        case Unhandled():
            return logging.DEBUG, "no failure handler wants it; among the dead"
        case Completed():
            return logging.DEBUG, "done"


def kinds_on(app: Windlass, queue: str) -> frozenset[str]:
    """In which ways jobs of a queue may have to be run: those of its own tasks, or of all where it has none."""
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
