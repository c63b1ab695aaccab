"""The programs of a simulation. Each is a generator, and each call takes the same path as a real one.

Producers enqueue, change and cancel. Raw workers lease for a time and settle, or forget to. Workers with a name send
heartbeats and take turns: settle finished jobs and lease the next, as `worker/runner/queue_consumer.py` does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from chaos.simulation.truth import Truth
from chaos.simulation.world import Interrupted, Life, Program, Task, World
from windlass.errors import NotApplied, OutcomeUnknown, WindlassError
from windlass.queue import Queue
from windlass.storage.native.layout import NativeLayout
from windlass.storage.port import Call, LeaseRequest, Turn
from windlass.transport.endpoint import Endpoint
from windlass.transport.io_steps import Sleep
from windlass.transport.session import Session, SessionOptions
from windlass.values.audit import Audit
from windlass.values.backoff import after_failure, after_snooze
from windlass.values.job import Lease, NewJob
from windlass.values.options import JobOptions, changed_job, new_job
from windlass.values.outcome import Broken, Completed, Crashed, Failed, Outcome, Released
from windlass.values.validation import MAX_PAYLOAD

T = TypeVar("T")
Flow = Generator[Any, Any, T]

NAMES = tuple(f"same-{i}" for i in range(8))
SLOTS = 4
MAX_BROKEN = 3  # few, so that queues often reach the limit


@dataclass
class Stage:
    """State shared by all actors."""

    world: World
    truth: Truth
    endpoint: Endpoint
    options: SessionOptions
    queues: tuple[str, ...]
    busy: float  # enqueues per second and producer
    lease: float  # of workers with a name, in seconds
    plain: bool = False  # only actions that the event log can express: no changes of jobs, no abandoned calls
    draining: bool = False
    payloads: int = 0
    layouts: list[NativeLayout] = field(default_factory=list)

    def payload(self) -> bytes:
        """A new, unique payload."""
        self.payloads += 1
        return b"payload %d;" % self.payloads


class Actor:
    """A running program with connections of its own."""

    def __init__(self, stage: Stage, program: Program) -> None:
        self.stage = stage
        self.program = program
        self.chance: Random = stage.world.chance
        self.session = Session(stage.endpoint, stage.options)
        self.layouts = {queue: NativeLayout(queue, max_broken=MAX_BROKEN) for queue in stage.queues}
        stage.layouts += self.layouts.values()

    def begin(self) -> None:
        """Start its tasks."""
        raise NotImplementedError

    def leave(self) -> Life:
        """Deregister, as a program does that exits normally."""
        parting = Session(self.stage.endpoint, replace(self.stage.options, retry_for=1.0))
        try:
            for layout in self.layouts.values():
                call = _unregister(layout, self.session)
                if call is not None:
                    yield from parting.perform(call)
        except WindlassError as error:
            self.note(f"leaves, unregister unanswered: {type(error).__name__}")
        finally:
            parting.end()

    def spawn(self, life: Life) -> Task:
        return self.stage.world.spawn(self.program, life)

    def note(self, what: str) -> None:
        self.stage.world.note(self.program.name, what)

    def perform(self, call: Call[T], retry_for: float | None = None) -> Flow[T]:
        return (yield from self.session.perform(call, retry_for))

    def any_queue(self) -> str:
        return self.chance.choice(self.stage.queues)

    def settle(self, queue: str, outcomes: Sequence[Outcome]) -> Flow[None]:
        """Settle until there is an answer, a few times at most; repeating is harmless."""
        for _ in range(3):
            try:
                turn = yield from self.perform(self.layouts[queue].turn(outcomes))
            except NotApplied:
                self.note(f"settle of {_names(outcomes)} not applied")
            except OutcomeUnknown:
                self.stage.truth.doubted()
                self.stage.truth.settling_in_doubt(queue, outcomes)
                self.note(f"settle of {_names(outcomes)} in doubt")
            else:
                self.stage.truth.settled(queue, outcomes, turn.settled)
                self.note(f"settled {_names(outcomes)}: {turn.settled}")
                return

    def some_outcome(self, lease: Lease) -> Outcome:
        """A random outcome; completion once the run is draining."""
        roll = 0.0 if self.stage.draining else self.chance.random()
        if roll < 0.6:
            return Completed(lease)
        if roll < 0.7:
            return Released(lease)
        if roll < 0.85:
            when = self.chance.choice([None, ("in", 0), ("in", 1500), ("in", 20_000)])
            return after_failure(lease, when, "again")
        if roll < 0.87:
            return after_snooze(lease, self.chance.choice([("in", 0), ("in", 1500), ("in", 20_000)]), "later")
        if roll < 0.89:
            return Failed(lease, "no")
        if roll < 0.9:
            return Broken(lease, "not JSON")
        if roll >= 0.95:
            return Crashed(lease, "crashed", is_cause=False)
        delay_ms = self.chance.choice([0, 1000, 8000])
        return Crashed(lease, "crashed", True, self.chance.choice([-1, 3]), delay_ms=delay_ms)


class Producer(Actor):
    """Enqueues, changes and cancels."""

    def begin(self) -> None:
        self.spawn(self.live())

    def live(self) -> Life:
        while not self.stage.draining:
            yield Sleep(self.chance.expovariate(self.stage.busy))
            queue = self.any_queue()
            roll = self.chance.random()
            if roll < 0.75 or self.stage.plain:
                yield from self.enqueue(queue, self.some_jobs())
            elif roll < 0.85:
                yield from self.order(self.layouts[queue].cancel([self.some_id()], running=self.chance.random() < 0.5))
            elif roll < 0.95:
                changes: Any = self.chance.choice(
                    [
                        {"priority": 0},
                        {"delay": 3},
                        {"max_stalls": 1},
                        {"delay": 9, "when": "earlier"},
                        {"expires": 5},
                        {"expires": None},
                    ]
                )
                yield from self.enqueue(queue, [changed_job(self.some_id(), changes, MAX_PAYLOAD)])
            else:
                yield from self.order(self.layouts[queue].revive([self.some_id()]))

    def some_id(self) -> str:
        return self.chance.choice(NAMES)

    def some_jobs(self) -> list[NewJob]:
        count = 1 if self.chance.random() < 0.7 else self.chance.randint(2, 8)
        jobs = {job.id: job for job in (self.some_job() for _ in range(count))}  # no id twice in one call
        return list(jobs.values())

    def some_job(self) -> NewJob:
        chance = self.chance
        options: JobOptions = {}
        if chance.random() < 0.3 and not self.stage.plain:
            options["id"] = self.some_id()
            if chance.random() < 0.3:
                options["if_exists"] = "keep"
            if chance.random() < 0.3:
                options["update_run_at"] = chance.choice([True, False, "later", "earlier"])
            if chance.random() < 0.2:
                options["update_data"] = False
        if chance.random() < 0.4:
            options["priority"] = chance.randint(0, 9)
        if chance.random() < 0.3:
            options["delay"] = chance.choice([0, 0.4, 2, 7.5, 30])
        if chance.random() < 0.15 and not self.stage.plain:
            options["expires"] = chance.choice([0.4, 2, 7.5, 30])
        if chance.random() < 0.2:
            options["max_stalls"] = chance.choice([0, 1, 20])
        if chance.random() < 0.1:
            options["max_snoozes"] = chance.choice([0, 1])
        return new_job(self.stage.payload(), options, MAX_PAYLOAD)

    def enqueue(self, queue: str, jobs: list[NewJob]) -> Flow[None]:
        ids = " ".join(job.id for job in jobs)
        try:
            statuses, _ = yield from self.perform(self.layouts[queue].enqueue(jobs))
        except NotApplied:
            self.stage.truth.refused(queue, jobs)
            self.note(f"enqueue {ids} not applied")
        except OutcomeUnknown:
            self.stage.truth.doubted()
            self.note(f"enqueue {ids} in doubt")
        else:
            self.stage.truth.enqueued(queue, jobs, statuses)
            self.note(f"enqueued {ids}: {' '.join(str(status) for status in statuses)}")

    def order(self, call: Call[list[bool]]) -> Flow[None]:
        try:
            told = yield from self.perform(call)
        except WindlassError as error:
            self.note(f"{call.about}: {type(error).__name__}")
        else:
            self.note(f"{call.about}: {told}")


class RawWorker(Actor):
    """Leases for a time, works, and settles; or is late, forgets to settle, or settles twice."""

    def begin(self) -> None:
        for _ in range(self.chance.choice([1, 2])):
            self.spawn(self.live())

    def live(self) -> Life:
        while True:
            queue = self.any_queue()
            length = self.chance.choice([2.0, 5.0, 15.0])
            wait = self.chance.choice([0, 0, 3, 10])
            try:
                with self.stage.world.interrupted(self.some_impatience()):
                    leases = yield from self._lease(queue, self.chance.choice([1, 1, 2, 6]), length, wait)
            except (WindlassError, Interrupted) as error:
                self.note(f"lease: {type(error).__name__}")
                yield Sleep(self.chance.uniform(0.1, 1))
                continue
            for lease in leases:
                yield from self.work(queue, lease, length)
            if not leases:
                yield Sleep(self.chance.uniform(0.05, 1))

    def some_impatience(self) -> float | None:
        """Seconds after which it abandons a call; usually None."""
        return self.chance.uniform(0, 2) if self.chance.random() < 0.1 and not self.stage.plain else None

    def _lease(self, queue: str, count: int, length: float, wait: float) -> Flow[list[Lease]]:
        face = Queue(self.layouts[queue], _NO_RUNNERS)
        leases = yield from face._lease(count, length, wait, None)(self.session)
        self.stage.truth.leased(queue, leases, None)
        self.note(f"leased {_names_of_leases(leases)} for {length:g} s")
        return leases

    def work(self, queue: str, lease: Lease, length: float) -> Flow[None]:
        share = 0.1 if self.stage.draining else self.chance.choice([0.01, 0.01, 0.1, 0.5, 1.3])
        yield Sleep(length * share)
        roll = 1.0 if self.stage.draining else self.chance.random()
        if roll < 0.05:
            self.note(f"forgets {lease.id}^{lease.fence}")
            return
        if roll < 0.2:
            yield from self.tell(lease, self.layouts[queue].extend([lease], length))
            yield Sleep(length * share)
        elif roll < 0.25:
            yield from self.tell(lease, self.layouts[queue].progress(lease, 0.5))
        yield from self.settle(queue, [self.some_outcome(lease)])
        if roll < 0.3:
            yield from self.settle(queue, [Completed(lease)])

    def tell(self, lease: Lease, call: Call[Any]) -> Flow[None]:
        try:
            told = yield from self.perform(call)
        except WindlassError as error:
            told = type(error).__name__
        self.note(f"{call.about} of {lease.id}^{lease.fence}: {told}")


class NamedWorker(Actor):
    """Sends heartbeats and takes turns; its leases are safe while it sends heartbeats."""

    def __init__(self, stage: Stage, program: Program) -> None:
        super().__init__(stage, program)
        self.queue = self.any_queue()
        self.layout = self.layouts[self.queue]
        self.generations = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Start over under a new name: a holder that was declared lost does not come back."""
        self.generations += 1
        self.holder = f"{self.program.name}-{self.generations}"
        self.known = False
        self.in_hand: dict[int, Lease] = {}
        self.outcomes: list[Outcome] = []

    def begin(self) -> None:
        self.spawn(self.beats())
        for number in range(self.chance.choice([1, 2])):
            self.spawn(self.feed(f"{self.program.name}-ear{number}"))

    def beats(self) -> Life:
        lease = self.stage.lease
        while True:
            holder = self.holder
            try:
                beat = yield from self.perform(
                    self.layout.beat(holder, lease, register=not self.known), retry_for=lease / 3
                )
            except WindlassError as error:
                self.note(f"beat: {type(error).__name__}")
                yield Sleep(lease / 20)
                continue
            if holder != self.holder:
                continue
            if self.known and not beat.known:
                self.note(f"was declared lost, and drops {sorted(self.in_hand)}")
                self.begin_anew()
                continue
            self.known = True
            yield Sleep(lease / 3)

    def feed(self, waiter: str) -> Life:
        while True:
            if not self.known:
                yield Sleep(0.05)
                continue
            turn = yield from self.turn(waiter)
            if turn is None:
                yield Sleep(self.chance.uniform(0.1, 1))
            elif not turn.leases:
                yield Sleep(
                    min(1.0, 1.0 if turn.next_work_in is None else turn.next_work_in) * self.chance.uniform(0.5, 1)
                )

    def turn(self, waiter: str) -> Flow[Turn | None]:
        """Settle finished jobs and lease for free slots; None if the call failed and must be repeated."""
        holder, want = self.holder, max(0, SLOTS - len(self.in_hand))
        most = self.layout.largest_turn
        sent, self.outcomes = self.outcomes[:most], self.outcomes[most:]
        request = LeaseRequest(
            want=want,
            seconds=self.stage.lease,
            holder=holder,
            waiter=waiter if want else None,
            only_if_registered=True,
        )
        try:
            turn = yield from self.perform(self.layout.turn(sent, request))
        except WindlassError as error:
            if isinstance(error, OutcomeUnknown):
                self.stage.truth.doubted()
                self.stage.truth.settling_in_doubt(self.queue, sent)
            self.note(f"turn with {_names(sent)}: {type(error).__name__}")
            self.outcomes = sent + self.outcomes
            return None
        self.stage.truth.settled(self.queue, sent, turn.settled)
        self.stage.truth.leased(self.queue, turn.leases, holder)
        self.note(f"turn settled {_names(sent)} {turn.settled}, leased {_names_of_leases(turn.leases)}")
        if holder != self.holder:
            return turn  # all these leases are lost already
        for lease in turn.leases:
            self.in_hand[lease.fence] = lease
            self.spawn(self.work(lease))
        if turn.lost:
            self.begin_anew()
        return turn

    def work(self, lease: Lease) -> Life:
        yield Sleep(self.chance.expovariate(4) if self.chance.random() < 0.9 else self.stage.lease * 1.5)
        if self.in_hand.pop(lease.fence, None) is not None:
            self.outcomes.append(self.some_outcome(lease))


