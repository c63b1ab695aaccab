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
    Uncaught,
    Unknown,
)
from windlass.values.validation import in_one_line
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors.base import Attempt, Executor, Key, Stop, key_of
from windlass.worker.executors.loop import LoopExecutor
from windlass.worker.executors.processes import ChildSource, ProcessExecutor
from windlass.worker.executors.threads import ThreadExecutor
from windlass.worker.ipc.slot_table import Board
from windlass.worker.runner.concurrency import adapt_forever, begin_small
from windlass.worker.runner.outbox import empty_outbox
from windlass.worker.runner.queue_consumer import Feed
from windlass.worker.runner.wakeups import Ear
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
        board: Board,
        source: ChildSource,
        on_lost: Callable[[str], None],
        on_suspended: Callable[[dict[str, str]], None] = lambda queues: None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._board = board
        self._on_lost = on_lost
        self._on_suspended = on_suspended
        slots = settings.slots
        self.executors: dict[str, Executor] = {
            "loop": LoopExecutor(slots["loop"], board, self, self._finished),
            "thread": ThreadExecutor(slots["thread"], board, self, self._finished),
            "process": ProcessExecutor(
                slots["process"], board, self, self._finished, source=source, max_jobs=settings.max_jobs
            ),
            "apart": ProcessExecutor(slots["apart"], board, self, self._finished, source=source, max_jobs=1),
        }
        self.feeds = {queue: self._feed(queue, weight, holder) for queue, weight in settings.queues.items()}
        if settings.auto:
            begin_small(self._adapted)
        self._reserved = dict.fromkeys(self.executors, 0)
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        self._gathering = False  # whose turn it is has work in hand: what is to be settled can wait for more
        self._leasing = True
        self._ended = False
        self._patience_ends = inf
        self._problem: BaseException | None = None
        self._progress: dict[Key, tuple[Lease, float]] = {}
        self._progress_task: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._complaints: set[str] = set()
        self._undecodable: dict[int, Broken] = {}  # of the batch that is being admitted, by fence
        self._tells_all = settings.log_jobs or log.isEnabledFor(logging.DEBUG)
        self._ear = Ear(app, self.feeds.values(), self._stir)

    def _feed(self, queue: str, weight: int, holder: str) -> Feed:
        kinds = kinds_on(self._app, queue)
        one_by_one = sum(self.executors[kind].most for kind in kinds) == 1
        return Feed(self._app, queue, weight, kinds, holder, self._settings.lease, strictly=one_by_one)

    # -- the whole life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `drain` has come to its end."""
        turners = [asyncio.create_task(self._turn_on()) for _ in range(TURNS)]
        duties = (self._ear.listen(), self._declare_schedules(), self._show_life())
        others = [asyncio.create_task(duty) for duty in duties]
        if self._settings.auto:
            others.append(asyncio.create_task(adapt_forever(self._adapted, self._look_all)))
        for other in others:
            other.add_done_callback(self._check)
        try:
            await asyncio.gather(*turners)
            await asyncio.gather(*self._errands, return_exceptions=True)
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
        """A runner that only half works is ended, and the keeper hires another."""
        if not duty.cancelled() and (error := duty.exception()) is not None:
            self._problem = error
            self._stir()

    async def drain(self, grace: float) -> None:
        """Take no more jobs, let those that run finish for so long, give back what is left, and end."""
        self._leasing = False
        for feed in self.feeds.values():
            feed.let_all_go()
        self._give_back_waiting()
        self._stir()
        self.shorten(grace)  # to less, if that was said already
        while not self._idle and monotonic() < self._patience_ends:
            self._stirred.clear()
            await _wait(self._stirred, min(0.2, self._patience_ends - monotonic()))
            self._give_back_waiting()  # what could not be taken back from a child before
        for executor in self.executors.values():
            executor.set_limit(0)
            for key in list(executor.running):
                executor.stop(key, Stop.SHUTDOWN)
        await self._leave_the_stubborn()
        self._give_back_waiting()
        self._ended = True
        self._stir()

    def _give_back_waiting(self) -> None:
        for executor in self.executors.values():
            for plan in executor.give_up_standby():
                self._settle(Released(plan.lease))

    def shorten(self, grace: float) -> None:
        """Wait no longer for running jobs than so many seconds from now."""
        self._patience_ends = min(self._patience_ends, monotonic() + grace)
        self._stir()

    async def _leave_the_stubborn(self) -> None:
        """What does not stop is not given back from here, for it runs: the keeper does so when this process is gone."""
        tasks = [one.task for executor in self.executors.values() for one in executor.running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=STUBBORN)
        for executor in self.executors.values():
            for one in executor.running.values():
                log.warning("%s: it does not stop", one.plan.title)
                one.stop = Stop.LOST

    async def give_back_running(self) -> None:
        """The last deed of a runner whose keeper is gone: what still runs ends with this process, right after this."""
        running = [one.plan.lease for executor in self.executors.values() for one in executor.running.values()]
        gifts = {feed: [lease for lease in running if lease.queue == feed.queue] for feed in self.feeds.values()}
        await asyncio.gather(*(self._part(*gift) for gift in gifts.items()), return_exceptions=True)

    async def _part(self, feed: Feed, leases: list[Lease]) -> None:
        turn = feed.layout.turn([Released(lease) for lease in leases])
        await self._app.arun(lambda session: session.perform(turn, 1.0))

    @property
    def _adapted(self) -> list[Executor]:
        """What shares this interpreter, and is adapted to its use."""
        return [self.executors["loop"], self.executors["thread"]]

    @property
    def _idle(self) -> bool:
        return all(executor.idle for executor in self.executors.values())

    async def _show_life(self) -> None:
        """Let the keeper see that the loop turns. And see that no job waits here for one that takes long."""
        while True:
            self._board.tick()
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
            feed, want = self._choose()
            if feed is not None:
                await self._turn_promptly(feed, want)
            elif self._ended and not any(feed.outcomes or feed.in_flight for feed in self.feeds.values()):
                self._stir()
                return
            elif self._gathering:
                await asyncio.sleep(GATHER / 2)  # and not at each outcome that comes
            else:
                self._stirred.clear()
                await _wait(self._stirred, self._pause())

    async def _turn_promptly(self, feed: Feed, want: int) -> None:
        """One turn. If it takes long, and there are other queues, it goes on by itself: none of them waits for it."""
        reserved = {kind: ceil(want * share) for kind, share in feed.shares.items()}
        for kind, count in reserved.items():
            self._reserved[kind] += count
        turning = self._turn(feed, want, glance=feed.may_glance(want))
        feed.turned_at = monotonic()
        if want:  # said at once, before the other turner chooses
            feed.look_begins()
        try:
            if len(self.feeds) > 1:
                await self._wait_for_turn(feed, asyncio.create_task(turning), want)
            else:  # nobody else waits, and a task of its own would take longer than a short job
                try:
                    await turning
                finally:
                    if want:
                        feed.look_ends(None)
        finally:
            for kind, count in reserved.items():
                self._reserved[kind] -= count
        await asyncio.sleep(0)  # what was found begins before the next look

    async def _wait_for_turn(self, feed: Feed, turn: asyncio.Task[None], want: int) -> None:
        if want:
            turn.add_done_callback(feed.look_ends)
        try:
            await asyncio.wait([turn], timeout=PROMPT)
        except BaseException:
            turn.cancel()
            raise
        if turn.done():
            return turn.result()
        feed.slow = True
        self._slow.add(turn)

        def over(turn: asyncio.Task[None]) -> None:
            feed.slow = False
            self._slow.discard(turn)
            self._check(turn)
            self._stir()

        turn.add_done_callback(over)
        return None

    def _choose(self) -> tuple[Feed | None, int]:
        """The queue whose turn it is, and how many jobs to ask it for."""
        now = monotonic()
        self._gathering = False
        for feed in sorted(self.feeds.values(), key=lambda feed: (feed.served, not feed.is_empty)):
            if feed.rests(now) or feed.slow or feed.comparing:
                continue
            if self._leasing and now < feed.turned_at + GATHER and self._has_work(feed):
                self._gathering = True
                break  # its turn is soon: no other queue is to have it instead
            wanted = self._leasing and feed.wants_look(now) and not feed.hands_full
            room = self._room(feed) if wanted else 0
            if room > 1 and feed.guard.suspended:
                room = 1
            if room > 0 or feed.outcomes:
                return feed, room
        return None, 0

    def _has_work(self, feed: Feed) -> bool:
        """Whether what was leased ahead will do for a while, in each way that its jobs are run."""
        return all(self.executors[kind].has_work_for(GATHER) for kind in feed.kinds)

    def _room(self, feed: Feed) -> int:
        """How many jobs of this queue could be run now, if they are mixed as they were of late.

        Of a kind that is rare one may wait for its place, so that the others need not.
        """
        rooms = []
        for kind, share in feed.shares.items():
            free = self.executors[kind].room - self._reserved[kind]
            rooms.append(free if share > OFTEN else int((free + 1) / share))
        return max(0, min(feed.layout.largest_turn, *rooms))

    def _pause(self) -> float:
        if not self._leasing:
            return 0.2
        feeds = self.feeds.values()
        idle = [feed for feed in feeds if not feed.in_flight and not feed.comparing]
        times = [feed.next_look for feed in idle if self._room(feed) > 0 or feed.outcomes]
        times += [feed.tick_at for feed in feeds if feed.tick_at is not None and not feed.ticking]
        return max(0.0, min(times) - monotonic()) if times else 1.0

    async def _turn(self, feed: Feed, want: int, *, glance: bool) -> None:
        try:
            if glance and not await feed.glance():
                return
            sent, turn = await feed.turn(want)
        except WindlassError as error:
            # A server that is away, or one queue that is damaged: the other queues go on.
            log.warning("%s; trying again", error)
            feed.rest()
            return
        self._report(feed, sent, turn)
        if turn.lost and self._leasing:
            self._on_lost(feed.queue)
        for refused in turn.refused:
            self._settle_refused(feed, refused)
        if self._leasing:
            self._admit_all(feed, turn.leases)
        else:
            for lease in turn.leases:
                self._settle(Released(lease))
        self._guard_queue(feed, sent, turn)
        self._run_errands(feed)
        self._level()

    def _report(self, feed: Feed, sent: list[Outcome], turn: Turn) -> None:
        if turn.dropped:
            log.warning("%s: dropped the oldest dead jobs, there are more than max_dead: %d", feed.queue, turn.dropped)
        if all(turn.settled):
            return
        for outcome, ours in zip(sent, turn.settled, strict=True):
            if not ours:
                title = in_one_line(f"{outcome.lease.queue}/{outcome.lease.id}")
                log.warning("%s: the lease was lost, its outcome does not count", title)

    def _level(self) -> None:
        """A queue that has nothing is not owed for that time: it keeps up with the one that is next."""
        least = min((feed.served for feed in self.feeds.values() if not feed.is_empty), default=0.0)
        for feed in self.feeds.values():
            if feed.is_empty:
                feed.served = max(feed.served, least)

    # -- attempts ------------------------------------------------------------------------------------

    def _admit_all(self, feed: Feed, leases: Sequence[Lease]) -> None:
        kinds = [self._admit(lease) for lease in leases]
        if self._undecodable or not feed.guard.untouched:
            self._sort_undecodable(feed, leases, kinds)
        if len(feed.kinds) == 1 or not any(kinds):
            return
        came = Counter(kind for kind in kinds if kind)
        feed.note_kinds(came)
        for kind in came.keys() & feed.shares:  # more than was to be expected: others may have a place for them
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
        if lease.marks and lease.suspect and self.executors["apart"].most > 0:
            kind = "apart"
        executor = self.executors[kind]
        if executor.most > 0:
            executor.submit(planned)
            return kind
        self._settle(Unknown(lease, planned.task or ""))  # a worker inside another program has no processes
        return None

    def _sort_undecodable(self, feed: Feed, leases: Sequence[Lease], kinds: Sequence[str | None]) -> None:
        """Tell the queue's guard, in order, which jobs of a batch could be decoded."""
        for lease, kind in zip(leases, kinds, strict=True):
            if (broken := self._undecodable.pop(lease.fence, None)) is not None:
                self._settle_refused(feed, broken)
            elif kind is not None and feed.guard.decoded():
                self._tell_resumed(feed, "a job could be decoded")

    def _settle_refused(self, feed: Feed, outcome: Outcome) -> None:
        """Settle a job that cannot be run here. If many in a row cannot be decoded, the others are given back."""
        if isinstance(outcome, Broken):
            outcome = feed.guard.undecodable(outcome)
        if not isinstance(outcome, Released):
            self._log_outcome(outcome)
        self._settle(outcome)

    def _guard_queue(self, feed: Feed, sent: list[Outcome], turn: Turn) -> None:
        """Suspend the queue if this worker cannot decode its jobs, or if it keeps too many broken ones."""
        guard = feed.guard
        if guard.untouched and not turn.returned:
            return
        if not turn.returned and any(isinstance(outcome, Broken) for outcome in sent) and guard.stored():
            self._tell_resumed(feed, "there is room for broken jobs again")
        if guard.no_room() if turn.returned else guard.check_run():
            log.error(
                "%s: suspended, this worker takes no more jobs from the queue: %s. Check its code and keys. It tries "
                "one job now and then, and goes on when it can decode one. To see them: windlass dead list --broken %s",
                feed.queue,
                guard.reason,
                feed.queue,
            )
            for executor in self.executors.values():
                for plan in executor.give_up_standby(feed.queue):
                    self._settle(Released(plan.lease))
            self._on_suspended(self.suspended)

    def _tell_resumed(self, feed: Feed, why: str) -> None:
        log.warning("%s: resumed, %s", feed.queue, why)
        self._on_suspended(self.suspended)

    @property
    def suspended(self) -> dict[str, str]:
        """The queues from which no jobs are taken, with the reasons."""
        return {feed.queue: feed.guard.reason for feed in self.feeds.values() if feed.guard.suspended}

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
        self._stir()

    def _settle(self, outcome: Outcome) -> None:
        self.feeds[outcome.lease.queue].settle(outcome, self._stir)

    def _stir(self) -> None:
        self._stirred.set()

    def _look_all(self) -> None:
        for feed in self.feeds.values():
            feed.wake()
        self._stir()

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
            for queue in self.feeds:
                for key in executor.begun(queue):
                    executor.stop(key, Stop.LOST)
        for feed in self.feeds.values():
            feed.begin_again(holder)

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
        call = self.feeds[lease.queue].layout.progress(lease, value)
        return await self._app.arun(lambda session: session.perform(call))

    def prepare(self, lease: Lease, call: TaskCall) -> Child:
        """Check what a job wants to hand over."""
        return self._app.hand_over(lease.queue, call)

    # -- errands: what a turn found to do beside jobs ------------------------------------------------

    def _run_errands(self, feed: Feed) -> None:
        if feed.in_doubt:
            feed.comparing = True
            self._errand(self._compare_notes(feed))
        if feed.outbox and not feed.emptying:
            feed.emptying = True
            self._errand(self._empty_outbox(feed))

    def _run_ticks(self) -> None:
        now = monotonic()
        for feed in self.feeds.values():
            if feed.wants_tick(now):
                feed.ticking = True
                self._errand(self._tick(feed))

    async def _tick(self, feed: Feed) -> None:
        try:
            report = await feed.tick()
        except WindlassError as error:
            log.warning("the schedules of %s could not be ticked: %s", feed.queue, error)
            return
        for name in report.unreadable:
            self._complain_once(f"schedule {name} of {feed.queue} is due, and cannot be read by this version")
        self._stir()

    async def _declare_schedules(self) -> None:
        """Put declared schedules into the server: at first, and again, for a purge takes them away."""
        again = False
        while True:
            for feed in self.feeds.values():
                try:
                    for name in await feed.declare(again=again):
                        self._complain_once(f"schedule {name} of {feed.queue} is there already, and cannot be read")
                except WindlassError as error:
                    log.warning("the schedules of %s could not be declared: %s", feed.queue, error)
            again = True
            self._stir()
            await asyncio.sleep(DECLARE_EVERY)

    def _complain_once(self, about: str) -> None:
        if about not in self._complaints:
            self._complaints.add(about)
            log.warning("%s", about)

    def _errand(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _compare_notes(self, feed: Feed) -> None:
        """The server was restarted, or is another: what it says that we hold is compared with what we have.

        Until then there is no new turn: what one leases would be on one side only.
        """
        rewinds = feed.rewinds
        try:
            while feed.in_flight:
                self._stirred.clear()
                await _wait(self._stirred, 0.05)
            ghosts, lost = await feed.compare_notes()
        except WindlassError as error:
            log.warning("%s; comparing again with the next turn", error)
            return
        finally:
            feed.comparing = False
            self._stir()
        if ghosts or lost or feed.layout.rewinds != rewinds:
            log.error(
                "%s: the server has forgotten something (it was purged or flushed, an old copy was restored, or a "
                "replica took over that was behind): jobs may be gone, or run again. Given back, for they are not in "
                "our hands: %d; stopped, for they are not ours any more: %d",
                feed.queue,
                ghosts,
                len(lost),
            )
        for fence in lost:
            self.drop(feed.queue, fence)

    async def _empty_outbox(self, feed: Feed) -> None:
        try:
            await self._app.arun(lambda session: empty_outbox(session, feed.layout, self._app.layout))
        except WindlassError as error:
            log.warning("what %s handed over is still to be sent: %s", feed.queue, error)
            await asyncio.sleep(OUTBOX_PAUSE)
        finally:
            feed.emptying = False


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
        case Uncaught():
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
