"""Random runs of a queue on a foreign layout, compared with a plain model.

The model knows of each job whether it waits, is leased and under which lease, is dead or gone. The layout decides when
it reclaims an expired lease: the model knows the earliest time (`sure`) and when a clean must have done it (`ends`),
and learns the rest from the server's keys after every step. Any other difference is a bug.

A life is a list of steps, each with its own seed: it stays valid with any steps left out, so a failing life can be
shrunk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from time import monotonic, time
from typing import Any, Protocol, TypeVar

import redis
from redis.exceptions import RedisError

from tests.support.internals import Exchanger, holders_of, layout_of, perform_call, wrap_exchanges
from tests.support.layouts import pass_time
from windlass import Counts, JobRecord, Lease, Page, Queue, RawJob, Receipt, State, Status, Windlass
from windlass.storage.port import Capability, LeaseRequest, Turn
from windlass.transport.io_steps import Exchange
from windlass.values.outcome import Broken, Completed, Crashed, Failed, Outcome, Released, Retried, Snoozed, UnknownTask

T = TypeVar("T")
Step = tuple[str, int]
NAME = "lives"
MAX_DEAD = 4
DAY_MS = 86_400_000
CRASH_DELAY_MS = 2_000  # between two of the pauses below
CLOCK_BLUR_S = 0.05  # seconds by which the model's clock and the server's may differ
LEASE_LENGTHS_S = (5, 30, 100, 300)  # seconds of a lease
PAUSES_S = (1.2, 4, 11, 40, 130, 700)
HOLDERS = (None, None, "w1", "w2", "w3")
SETTLING: dict[str, Callable[[Lease], Outcome]] = {
    "complete": Completed,
    "release": Released,
    "retry": lambda lease: Retried(lease, ("in", 0)),
    "snooze": lambda lease: Snoozed(lease, ("in", 0)),
    "fail": Failed,
    "crash": lambda lease: Crashed(lease, "crash", True),
    "crash and wait": lambda lease: Crashed(lease, "crash", True, delay_ms=CRASH_DELAY_MS),
    "crash of several": lambda lease: Crashed(lease, "crash", False),
    "unknown": lambda lease: UnknownTask(lease, "task"),
    "broken": lambda lease: Broken(lease, "broken"),
}


@dataclass
class Seen:
    """The jobs on the server: ids, the next one first."""

    waiting: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)  # waiting jobs with a future run time
    dead: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


class Peer(Protocol):
    """A client of the published kind on the same queue, and its view through plain commands."""

    lasts: float  # seconds that it owns a job after its last sign of life

    def look(self) -> Seen:
        """The current jobs; fails if the keys contradict each other."""
        ...

    def add(self, id: str, data: bytes) -> tuple[str, bytes]:
        """Add a job; returns its id, and the payload that the worker receives."""
        ...

    def take(self) -> tuple[str, Any] | None:
        """Lease the next job: its id, and the peer's token for it."""
        ...

    def complete(self, token: Any) -> bool:
        """Complete a job; returns whether the peer owned it."""
        ...

    def clean(self) -> bool:
        """Reclaim abandoned jobs; returns whether it reclaims all running jobs, as some peers do."""
        ...

    def leave(self) -> None:
        """Remove all keys of the peer."""
        ...


@dataclass
class Grip:
    """The owner of a job: a Windlass lease, or a peer's token."""

    holder: str
    lease: Lease | None = None
    token: Any = None
    exposed: bool = False  # a peer reclaims more than abandoned jobs
    marked: float = 0  # until when the peers see it as owned


@dataclass
class Job:
    """The model of one job."""

    id: str
    data: bytes
    state: str = "waiting"  # held, dead, broken, gone
    grip: Grip | None = None
    limits: tuple[int, int] = (10, 3)
    failures: int = 0
    stalls: int = 0
    due: float = 0
    behind: tuple[bytes, tuple[int, int]] | None = None  # a job with the same id, blocked by this one
    cancelled: bool = False
    suspect: bool | None = False  # None: unknown, if an earlier job with its id was a suspect

    @property
    def alive(self) -> bool:
        return self.state in ("waiting", "held")


@dataclass
class Span:
    """How long a holder lives: at least until `sure`, at most until `ends`."""

    sure: float = 0
    ends: float = 0


