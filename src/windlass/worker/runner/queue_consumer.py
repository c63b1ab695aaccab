"""What goes between the runner and one queue: outcomes to be settled, leases to be run, and when to look again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import uniform
from time import monotonic, time

from windlass.app import Windlass
from windlass.storage.port import Call, Capability, Layout, Turn
from windlass.transport import Flow, Session
from windlass.values.decode_guard import DecodeGuard
from windlass.values.ids import random_id
from windlass.values.outcome import Broken, Completed, Crashed, Outcome, Released, Retried, Unknown
from windlass.worker.reclaim import all_held, lease_of
from windlass.worker.runner.ticker import TickReport, declare, tick
from windlass.worker.settings import lease_on

POLL_FLOOR = 1.0  # a lost announcement costs at most this many seconds where few workers wait
FEW = 4  # workers; more of them share the looking, each looks less often
LONGEST_POLL = 15.0  # seconds, however many wait: some of them may have died. A little less than SOON in wake.lua
SHORTEST_POLL = 0.2
REAL_LOOK = 28.0  # seconds after which an idle worker does more than probe: its registration (60 s) must not end
MOST_CHILDREN = 1000  # that they hand over in one turn
MOST_BYTES = 8 * 1024 * 1024
FIRST_REST, LONGEST_REST = 0.2, 3.0  # seconds without a turn after one that failed
TICK_PAUSE = 1.0  # seconds, when nothing is due here
MOST_KEPT = 1000  # jobs that wait in our hands
KEEP_CRASHED = 2.0
KEEP_FOREIGN = 30.0  # seconds for which a job that nobody here understands is kept from coming back
FORGET = 0.3  # of what was known of the mix of jobs, with each batch
RAREST = 0.01  # a kind that did not come for long may still come: so much of the next batch is expected to be of it
TICK_FLOOR = 0.05  # seconds between two ticks of a queue's schedules


class QueueConsumer:
    """One queue of a worker. Of several, the one that was given least for its weight is served first."""

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
        """`strictly`: jobs are begun in the very order of the queue, so there is one look at a time."""
        self.queue = queue
        self.layout: Layout = app.layout(queue)
        self.weight = weight
        self.kinds = kinds
        self.shares = dict.fromkeys(kinds, 1.0)  # the part of its jobs that is of each kind, at worst, as of late
        self.outcomes: list[Outcome] = []
        self._kept: dict[asyncio.TimerHandle, Outcome] = {}
        self._keeps_waiting = Capability.RUN_TIME not in self.layout.can
        self._leaving = False
        self.waiter = random_id()
        self.served = 0.0
        self._is_empty = False
        self.in_flight = 0
        self.turned_at = 0.0  # when the last turn began
        self.slow = False  # a turn has been under way for long
        self.outbox = 0
        self.emptying = False
        self.declared = {name: schedule for name, schedule in app.declared_schedules.items() if schedule.queue == queue}
        self.ticking = False
        self.tick_at: float | None = None
        self._quiet_until = 0.0  # a tick that is due for others only must not be tried all the time
        self._app = app
        self.holder = holder
        self._lease = lease_on(self.layout, lease)
        self._more = True  # the last look found something: there may be more
        self._plenty = False  # it found all that it asked for: two looks at a time are not too many
        self._strictly = strictly
        self._looks = 0  # under way
        self.idle = asyncio.Event()  # nothing is known to wait, and there is room for more
        self._look_at = 0.0
        self._poll_every = POLL_FLOOR
        self._real_look_at = 0.0
        self._trouble = 0.0
        self._rest_until = 0.0
        self._in_hand: set[int] = set()  # fences of leases that are not settled yet
        self._compared = self._heard = (
            0,
            "",
        )  # rewinds, and the server's process: when we last compared, and as of now
        self.comparing = False
        self.guard = DecodeGuard()

    def wants_look(self, now: float) -> bool:
        """Whether there may be jobs. While nothing is known of any, one look at a time is enough."""
        if (self._strictly or self.guard.suspended) and (self._looks or now < self.guard.retry_at):
            return False
        return self._more or (not self.in_flight and not self._looks and now >= self._look_at)

    def look_begins(self) -> None:
        """A look is about to be made: while it is under way, another is worth it only where there is plenty."""
        self._more = self._plenty
        self._looks += 1

    def look_ends(self, _: object) -> None:
        """What it found is in hand."""
        self._looks -= 1

    def note_kinds(self, came: Counter[str]) -> None:
        """Learn how jobs are mixed: from one batch that there are more of a kind, from many that there are less."""
        total = came.total()
        for kind, share in self.shares.items():
            seen = came[kind] / total
            self.shares[kind] = seen if seen > share else max(RAREST, share + FORGET * (seen - share))

    @property
    def is_empty(self) -> bool:
        """Whether the last look was in vain, and nobody has said since that there is work."""
        return self._is_empty and not self._more

    @property
    def next_look(self) -> float:
        """When to look even if nobody called."""
        return max(self._look_at, self._rest_until, self.guard.retry_at)

    def rest(self) -> None:
        """Something is wrong: leave the queue alone for a while, longer each time."""
        self._trouble = min(self._trouble * 2 or FIRST_REST, LONGEST_REST)
        self._rest_until = monotonic() + self._trouble
        self._more = True

    def rests(self, now: float) -> bool:
        """Whether the queue is to be left alone."""
        return now < self._rest_until

    def wants_tick(self, now: float) -> bool:
        """Whether a schedule may be due."""
        return self.tick_at is not None and self.tick_at <= now and not self.ticking

    async def tick(self) -> TickReport:
        """Enqueue what schedules ask for, and find out when to ask again."""
        self.ticking = True
        report = TickReport()
        try:
            report = await self._app.arun(tick(self.layout, self.declared))
        finally:
            self.ticking = False
            # Where nothing of ours is due, the first tick that the server knows of may be nobody's any more.
            wait = TICK_PAUSE if report.next_in is None else report.next_in / 1000
            self.tick_at = monotonic() + max(TICK_FLOOR if report.enqueued or report.next_in else TICK_PAUSE, wait)
            self._quiet_until = self.tick_at if not report.enqueued else 0.0
        if report.enqueued:
            self.wake()
        return report

    async def declare(self, *, again: bool) -> tuple[str, ...]:
        """Put the schedules that are declared in code into the server; the names of those that could not be.

        `again` brings back what is gone and changes nothing: while old and new code run side by side, the one that
        started last has the say.
        """
        wanted = self.declared
        if again and wanted:
            there = {record.name for record in await self._app.schedules.alist(self.queue)}
            wanted = {name: schedule for name, schedule in wanted.items() if name not in there}
        if not wanted:
            return ()
        unreadable = await self._app.arun(declare(self.layout, wanted.values()))
        self.tick_at = monotonic()
        return unreadable

    def settle(self, outcome: Outcome, notify: Callable[[], None]) -> None:
        """Send an outcome with the next turn. Where the layout has no run times, what is to wait does so in our hands.

        Its lease is kept alive meanwhile; if we stop it goes back at once, and if we die its peers take it back.
        """
        wait = 0.0
        if self._keeps_waiting:
            wait = _wait_of(outcome, self.layout.can)
            outcome = Retried(outcome.lease, None, outcome.message) if isinstance(outcome, Retried) else outcome
        if wait <= 0 or self._leaving:
            self.outcomes.append(outcome)
            notify()
            return

        def let_go() -> None:
            self.outcomes.append(self._kept.pop(timer))
            notify()

        timer = asyncio.get_running_loop().call_later(wait, let_go)
        self._kept[timer] = outcome

    def let_all_go(self) -> None:
        """We are about to stop: nothing waits in our hands any more."""
        self._leaving = True
        for timer in list(self._kept):
            timer.cancel()
            self.outcomes.append(self._kept.pop(timer))

    @property
    def hands_full(self) -> bool:
        """Whether so many jobs wait in our hands that no more are wanted."""
        return len(self._kept) >= MOST_KEPT

    def wake(self) -> None:
        """Somebody said that there is work."""
        self._more = True
        self.idle.clear()

    def may_probe(self, want: int) -> bool:
        """Whether a cheap look will do: there was nothing, nobody called, and a real look was made not long ago."""
        idle = want > 0 and self._is_empty and not self._more and not self.outcomes
        return idle and monotonic() < self._real_look_at

    async def probe(self) -> bool:
        """Whether there may be something after all."""
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
            self._real_look_at = min(self._real_look_at, monotonic() + comes_in)
        self._look_at = self._next_poll()
        return False

    async def turn(self, want: int) -> tuple[list[Outcome], Turn]:
        """Settle what has gathered and lease up to `want` jobs, in one round trip. Also which outcomes were sent."""
        count = _as_many_as_fit(self.outcomes, self.layout.largest_turn)
        sent, self.outcomes = self.outcomes[:count], self.outcomes[count:]
        if want and self.guard.suspended:
            self.guard.begin_trial()
        call = self.layout.turn(
            sent,
            want=want,
            seconds=self._lease,
            holder=self.holder,
            # While the queue is suspended here, a wake-up must go to a worker that takes jobs.
            waiter=self.waiter if want and not self.guard.suspended else None,
            registered=True,
        )
        self.in_flight += 1
        try:
            turn, server = await self._app.arun(lambda session: _perform(session, call))
        except BaseException:
            # Sent again with the next turn: fences make a repeat harmless, whatever became of this one.
            self.outcomes = sent + self.outcomes
            raise
        finally:
            self.in_flight -= 1
        self._in_hand.difference_update([outcome.lease.fence for outcome in sent])
        self._in_hand.update([lease.fence for lease in turn.leases])
        self._in_hand.update([outcome.lease.fence for outcome in turn.refused])
        self._heard = (self.layout.rewinds, server)
        if self._compared == (0, ""):
            self._compared = self._heard
        self._note(turn, want)
        return sent, turn

    def begin_again(self, holder: str) -> None:
        """Lease under another name: nothing is in our hands any more."""
        self.holder = holder
        self._in_hand.clear()

    @property
    def in_doubt(self) -> bool:
        """Whether the server may have forgotten something, and what it knows was not yet compared with what we have."""
        return self._heard != self._compared and not self.comparing

    @property
    def rewinds(self) -> int:
        """How many rewinds were known when notes were last compared."""
        return self._compared[0]

    async def compare_notes(self) -> tuple[int, set[int]]:
        """Give back what the server says we hold and we do not: how many; and the fences that we only think we hold.

        A job that was done and came back with an old copy of the data would else stay ours for as long as we live. No
        turn may be under way: what it leases is not in our hands yet.
        """
        self._compared = self._heard
        try:
            held = await self._app.arun(lambda session: all_held(session, self.layout, self.holder))
            ghosts = [lease_of(record) for record in held if record.fence not in self._in_hand]
            most = self.layout.largest_turn
            for start in range(0, len(ghosts), most):
                turn = self.layout.turn([Released(lease) for lease in ghosts[start : start + most]])
                await self._app.arun(lambda session, turn=turn: session.perform(turn))  # type: ignore[misc]
        except BaseException:
            self._compared = (-1, "")  # once more with the next turn
            raise
        return len(ghosts), self._in_hand - {record.fence for record in held}

    def _note(self, turn: Turn, want: int) -> None:
        now = monotonic()
        self._trouble = 0.0
        self.served += len(turn.leases) / self.weight
        self.outbox = turn.outbox
        self.tick_at = None if turn.tick_in is None else max(now + turn.tick_in, self._quiet_until)
        if want:
            self._plenty = len(turn.leases) >= want
        if turn.leases or turn.refused:
            self._more = True  # only a look in vain registers us to be called
            self._is_empty = False
            self.idle.clear()
        elif want:
            self._is_empty = True
            self.idle.set()
            longest = REAL_LOOK * uniform(0.7, 1.0)  # else all that looked at the same time would do so again
            self._real_look_at = now + (longest if turn.idle_for is None else min(longest, turn.idle_for))
            # What a peer leases after this look, and loses, is found in time: no poll is longer than a lease.
            self._poll_every = max(POLL_FLOOR, min(LONGEST_POLL, self._lease, POLL_FLOOR * turn.waiting / FEW))
            self._look_at = self._next_poll()

    def _next_poll(self) -> float:
        """Where many wait each chooses by chance: the first of them that looks finds what nobody told."""
        many = self._poll_every > POLL_FLOOR
        wait = uniform(SHORTEST_POLL, self._poll_every) if many else POLL_FLOOR
        return min(monotonic() + wait, self._real_look_at)


def _perform(session: Session, call: Call[Turn]) -> Flow[tuple[Turn, str]]:
    turn = yield from session.perform(call)
    return turn, session.server_of(call.keys)


def _wait_of(outcome: Outcome, can: frozenset[Capability]) -> float:
    """For how many seconds an outcome must wait in our hands."""
    match outcome:
        case Retried(when=(kind, ms)):
            return ms / 1000 - (time() if kind == "at" else 0)
        case Crashed() if Capability.LIMITS not in can:
            return KEEP_CRASHED  # nobody counts its crashes: it must not crash all the time
        case Unknown() | Broken():
            return 0.0 if Capability.BROKEN in can else KEEP_FOREIGN
    return 0.0


def _as_many_as_fit(outcomes: list[Outcome], most: int) -> int:
    """How many can be settled in one turn: bounded in number, and in what they hand over and leave behind."""
    children = size = 0
    for count, outcome in enumerate(outcomes[:most]):
        if not isinstance(outcome, Completed) or not (outcome.children or outcome.result):
            continue
        children += len(outcome.children)
        size += sum(len(child.job.data) for child in outcome.children)
        size += len(outcome.result.data) if outcome.result else 0
        if count and (children > MOST_CHILDREN or size > MOST_BYTES):
            return count
    return min(len(outcomes), most)