class Auditor(Actor):
    """Audits at the end that every job is in exactly the right index."""

    def begin(self) -> None:
        self.found: list[Audit] = []
        self.spawn(self.live())

    def live(self) -> Life:
        for layout in self.layouts.values():
            audit = yield from Queue(layout, _NO_RUNNERS)._audit(repair=False)(self.session)
            self.found.append(audit)
            self.note(f"audit of {layout.queue}: {audit.jobs} jobs, problems in {audit.damaged_parts}")

    @property
    def is_done(self) -> bool:
        return len(self.found) == len(self.layouts)


def _unregister(layout: NativeLayout, session: Session) -> Call[bool] | None:
    """The unregister call of an app that is closed."""
    first = layout.counts().keys[0]
    return layout.unregister(session.idle_callers(first))


def _names(outcomes: Sequence[Outcome]) -> str:
    return " ".join(f"{type(each).__name__}({each.lease.id}^{each.lease.fence})" for each in outcomes) or "-"


def _names_of_leases(leases: Sequence[Lease]) -> str:
    return " ".join(f"{lease.id}^{lease.fence}" for lease in leases) or "-"


class _NoRunners:
    """A stub runner: only a queue's flows are used."""

    def run(self, flow: Callable[[Session], Any]) -> Any:
        raise AssertionError("a simulation runs its flows itself")

    async def arun(self, flow: Callable[[Session], Any]) -> Any:
        raise AssertionError("a simulation runs its flows itself")


_NO_RUNNERS = _NoRunners()
ACTORS: dict[str, type[Actor]] = {"producer": Producer, "raw": RawWorker, "named": NamedWorker}