class Life:
    """One queue, two apps and a peer on it, and the model."""

    def __init__(self, layout: str, url: str, client: redis.Redis, peer: Peer) -> None:
        self.layout = layout
        self.client: Any = client
        self.peer = peer
        self.url = url
        self.apps: list[Any] = [None, None]
        self.queues: list[Any] = [None, None]
        for at in range(2):
            self.open(at)
        self.can = layout_of(self.queues[0]).can
        self.ledger = f"windlass:{{{NAME}}}:{layout}"
        self.jobs: dict[str, Job] = {}
        self.graves: dict[str, list[str]] = {"dead": [], "broken": []}  # newest first
        self.spans: dict[str, Span] = {}
        self.leases: list[Lease] = []
        self.theirs: list[tuple[str, Any]] = []  # every job that the peer leased
        self.passed = 0.0
        self.made = 0
        self.fence = 0
        self.seen = Seen()
        self.log: list[str] = []
        self.random = random.Random()
        self.interlude: Callable[[], None] | None = None

    def open(self, at: int) -> None:
        """Start one of the two apps."""
        self.apps[at] = Windlass(self.url, max_dead=MAX_DEAD, retry_for=5)
        self.queues[at] = self.apps[at].queue(NAME, layout=self.layout)
        self._let_replies_be_lost(self.apps[at])

    # -- running ---------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step]) -> None:
        """Execute the steps in order."""
        for name, seed in steps:
            self.random = random.Random(seed)
            self.log.append(name)
            getattr(self, f"do_{name}")()
            self.check()

    def end(self) -> None:
        """After a purge and when all clients have unregistered, only keys with an expiry may remain."""
        if "restart" in self.log:  # only the next sweep removes holders of a program that has left
            self.pass_time(1000)
            self.queues[0].clean()
        self.queues[0].purge()
        for app in self.apps:
            app.close()
        self.peer.leave()
        left = {key: self.client.pttl(key) for key in self.client.keys("*")}
        left = {key: ttl for key, ttl in left.items() if ttl == -1 or ttl > DAY_MS}
        assert not left, f"keys left behind: {sorted(left)}"

    def close(self) -> None:
        """Whatever happened."""
        for app in self.apps:
            app.close()
        self.client.flushall()

    def say(self, text: object) -> None:
        """Add a detail to the current line of the log."""
        self.log[-1] += f" {text}"

    # -- time ------------------------------------------------------------------------------------

    def now(self) -> float:
        return monotonic() + self.passed

    def pass_time(self, seconds: float) -> None:
        notes = self._stale_notes()
        pass_time(self.client, self.layout, NAME, seconds)
        for name, text in notes.items():
            self.client.hset(f"{self.ledger}:runs", name, text)
        self.passed += seconds

    def _stale_notes(self) -> dict[str, bytes]:
        """Entries of hworker's ledger about jobs that another owner has."""
        # Needed until pass_time leaves them alone: it would mark those jobs as owned by Windlass.
        begun = self.client.hgetall(f"hworker-progress-{NAME}") if self.layout == "hworker" else {}
        notes = {f"@{sha1(text).hexdigest()}": time for text, time in begun.items()}
        found = {name: self.client.hget(f"{self.ledger}:runs", name) for name in notes}
        return {name: text for name, text in found.items() if text and text != notes[name]}

    def prolong(self, holder: str, began: float, seconds: float) -> None:
        """A sign of life in a call that began at `began` and has ended. It never shortens a lease."""
        span = self.spans.setdefault(holder, Span())
        span.sure = max(span.sure, began + seconds)
        span.ends = max(span.ends, self.now() + seconds)

    def beaten(self, holder: str, began: float, seconds: float) -> None:
        """A sign of life for all jobs of the holder."""
        self.prolong(holder, began, seconds)
        for job in self.alive():
            if job.grip and job.grip.holder == holder:
                job.grip.marked = max(job.grip.marked, began + seconds)

    def may_be_lost(self, grip: Grip) -> bool:
        # Needed until a lease's marks last as long as its holder: extend() can shorten a raw lease, and a longer lease
        # of the same holder does not prolong its earlier ones.
        return grip.exposed or self.now() > min(grip.marked, self.spans[grip.holder].sure) - CLOCK_BLUR_S

    # -- lost replies ----------------------------------------------------------------------------

    def _let_replies_be_lost(self, app: Windlass) -> None:
        """While `interlude` is set, the next script runs, then the interlude, then the same call again."""

        def wrap(plain: Exchanger) -> Exchanger:
            def exchange(step: Exchange) -> list[Any]:
                replies = plain(step)
                if self.interlude and b"EVALSHA" in step.packed[:20] and not isinstance(replies[0], RedisError):
                    interlude, self.interlude = self.interlude, None
                    interlude()
                    replies = plain(step)
                return replies

            return exchange

        wrap_exchanges(app, wrap)

    @contextmanager
    def maybe_lossy(self, *, leasing: bool = False) -> Iterator[bool]:
        """Sometimes lose the reply to the next call; time may pass and others may clean before the repeat."""
        lossy = self.random.random() < 0.15
        if lossy:
            self.interlude = self.random.choice([self._nothing, self._nothing, self._some_time, self._time_and_clean])
            if leasing and self.layout == "queasy":  # a lease lost before its holder knew of it counts as a stall there
                self.interlude = self._nothing
            self.say(f"[lost reply: {self.interlude.__name__}]")
        yield lossy
        self.interlude = None

    def _nothing(self) -> None: ...

    def _some_time(self) -> None:
        self.pass_time(self.random.choice(PAUSES_S))

    def _time_and_clean(self) -> None:
        self._some_time()
        if self.random.random() < 0.5:
            self.queues[1].clean()
        else:
            self.peer_cleans()

    # -- steps: putting jobs on the queue --------------------------------------------------------

    def queue(self) -> Queue:
        chosen: Queue = self.random.choice(self.queues)
        return chosen

    def new_data(self) -> bytes:
        self.made += 1
        return json.dumps({"n": self.made}, separators=(",", ":")).encode()

    def new_job(self) -> RawJob:
        options: dict[str, Any] = {}
        data = self.new_data()
        if Capability.IDS in self.can and self.random.random() < 0.7:
            options["id"] = f"job-{self.made}"
        if Capability.LIMITS in self.can and self.random.random() < 0.5:
            options |= {"max_failures": self.random.randint(0, 2), "max_stalls": self.random.randint(0, 2)}
        if Capability.RUN_TIME in self.can and self.random.random() < 0.2:
            options["delay"] = self.random.choice(PAUSES_S)
        if Capability.PRIORITY in self.can and self.random.random() < 0.5:
            options["priority"] = self.random.randint(0, 9)
        return RawJob(data, **options)

    def added(self, job: RawJob, receipt: Receipt, began: float) -> None:
        assert receipt.status is Status.ADDED, receipt
        self.begin_job(receipt.id, job.data, _limits(job), began + _delay(job))

    def begin_job(self, id: str, data: bytes, limits: tuple[int, int] = (10, 3), due: float = 0) -> None:
        before = self.jobs.get(id)
        assert before is None or not before.alive
        # Needed until a suspect's mark is removed with its job, also after a peer's completion, a cancel or a purge.
        suspect = None if before and before.suspect is not False else False
        self.jobs[id] = Job(id, data, limits=limits, due=due, suspect=suspect)

    def do_enqueue(self) -> None:
        if len(self.alive()) > 30:
            return
        began = self.now()
        jobs = [self.new_job() for _ in range(self.random.choice([1, 1, 3, 8]))]
        with self.maybe_lossy():
            receipts = self.queue().enqueue_many(jobs)
        self.say([receipt.id for receipt in receipts])
        for job, receipt in zip(jobs, receipts, strict=True):
            self.added(job, receipt, began)

    def do_enqueue_again(self) -> None:
        """An id that exists or has existed."""
        ids = [job.id for job in self.jobs.values() if job.id.startswith("job-")]
        if not ids:
            return None
        id, began = self.random.choice(ids[-20:]), self.now()
        job = self.jobs[id]
        new = RawJob(self.new_data(), id=id, **_without_id(self.new_job()))
        with self.maybe_lossy():
            receipt = self.queue().enqueue_many([new])[0]
        self.say(f"{id} {receipt.status}")
        if not job.alive:
            return self.added(new, receipt, began)
        if self.layout != "queasy":
            assert receipt.status is Status.KEPT
        elif job.state == "waiting":
            assert receipt.status is Status.UPDATED
            job.data, job.limits, job.due = new.data, _limits(new), began + _delay(new)
            job.failures = job.stalls = 0
        else:
            assert receipt.status is Status.BLOCKED
            job.behind = (new.data, _limits(new))
            job.due = began + _delay(new)
        return None

    def do_peer_adds(self) -> None:
        if len(self.alive()) > 30:
            return
        data = self.new_data()
        id, data = self.peer.add(f"peer-{self.made}", data)
        self.say(id)
        self.begin_job(id, data)

    # -- steps: leasing --------------------------------------------------------------------------

    def do_lease(self) -> None:
        queue, holder = self.queue(), self.random.choice(HOLDERS)
        n, seconds = self.random.choice([1, 1, 2, 5]), self.random.choice(LEASE_LENGTHS_S)
        self.say(f"{n} for {seconds} s, {holder}")
        began, before = self.now(), self.due()
        with self.maybe_lossy(leasing=True) as lossy:
            leases = queue.lease_many(n, seconds, holder=holder)
        self.leased(leases, holder, began, seconds, before)
        if not lossy:
            self.nothing_left_behind(n, leases)
        elif holder:
            self.may_know(holder, seconds)

    def leased(
        self, leases: Sequence[Lease], holder: str | None, began: float, seconds: float, before: list[str]
    ) -> None:
        self.say([lease.id for lease in leases])
        waited = [lease.id for lease in leases if lease.id in before]
        assert waited == before[: len(waited)], f"leased out of order: {waited}, expected the head of {before}"
        if leases and holder and self.is_known(holder) is not True:  # the holder was declared lost before this lease
            for job in self.alive():
                if job.grip and job.grip.holder == holder:
                    job.grip.exposed = True
        for lease in leases:
            job = self.jobs[lease.id]
            if job.state == "held":  # reclaimed and leased in one step
                self.lose(job)
            assert job.state == "waiting", f"{lease.id} was {job.state}"
            assert job.due <= self.now() + CLOCK_BLUR_S, "leased before its run time"
            assert lease.fence > self.fence
            assert (lease.data, lease.holder) == (job.data, holder)
            assert job.suspect in (None, lease.suspect), f"suspect: {lease.suspect}, not {job.suspect}"
            if self.layout == "queasy":
                found = lease.failures, lease.stalls, (lease.limits.max_failures, lease.limits.max_stalls)
                assert found == (job.failures, job.stalls, job.limits)
            self.fence = lease.fence
            grip = Grip(holder or f".{lease.fence}", lease)
            self.prolong(grip.holder, began, seconds)
            grip.marked = self.spans[grip.holder].sure
            job.state, job.grip, job.cancelled = "held", grip, False
            self.leases.append(lease)

    def may_know(self, holder: str, seconds: float) -> None:
        """The holder may have got leases in a lost reply, and lost them again."""
        span = self.spans.setdefault(holder, Span())
        span.ends = max(span.ends, self.now() + seconds)

    def nothing_left_behind(self, n: int, leases: Sequence[Lease]) -> None:
        if len(leases) < n:
            seen = self.peer.look()
            assert not [id for id in seen.waiting if id not in seen.later], "ready jobs were not leased"

    def do_turn(self) -> None:
        """A worker's turn: settle some leases and lease others in one call."""
        queue, holder = self.queue(), self.random.choice(HOLDERS)
        n, seconds = self.random.choice([0, 1, 3]), self.random.choice(LEASE_LENGTHS_S)
        registered = holder is not None and self.random.random() < 0.5
        outcomes = [self.outcome(lease) for lease in self.some_leases(self.random.randint(0, 4))]
        self.say(f"{n} for {seconds} s, {holder}{' registered' * registered}: {_words(outcomes)}")
        began = self.now()
        known = not registered or self.is_known(str(holder))
        call = layout_of(queue).turn(
            outcomes, LeaseRequest(want=n, seconds=seconds, holder=holder, only_if_registered=registered)
        )
        with self.maybe_lossy(leasing=True) as lossy:
            found: Turn = perform_call(queue, call)
        before = self.settled(outcomes, found.settled)
        if n and known is not None and not lossy:
            assert found.lost is not known
        if n and holder and lossy:
            self.may_know(holder, seconds)
        self.leased(found.leases, holder, began, seconds, [] if before else self.due())

    def is_known(self, holder: str) -> bool | None:
        """Whether the holder is registered; None while its time may be over."""
        if holder not in self.spans or self.now() > self.spans[holder].ends + CLOCK_BLUR_S:
            return False
        return None if self.now() > self.spans[holder].sure - CLOCK_BLUR_S else True

    def do_peer_takes(self) -> None:
        before = self.due()
        began = self.now()
        found = self.peer.take()
        if self.layout == "worqr":  # there one expiry covers all jobs of a worker
            self.beaten("~peer", began, self.peer.lasts)
        if found is None:
            return
        id, token = found
        self.say(id)
        assert id in before
        job = self.jobs[id]
        assert job.state == "waiting"
        job.state, job.cancelled = "held", False
        job.grip = Grip("~peer", token=token, marked=began + self.peer.lasts)
        if self.layout != "worqr":
            job.grip.holder = f"~{id} {len(self.log)}"
            self.prolong(job.grip.holder, began, self.peer.lasts)
        self.theirs.append(found)

    # -- steps: settling -------------------------------------------------------------------------

    def some_leases(self, n: int) -> list[Lease]:
        """Current and past leases; some twice."""
        current = [job.grip.lease for job in self.jobs.values() if job.grip and job.grip.lease]
        past = self.leases[-40:]
        lost = [lease for lease in past if self.jobs[lease.id].alive and lease not in current]
        pool = self.random.choices([current, lost, past], [8, 2, 1])[0]
        return [self.random.choice(pool) for _ in range(n)] if pool else []

    def outcome(self, lease: Lease) -> Outcome:
        verb = self.random.choice([*SETTLING, "complete", "complete", "release", "retry"])
        if verb == "retry" and self.layout == "queasy" and lease.failures >= lease.limits.max_failures:
            verb = "fail"  # as `Queue.retry` decides
        return SETTLING[verb](lease)

    def do_settle(self) -> None:
        """Settle with the public methods."""
        for lease in self.some_leases(1):
            verb = self.random.choice(["complete", "release", "retry", "fail"])
            outcome: Outcome = SETTLING[verb](lease)
            if verb == "retry" and self.layout == "queasy" and lease.failures >= lease.limits.max_failures:
                outcome = Failed(lease)
            self.say(_words([outcome]))
            with self.maybe_lossy():
                found = self.settle(verb, lease)
            self.settled([outcome], [found])
            if self.random.random() < 0.3:
                self.say("twice")
                assert not self.settle(verb, lease)

    def settle(self, verb: str, lease: Lease) -> bool:
        queue = self.queue()
        if verb == "retry":
            return queue.retry(lease, delay=0)
        done: bool = getattr(queue, verb)(lease)
        return done

    def do_complete_many(self) -> None:
        leases = self.some_leases(self.random.randint(1, 6))
        self.say([lease.id for lease in leases])
        with self.maybe_lossy():
            found = self.queue().complete_many(leases)
        self.settled([Completed(lease) for lease in leases], found)

    def settled(self, outcomes: Sequence[Outcome], found: Sequence[bool]) -> bool:
        """Apply outcomes to the model; returns whether any settled."""
        expected: list[bool] = []
        for outcome, is_settled in zip(outcomes, found, strict=True):
            job = self.jobs[outcome.lease.id]
            held = job.state == "held" and job.grip is not None and job.grip.lease is outcome.lease
            held = held or (is_settled and self.is_forsaken(job))
            expected.append(held)
            if held:
                self.finish(job, outcome)
        assert list(found) == expected, f"settled {list(found)}, not {expected}"
        return any(expected)

    def is_forsaken(self, job: Job) -> bool:
        """A peer took the job over, and its lease expired, too: the job has no owner."""
        # Needed until workqueue tells this from an expired Windlass lease; until then that lease counts again.
        grip = job.grip
        return self.layout == "workqueue" and grip is not None and grip.lease is None and self.may_be_lost(grip)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Apply an outcome to the model."""
        self.let_go(job)
        verb = type(outcome)
        job.suspect = verb is Crashed or (verb is Released and job.suspect)
        if job.cancelled or verb is Completed or (verb is Failed and self.layout != "hworker"):
            self.gone(job)
        elif verb is Failed:
            self.bury(job, "dead")
        elif verb in (Broken, UnknownTask) and self.layout == "hworker":
            self.bury(job, "broken")
        elif self.layout == "queasy":
            if isinstance(outcome, Crashed) and outcome.is_cause:
                if job.behind is None:
                    job.due = max(job.due, self.now() + outcome.delay_ms / 1000 - CLOCK_BLUR_S)
                return self.stall(job)
            if verb in (Broken, UnknownTask):
                job.due = max(job.due, self.now() + 200) if job.behind is None else job.due
            elif verb is Retried:
                job.failures += 1
            self.come_back(job)
        else:
            self.come_back(job)
        return None

    def let_go(self, job: Job) -> None:
        if job.grip and job.grip.holder.startswith("."):
            self.spans.pop(job.grip.holder)
        job.grip = None

    def come_back(self, job: Job) -> None:
        job.state = "waiting"
        if job.behind:
            self.follow(job)

    def follow(self, job: Job) -> None:
        """The blocked job becomes a job, or is merged: all its fields are updated."""
        assert job.behind
        (job.data, job.limits), job.behind = job.behind, None
        job.failures = job.stalls = 0
        job.state = "waiting"

    def gone(self, job: Job) -> None:
        job.state = "gone"
        if job.behind:
            self.follow(job)

    def stall(self, job: Job) -> None:
        """The holder lost the job: count a stall where the layout does."""
        if job.stalls >= job.limits[1]:
            return self.gone(job)
        job.stalls += 1
        return self.come_back(job)

    def bury(self, job: Job, where: str) -> None:
        job.state = where
        self.graves[where].insert(0, job.id)
        for id in self.graves[where][MAX_DEAD:] if where == "dead" else []:
            self.jobs[id].state = "gone"
            self.graves[where].remove(id)

    def lose(self, job: Job) -> None:
        """A lease has ended."""
        assert job.grip is not None
        exposed = job.grip.exposed
        assert self.may_be_lost(job.grip), f"{job.id} was taken from {job.grip.holder}, which is alive"
        job.grip = None
        if job.cancelled and not (
            exposed and job.id in self.seen.waiting
        ):  # a peer that reclaims everything ignores cancels
            self.gone(job)
        elif self.layout == "queasy":
            self.stall(job)
        else:
            job.state = "waiting"

    def do_peer_completes(self) -> None:
        mine = [each for each in self.theirs if self.is_theirs(*each)]
        if not mine:
            return
        id, token = self.random.choice(mine)
        self.say(id)
        assert self.peer.complete(token)
        job = self.jobs[id]
        job.grip = None
        self.gone(job)

    def do_peer_completes_late(self) -> None:
        """Published clients do not check who owns the job."""
        mine = [each for each in self.theirs[-20:] if self.jobs[each[0]].alive and not each[0].startswith("job-")]
        if not mine or self.layout not in ("workqueue", "hworker"):
            return
        id, token = self.random.choice(mine)
        job = self.jobs[id]
        self.say(f"{id} {job.state}")
        assert self.peer.complete(token) is (job.state == "held")
        if job.state == "held":
            job.grip = None
            self.gone(job)

    def do_peer_snatches(self) -> None:
        """The peer takes over expired jobs before Windlass notices."""
        self.pass_time(self.random.choice([130, 700]))
        self.peer_cleans()
        self.check()
        for _ in range(self.random.choice([1, 10, len(self.seen.waiting)])):
            self.do_peer_takes()
            self.check()
        if self.random.random() < 0.5:
            self.pass_time(self.random.choice(PAUSES_S))
        snatched = [job.id for job in self.alive() if job.grip and not job.grip.lease]
        lost = [lease for lease in self.leases[-40:] if lease.id in snatched]
        for lease in lost[-1:]:
            self.say(f"settled late: {lease.id}")
            self.settled([Completed(lease)], [self.settle("complete", lease)])

    def is_theirs(self, id: str, token: Any) -> bool:
        grip = self.jobs[id].grip
        return grip is not None and grip.token is token

    # -- steps: while it runs --------------------------------------------------------------------

    def do_extend(self) -> None:
        for lease in self.some_leases(1):
            job, seconds, began = self.jobs[lease.id], self.random.choice(LEASE_LENGTHS_S), self.now()
            self.say(f"{lease.id} ({lease.holder}) for {seconds} s")
            grip = job.grip if job.grip and job.grip.lease is lease else None
            with self.maybe_lossy():
                found = self.queue().extend(lease, seconds)
            if found and self.is_forsaken(job):
                job.grip = grip = Grip(lease.holder or f".{lease.fence}", lease)
            if grip is None or job.cancelled:
                assert not found, "an extension succeeded on a lost or cancelled job"
            elif grip.holder in self.spans and self.spans[grip.holder].sure > began:
                assert found, "an extension failed on a current lease"
            if grip and found:
                self.beaten(grip.holder, began, seconds)
                grip.marked = began + seconds if lease.holder is None else self.spans[grip.holder].sure

    def do_beat(self) -> None:
        holder, seconds, register = (
            self.random.choice(["w1", "w2", "w3"]),
            self.random.choice(LEASE_LENGTHS_S),
            self.random.random() < 0.5,
        )
        self.say(f"{holder} {seconds} s{' register' * register}")
        began, known = self.now(), self.is_known(holder)
        with self.maybe_lossy():
            found = self.queue().beat(holder, seconds, register=register)
        if known is not None:
            assert found is known
        if found or register:
            self.beaten(holder, began, seconds)

    def do_restart(self) -> None:
        """A program ends and another starts: holders without jobs are forgotten."""
        at = self.random.randrange(2)
        ours = holders_of(self.queues[at])
        self.apps[at].close()
        busy = {job.grip.holder for job in self.alive() if job.grip}
        for name in ours & self.spans.keys() - busy:
            self.spans[name].sure = 0
        self.open(at)

    def do_progress(self) -> None:
        if Capability.PROGRESS not in self.can:
            return
        for lease in self.some_leases(1):
            job = self.jobs[lease.id]
            held = job.grip is not None and job.grip.lease is lease
            with self.maybe_lossy():
                assert self.queue().progress(lease, 0.5) is held

    def do_wait(self) -> None:
        seconds = self.random.choice(PAUSES_S)
        self.say(seconds)
        self.pass_time(seconds)

    # -- steps: orders ---------------------------------------------------------------------------

    def do_clean(self) -> None:
        deep = self.random.random() < 0.4
        self.say("deep" * deep)
        began = self.now()
        with self.maybe_lossy() as lossy:
            found = self.queue().audit(repair=True) if deep else self.queue().clean()
        self.check()
        self.say(found)
        if not lossy:
            self.check_ledger(began)

    def do_peer_cleans(self) -> None:
        self.peer_cleans()

    def peer_cleans(self) -> None:
        if self.peer.clean():
            for job in self.alive():
                if job.grip:
                    job.grip.exposed = True

    def do_cancel(self) -> None:
        if Capability.CANCEL not in self.can or not self.alive():
            return
        running = Capability.CANCEL_RUNNING in self.can and self.random.random() < 0.6
        held = [job for job in self.alive() if job.grip and running]
        pools = (held or self.alive(), list(self.jobs.values())[-40:])
        job = self.random.choice(self.random.choices(pools, [3, 1])[0])
        self.say(f"{job.id}{' running' * running}")
        with self.maybe_lossy():
            found = self.queue().cancel(job.id, running=running)
        if job.state == "held" and running and (job.grip is None or job.grip.lease is None):
            assert found  # the peer is notified, and may ignore it
        elif job.state == "held" and running:
            assert found is not job.cancelled
            job.cancelled = True
        elif job.state == "held":
            assert found is (job.behind is not None)
            job.behind = None
        else:
            assert found is (job.state == "waiting")
            job.state = "gone"

    def do_revive(self) -> None:
        if Capability.DEAD not in self.can or not any(self.graves.values()):
            return
        id = self.random.choice([id for ids in self.graves.values() for id in ids])
        self.say(id)
        with self.maybe_lossy():
            assert self.queue().revive(id) == [True]
        where = self.jobs[id].state
        self.graves[where].remove(id)
        self.jobs[id].state = "waiting"

    def do_purge(self) -> None:
        if self.random.random() < 0.8:
            return
        state = self.random.choice([None, State.READY])
        self.say(state)
        expected = len(self.seen.waiting) - (len(self.seen.later) if state else 0)
        if state is None:
            expected += sum(map(len, (self.seen.held, self.seen.blocked, self.seen.dead, self.seen.broken)))
        with self.maybe_lossy():
            found = self.queue().purge(state)
        assert found == expected
        for job in self.jobs.values():
            if state is None or (job.state == "waiting" and job.id not in self.seen.later):
                job.state, job.grip, job.behind = "gone", None, None
        if state is None:
            self.graves = {"dead": [], "broken": []}
            for holder in [each for each in self.spans if each.startswith(".")]:
                del self.spans[holder]

    # -- steps: questions ------------------------------------------------------------------------

    def do_counts(self) -> None:
        found: Counts = self.queue().counts()
        seen = self.seen
        assert (found.waiting, found.running) == (len(seen.waiting) + len(seen.blocked), len(seen.held))
        assert (found.dead, found.broken) == (len(seen.dead), len(seen.broken))

    def do_jobs(self) -> None:
        queue, seen = self.queue(), self.peer.look()
        ready = list(queue.all_jobs(State.READY))
        assert [job.id for job in ready] == [id for id in seen.waiting if id not in seen.later]
        leased = list(queue.all_jobs(State.RUNNING))
        assert sorted(job.id for job in leased) == sorted(seen.held)
        for job in leased:
            self.check_record(job)

    def check_record(self, record: JobRecord) -> None:
        job = self.jobs[record.id]
        assert (record.data, record.state) == (job.data, "running" if job.state == "held" else "ready")
        if job.grip and job.grip.lease:
            assert (record.fence, record.holder) == (job.grip.lease.fence, job.grip.lease.holder)

    def do_get(self) -> None:
        if Capability.IDS not in self.can or not self.jobs:
            return
        job = self.random.choice(list(self.jobs.values())[-40:])
        self.say(job.id)
        found = self.queue().get(job.id)
        # Needed until workqueue's `find` uses the list: it reports an expired item as ready before it is reclaimed.
        unclear = self.layout == "workqueue" and job.grip and self.may_be_lost(job.grip)
        if job.alive and job.id not in self.seen.later and not unclear:
            assert found is not None
            self.check_record(found)
        assert (found is not None) is job.alive

    def do_held(self) -> None:
        holder = self.random.choice(["w1", "w2", "w3"])
        queue = self.queue()
        page: Page = perform_call(queue, layout_of(queue).held(holder, None, 100))
        expected = {job.id for job in self.alive() if job.grip and job.grip.holder == holder}
        forsaken = {job.id for job in self.alive() if self.is_forsaken(job)}
        assert {job.id for job in page.jobs} - forsaken == expected

    # -- inspection ------------------------------------------------------------------------------

    def alive(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.alive]

    def due(self) -> list[str]:
        """Jobs that can be leased now, the next one first."""
        return [id for id in self.seen.waiting if id not in self.seen.later]

    def check(self) -> None:
        """Check that every job is in an allowed place, exactly once, and nothing else exists."""
        self.seen = seen = self.peer.look()
        places = [*seen.waiting, *seen.held, *seen.dead, *seen.broken]
        assert len(places) == len(set(places)), f"in two places: {[id for id in places if places.count(id) > 1]}"
        for job in self.alive():
            if job.state == "held" and job.id not in seen.held:
                self.lose(job)
            elif job.grip:
                job.grip.exposed = False
        found = {
            "waiting": seen.waiting,
            "held": seen.held,
            "dead": seen.dead,
            "broken": seen.broken,
        }
        for state, ids in found.items():
            expected = {job.id for job in self.jobs.values() if job.state == state}
            assert set(ids) == expected, f"{state}: unexpected {set(ids) - expected}, missing {expected - set(ids)}"
        assert set(seen.blocked) == {job.id for job in self.jobs.values() if job.behind}
        assert seen.dead == self.graves["dead"]

    def check_ledger(self, began: float) -> None:
        """After a clean that began at `began`: expired leases are reclaimed, and the ledger has no other entries."""
        holders = {name.decode(): end for name, end in self._scores("holders")}
        then = (time() - self.now() + began) * 1000
        lapsed = [name for name, end in holders.items() if end <= then]
        assert not lapsed, f"{lapsed} have expired, but are still in the ledger"
        strangers = [
            name for name in holders if name not in self.spans and name[0] != "."
        ]  # raw leases with a lost reply
        assert not strangers, f"the ledger has unknown holders {strangers}"
        for name, span in list(self.spans.items()):
            if span.ends + CLOCK_BLUR_S < began:
                assert name not in holders, f"{name} is lost, but still in the ledger"
                lost = [job.id for job in self.alive() if job.grip and job.grip.holder == name]
                assert not lost, f"{name} still has {lost}"
                del self.spans[name]
        current = {str(job.grip.lease.fence) for job in self.alive() if job.grip and job.grip.lease}
        runs = {name.decode(): text for name, text in self.client.hgetall(f"{self.ledger}:runs").items()}
        fences = {name for name in runs if name.isdigit()}
        assert current <= fences, f"{current - fences} are not in the ledger"
        for fence in fences - current:
            holder = runs[fence].lstrip(b"!").partition(b"\0")[0].decode()
            assert holder in holders, f"the ledger has fence {fence} of {holder}, whose lease has ended"
        pointers = {name[1:]: text.decode() for name, text in runs.items() if name[0] == "="}
        assert sorted(pointers.values()) == sorted(fences), "pointers and runs differ"
        assert {name[1:] for name in runs if name[0] == "@"} <= set(pointers)
        index = {member.decode() for member, _ in self._scores("held")}
        holding = {runs[fence].lstrip(b"!").partition(b"\0")[0].decode() + f"\0{fence}" for fence in fences}
        assert index == holding, "the holders' index and the runs differ"

    def _scores(self, name: str) -> list[tuple[bytes, float]]:
        found: list[tuple[bytes, float]] = self.client.zrange(f"{self.ledger}:{name}", 0, -1, withscores=True)
        return found


def _limits(job: RawJob) -> tuple[int, int]:
    options: dict[str, Any] = dict(job.options)
    return options.get("max_failures", 10), options.get("max_stalls", 3)


def _delay(job: RawJob) -> float:
    options: dict[str, Any] = dict(job.options)
    return float(options.get("delay", 0))


def _without_id(job: RawJob) -> Any:
    return {name: value for name, value in job.options.items() if name != "id"}


def _words(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"{type(each).__name__} {each.lease.id} #{each.lease.fence % 10**6}" for each in outcomes)
