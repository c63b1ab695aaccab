"""The runner's side of one queue: outcomes to settle, leases to run, and the time of the next poll.

A turn settles outcomes and leases jobs in one round trip. A probe is a cheap read of an empty queue. A poll is a
probe, or a turn that asks for jobs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import uniform
from time import monotonic, time

from windlass.app import Windlass
from windlass.storage.formats import MAX_POLL_MS, MAX_PROBING_MS
from windlass.storage.port import Call, Capability, Layout, Turn
from windlass.transport import Flow, Session
from windlass.values.decode_guard import DecodeGuard
from windlass.values.ids import random_id
from windlass.values.outcome import Broken, Completed, Crashed, Outcome, Released, Retried, Unknown
from windlass.worker.reclaim import all_held, lease_of
from windlass.worker.runner.ticker import TickReport, declare, tick
from windlass.worker.settings import lease_on

MIN_POLL_S = 1.0  # with few waiting workers, a lost wake-up delays a job by at most this
SOLO_WORKERS = 4  # with more waiting workers, each polls less often, so that all together poll about as often as four
MAX_POLL_S = MAX_POLL_MS / 1000
MIN_SHARED_POLL_S = 0.2  # lower bound of the random pause when many workers poll: keeps a lucky worker from spinning
MAX_PROBING_S = MAX_PROBING_MS / 1000
MAX_HAND_OVERS_PER_TURN = 1000  # keeps the script of one turn at a few milliseconds
MAX_TURN_BYTES = (
    8 * 1024 * 1024
)  # hand-overs and results in one turn: larger requests delay other clients of the server
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.2, 3.0  # pause after a failed turn: short for a blip, bounded so work resumes soon
IDLE_TICK_S = 1.0  # between ticks that find nothing due here: a schedule may be due for other workers only
MAX_DELAYED = 1000  # leased jobs that wait here for their retry: bounds memory, and what a dead worker leaves behind
CRASHED_DELAY_S = 2.0  # a layout without crash counts would otherwise crash the same job in a tight loop
FOREIGN_DELAY_S = 30.0  # a job that this program cannot run waits, so that a worker that can run it may take it
MIX_DECAY = 0.3  # weight of the newest batch when a kind of job becomes rarer
MIN_SHARE = 0.01  # a kind that is rare today may come back, so it never counts as absent
MIN_TICK_S = 0.05  # between two ticks of one queue: a schedule that is always due must not take the whole loop


class QueueConsumer:
    """One queue of a worker. The runner serves first the queue that got the fewest jobs for its weight."""

    def __init__(
        self,
        app: Windlass,
        queue: str,
        weight: int,
        kinds: frozenset[str],
        holder: str,
        lease: float,
        *,
        strictly: bool = False,
    ) -> None:
        """With `strictly`, jobs start exactly in queue order, so only one poll runs at a time."""
        self.queue = queue
        self.layout: Layout = app.layout(queue)
        self.weight = weight
        self.kinds = kinds
        self.shares = dict.fromkeys(kinds, 1.0)  # recent share of each kind among the queue's jobs: an upper estimate
        self.outcomes: list[Outcome] = []
        self._delayed: dict[asyncio.TimerHandle, Outcome] = {}
        self._delays_here = Capability.RUN_TIME not in self.layout.can
        self._draining = False
        self.waiter = random_id()
        self.served = 0.0
        self._is_empty = False
        self.in_flight = 0
        self.turned_at = 0.0  # when the last turn began
        self.slow = False  # a turn has been running for SLOW_TURN_AFTER_S
        self.outbox = 0
        self.forwarding = False
        self.declared = {name: schedule for name, schedule in app.declared_schedules.items() if schedule.queue == queue}
        self.ticking = False
        self.tick_at: float | None = None
        self._quiet_until = 0.0  # no tick before this: what is due may be a schedule of other workers
        self._app = app
        self.holder = holder
        self._lease = lease_on(self.layout, lease)
        self._more = True  # the queue may have jobs: the last poll found some, or a wake-up came
        self._found_all_wanted = False  # the last turn got as many jobs as it asked for, so two polls at a time pay off
        self._strictly = strictly
        self._polls = 0  # running now
        self.idle = asyncio.Event()  # the queue looks empty and the runner has free slots
        self._poll_at = 0.0
        self._poll_every = MIN_POLL_S
        self._full_poll_at = 0.0
        self._backoff_s = 0.0
        self._backoff_until = 0.0
        self._held: set[int] = set()  # fences of leases that are not settled yet
        # (rewinds, server process): as of the last turn, and as of the last reconciliation.
        self._reconciled = self._server_state = (0, "")
        self.reconciling = False
        self.guard = DecodeGuard()

    def wants_poll(self, now: float) -> bool:
        """Return whether to poll now. While the queue looks empty, one poll at a time is enough."""
        if (self._strictly or self.guard.suspended) and (self._polls or now < self.guard.retry_at):
            return False
        return self._more or (not self.in_flight and not self._polls and now >= self._poll_at)

    def begin_poll(self) -> None:
        """Record that a poll starts. A second one runs at the same time only if the last got all it asked for."""
        self._more = self._found_all_wanted
        self._polls += 1

    def end_poll(self, _: object) -> None:
        """Record that a poll has ended."""
        self._polls -= 1

    def note_kinds(self, came: Counter[str]) -> None:
        """Update the mix of kinds: one batch raises a share at once, many batches lower it."""
        total = came.total()
        for kind, share in self.shares.items():
            seen = came[kind] / total
            self.shares[kind] = seen if seen > share else max(MIN_SHARE, share + MIX_DECAY * (seen - share))

    @property
    def is_empty(self) -> bool:
        """Whether the last poll found nothing and no wake-up came since."""
        return self._is_empty and not self._more

    @property
    def next_poll_at(self) -> float:
        """When to poll if no wake-up comes."""
        return max(self._poll_at, self._backoff_until, self.guard.retry_at)

    def back_off(self) -> None:
        """Pause the queue after an error, twice as long each time."""
        self._backoff_s = min(self._backoff_s * 2 or MIN_BACKOFF_S, MAX_BACKOFF_S)
        self._backoff_until = monotonic() + self._backoff_s
        self._more = True

    def is_backing_off(self, now: float) -> bool:
        """Return whether the queue is paused after an error."""
        return now < self._backoff_until

    def wants_tick(self, now: float) -> bool:
        """Return whether a schedule may be due."""
        return self.tick_at is not None and self.tick_at <= now and not self.ticking

    async def tick(self) -> TickReport:
        """Enqueue the jobs of due schedules, and learn when the next tick is."""
        self.ticking = True
        report = TickReport()
        try:
            report = await self._app.arun(tick(self.layout, self.declared))
        finally:
            self.ticking = False
            # If nothing was due here, the server's next tick may belong to a schedule that no worker declares any more.
            wait = IDLE_TICK_S if report.next_in is None else report.next_in / 1000
            self.tick_at = monotonic() + max(MIN_TICK_S if report.enqueued or report.next_in else IDLE_TICK_S, wait)
            self._quiet_until = self.tick_at if not report.enqueued else 0.0
        if report.enqueued:
            self.wake()
        return report

    async def declare(self, *, again: bool) -> tuple[str, ...]:
        """Store the schedules that code declares. Returns the names of those that could not be stored.

        `again` only restores missing schedules: while old and new code run side by side, the one that started last
        decides.
        """
        wanted = self.declared
        if again and wanted:
            stored = {record.name for record in await self._app.schedules.alist(self.queue)}
            wanted = {name: schedule for name, schedule in wanted.items() if name not in stored}
        if not wanted:
            return ()
        unreadable = await self._app.arun(declare(self.layout, wanted.values()))
        self.tick_at = monotonic()
        return unreadable

    def settle(self, outcome: Outcome, notify: Callable[[], None]) -> None:
        """Send an outcome with the next turn.

        If the layout has no run times, a retry waits here first, with its lease kept alive. A stopping worker returns
        such a job at once, and the peers of a dead worker take it back.
        """
        wait = 0.0
        if self._delays_here:
            wait = _delay_of(outcome, self.layout.can)
            outcome = Retried(outcome.lease, None, outcome.message) if isinstance(outcome, Retried) else outcome
        if wait <= 0 or self._draining:
            self.outcomes.append(outcome)
            notify()
            return

        def release() -> None:
            self.outcomes.append(self._delayed.pop(timer))
            notify()

        timer = asyncio.get_running_loop().call_later(wait, release)
        self._delayed[timer] = outcome

    def release_delayed(self) -> None:
        """Send all delayed outcomes, because the worker is stopping."""
        self._draining = True
        for timer in list(self._delayed):
            timer.cancel()
            self.outcomes.append(self._delayed.pop(timer))

    @property
    def has_max_delayed(self) -> bool:
        """Whether too many outcomes are delayed here to lease more jobs."""
        return len(self._delayed) >= MAX_DELAYED

    def wake(self) -> None:
        """Record that the queue may have jobs."""
        self._more = True
        self.idle.clear()

    def may_probe(self, want: int) -> bool:
        """Return whether a probe is enough: the queue was empty, no wake-up came, and a turn was not long ago."""
        idle = want > 0 and self._is_empty and not self._more and not self.outcomes
        return idle and monotonic() < self._full_poll_at

    async def probe(self) -> bool:
        """Read cheaply whether the queue may have jobs. Returns True if a turn should follow."""
        call = self.layout.probe()
        if call is None:
            return True
        self.in_flight += 1
        try:
            comes_in = await self._app.arun(lambda session: session.perform(call))
        finally:
            self.in_flight -= 1
        if comes_in == 0:
            return True
        if comes_in is not None:
            self._full_poll_at = min(self._full_poll_at, monotonic() + comes_in)
        self._poll_at = self._choose_poll_at()
        return False

    async def turn(self, want: int) -> tuple[list[Outcome], Turn]:
        """Settle outcomes and lease up to `want` jobs, in one round trip. Returns the sent outcomes and the reply."""
        count = _count_that_fits(self.outcomes, self.layout.largest_turn)
        sent, self.outcomes = self.outcomes[:count], self.outcomes[count:]
        if want and self.guard.suspended:
            self.guard.begin_trial()
        call = self.layout.turn(
            sent,
            want=want,
            seconds=self._lease,
            holder=self.holder,
            # While the queue is suspended here, wake-ups must go to workers that take its jobs.
            waiter=self.waiter if want and not self.guard.suspended else None,
            registered=True,
        )
        self.in_flight += 1
        try:
            turn, server = await self._app.arun(lambda session: _perform(session, call))
        except BaseException:
            # The next turn sends them again. Fences make a repeat harmless if this turn was applied.
            self.outcomes = sent + self.outcomes
            raise
        finally:
            self.in_flight -= 1
        self._held.difference_update([outcome.lease.fence for outcome in sent])
        self._held.update([lease.fence for lease in turn.leases])
        self._held.update([outcome.lease.fence for outcome in turn.refused])
        self._server_state = (self.layout.rewinds, server)
        if self._reconciled == (0, ""):
            self._reconciled = self._server_state
        self._learn(turn, want)
        return sent, turn

    def restart_as(self, holder: str) -> None:
        """Lease under another holder name. The leases of the old name are lost."""
        self.holder = holder
        self._held.clear()

    @property
    def needs_reconcile(self) -> bool:
        """Whether the server restarted or lost data since the last reconciliation."""
        return self._server_state != self._reconciled and not self.reconciling

    @property
    def rewinds(self) -> int:
        """The number of rewinds at the last reconciliation."""
        return self._reconciled[0]

    async def reconcile(self) -> tuple[int, set[int]]:
        """Compare our leases with the server's. Returns the number of jobs given back, and the fences that we lost.

        The server may list jobs under our name that we do not have, because an old copy of its data brought back a
        finished job. They would stay leased as long as this worker lives. No turn may run meanwhile: its leases are on
        the server before they are here.
        """
        self._reconciled = self._server_state
        try:
            held = await self._app.arun(lambda session: all_held(session, self.layout, self.holder))
            orphans = [lease_of(record) for record in held if record.fence not in self._held]
            most = self.layout.largest_turn
            for start in range(0, len(orphans), most):
                turn = self.layout.turn([Released(lease) for lease in orphans[start : start + most]])
                await self._app.arun(lambda session, turn=turn: session.perform(turn))  # type: ignore[misc]
        except BaseException:
            self._reconciled = (-1, "")  # try again with the next turn
            raise
        return len(orphans), self._held - {record.fence for record in held}

    def _learn(self, turn: Turn, want: int) -> None:
        now = monotonic()
        self._backoff_s = 0.0
        self.served += len(turn.leases) / self.weight
        self.outbox = turn.outbox
        self.tick_at = None if turn.tick_in is None else max(now + turn.tick_in, self._quiet_until)
        if want:
            self._found_all_wanted = len(turn.leases) >= want
        if turn.leases or turn.refused:
            self._more = True  # only a poll that finds nothing registers us for a wake-up
            self._is_empty = False
            self.idle.clear()
        elif want:
            self._is_empty = True
            self.idle.set()
            longest = MAX_PROBING_S * uniform(0.7, 1.0)  # spreads workers that started together
            self._full_poll_at = now + (longest if turn.idle_for is None else min(longest, turn.idle_for))
            # At most a lease: a job that a peer leases after this poll and then loses is found in time.
            self._poll_every = max(MIN_POLL_S, min(MAX_POLL_S, self._lease, MIN_POLL_S * turn.waiting / SOLO_WORKERS))
            self._poll_at = self._choose_poll_at()

    def _choose_poll_at(self) -> float:
        """Choose the next poll, at random if many workers wait: the earliest one finds a job that sent no wake-up."""
        many = self._poll_every > MIN_POLL_S
        wait = uniform(MIN_SHARED_POLL_S, self._poll_every) if many else MIN_POLL_S
        return min(monotonic() + wait, self._full_poll_at)


def _perform(session: Session, call: Call[Turn]) -> Flow[tuple[Turn, str]]:
    turn = yield from session.perform(call)
    return turn, session.server_of(call.keys)


def _delay_of(outcome: Outcome, can: frozenset[Capability]) -> float:
    """Return for how many seconds an outcome must wait here before it is sent."""
    match outcome:
        case Retried(when=(kind, ms)):
            return ms / 1000 - (time() if kind == "at" else 0)
        case Crashed() if Capability.LIMITS not in can:
            return CRASHED_DELAY_S
        case Unknown() | Broken():
            return 0.0 if Capability.BROKEN in can else FOREIGN_DELAY_S
    return 0.0


def _count_that_fits(outcomes: list[Outcome], most: int) -> int:
    """Return how many outcomes fit into one turn, by their number, their hand-overs and their bytes."""
    hand_overs = size = 0
    for count, outcome in enumerate(outcomes[:most]):
        if not isinstance(outcome, Completed) or not (outcome.hand_overs or outcome.result):
            continue
        hand_overs += len(outcome.hand_overs)
        size += sum(len(each.job.data) for each in outcome.hand_overs)
        size += len(outcome.result.data) if outcome.result else 0
        if count and (hand_overs > MAX_HAND_OVERS_PER_TURN or size > MAX_TURN_BYTES):
            return count
    return min(len(outcomes), most)
