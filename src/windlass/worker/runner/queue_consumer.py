"""The runner's side of one queue. It composes the outcomes to settle, the time of the next poll, the leases held, and
the time of the next tick, and the tasks whose parked jobs to claim; each keeps its own state.

A turn settles outcomes and leases jobs in one round trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from windlass.app import Windlass
from windlass.storage.port import Call, Layout, LeaseRequest, Turn
from windlass.transport import Flow, Session
from windlass.values.decode_guard import DecodeGuard
from windlass.values.ids import random_id
from windlass.values.outcome import Outcome
from windlass.worker.runner.held_leases import HeldLeases
from windlass.worker.runner.parked_tasks import ParkedTasks
from windlass.worker.runner.pending_outcomes import PendingOutcomes
from windlass.worker.runner.poll_timer import PollTimer
from windlass.worker.runner.schedule_ticks import TickReport
from windlass.worker.runner.schedule_timer import ScheduleTimer
from windlass.worker.settings import lease_on

MIX_DECAY = 0.3  # weight of the newest batch when a kind of job becomes rarer
MIN_SHARE = 0.01  # a kind that is rare today may come back, so it never counts as absent


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
        notify: Callable[[], None],
        *,
        strictly: bool = False,
        known: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """With `strictly`, jobs start exactly in queue order, so only one poll runs at a time.

        `notify` is called when there is something for the next turn. `known` gives the tasks that the runner can run.
        """
        self.queue = queue
        self.layout: Layout = app.layout(queue)
        self.waiter = random_id()
        self._app = app
        self._lease = lease_on(self.layout, lease)
        self.guard = DecodeGuard()
        self.outcomes = PendingOutcomes(self.layout, notify)
        self.poll = PollTimer(self.guard, self._lease, strictly=strictly)
        self.leases = HeldLeases(self.layout, holder)
        self.schedules = ScheduleTimer(app, self.layout)
        self.parked = ParkedTasks(known)
        self.in_flight = 0  # turns and probes that wait for the server
        self.weight = weight
        self.kinds = kinds
        self.shares = dict.fromkeys(kinds, 1.0)  # recent share of each kind among the queue's jobs: an upper estimate
        self.served = 0.0
        self.turn_began_at = 0.0  # when the last turn began
        self.slow = False  # a turn has been running for SLOW_TURN_AFTER_S
        self.outbox = 0
        self.forwarding = False

    def note_kinds(self, came: Counter[str]) -> None:
        """Update the mix of kinds: one batch raises a share at once, many batches lower it."""
        total = came.total()
        for kind, share in self.shares.items():
            seen = came[kind] / total
            self.shares[kind] = seen if seen > share else max(MIN_SHARE, share + MIX_DECAY * (seen - share))

    def wants_poll(self, now: float) -> bool:
        """Return whether to poll now."""
        return self.poll.is_due(now, in_flight=self.in_flight > 0) and not self.outcomes.too_many_delayed

    def may_probe(self, want: int) -> bool:
        """Return whether a probe may replace a turn."""
        return want > 0 and not self.outcomes and not self.parked and self.poll.probe_is_enough

    async def probe(self) -> bool:
        """Read cheaply whether the queue may have jobs. Returns True if a turn should follow."""
        call = self.layout.probe()
        if call is None:
            return True
        self.in_flight += 1
        try:
            work_in_s = await self._app._flows.arun(lambda session: session.perform(call))
        finally:
            self.in_flight -= 1
        if work_in_s == 0:
            return True
        self.poll.learn_from_probe(work_in_s)
        return False

    async def turn(self, want: int) -> tuple[list[Outcome], Turn]:
        """Settle outcomes and lease up to `want` jobs, in one round trip. Returns the sent outcomes and the reply."""
        sent = self.outcomes.take()
        if want and self.guard.suspended:
            self.guard.begin_trial()
        missed = self.parked.take_missed()
        claims = self.parked.take() if self.parked and want and not self.guard.suspended else ()
        request = LeaseRequest(
            want=want,
            seconds=self._lease,
            holder=self.leases.holder,
            # While the queue is suspended here, wake-ups must go to workers that take its jobs.
            waiter=self.waiter if want and not self.guard.suspended else None,
            only_if_registered=True,
            claims=claims,
        )
        call = self.layout.turn(sent, request)
        self.in_flight += 1
        try:
            turn, server = await self._app._flows.arun(lambda session: _perform(session, call))
        except BaseException:
            self.outcomes.send_again(sent)
            self.parked.put_back(claims)
            if missed:
                self.parked.subscribed()
            raise
        finally:
            self.in_flight -= 1
        if claims and turn.parked and not turn.claimed_all:
            self.parked.put_back(claims)
        if missed and turn.parked:
            self.parked.claim_all()
        self.leases.learn(sent, turn, server)
        self.poll.learn_from_turn(turn, want)
        self.schedules.learn(turn.tick_in)
        self.served += len(turn.leases) / self.weight
        self.outbox = turn.outbox
        return sent, turn

    async def tick(self) -> TickReport:
        """Enqueue the jobs of due schedules."""
        report = await self.schedules.tick()
        if report.enqueued:
            self.poll.wake()
        return report


def _perform(session: Session, call: Call[Turn]) -> Flow[tuple[Turn, str]]:
    turn = yield from session.perform(call)
    return turn, session.server_of(call.keys)
