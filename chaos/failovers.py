"""Failovers and slot moves under load: every acknowledged job must be on the current primary.

    python -m chaos.failovers --sentinel 40 --cluster 40 --reshards 50 --seed 7

Producers enqueue with `replicated(n)`, n being the number of replicas of a primary; workers lease and complete. The
run kills the primary with SIGKILL, a replica is promoted, and the killed server returns as an empty replica; repeated.
All answers are kept in this process, outside the servers.

A completion does not wait for replicas. A failover can undo a completion acknowledged just before the kill, and the
job runs again: the report counts it as rolled back. A second completion without a failover in between is a fault.

With `memory`, no call waits for replicas. The report also prints how much that can lose: replicas are held back with
SIGSTOP, and payloads are large, because small ones reach the kernel's buffers even while the replica is stopped.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle, pairwise
from time import monotonic, sleep
from typing import NamedTuple, Protocol

from tests.support.cluster import Cluster
from tests.support.replication import ROLE_CHANGE_ERRORS, is_replica, primary_port
from tests.support.sentinel import SentinelGroup
from tests.support.server import HOST, Server
from tests.support.waiting import wait_until

from windlass import Queue, RawJob, State, Windlass
from windlass.errors import WindlassError
from windlass.storage.native.keys import queue_key

LEASE_S = 5.0  # seconds; a lease lost in a failover expires after this
CALL_TIMEOUT_S = 30.0  # seconds that a call may take; far longer than any failover
CONFIRM_TIMEOUT_S = 5.0  # seconds to wait for replicas, and that a server may stay silent
WORK_S = 0.005  # seconds that a job takes
BATCH_JOBS = 10  # jobs per enqueue
MAX_BACKLOG = 100  # waiting jobs at which a producer pauses
RESUME_GOAL_S = 3.0  # seconds from a promotion to the first job leased
HELD_JOBS, HELD_BYTES = 250, 100_000
DOWN_AFTER_MS = 700  # silence after which a server counts as down
USUAL_LAG_S = 0.1  # seconds that a replica may lag without being held back
MEMORY = "memory"


class Crash(NamedTuple):
    """A killed primary, and when its successor took over."""

    queues: frozenset[str]
    exposed: float  # since when replicas lagged; without a hold, one second before the kill
    killed: float
    promoted: float


class Completion(NamedTuple):
    """An accepted completion."""

    leased: float
    told: float


class Receipt(NamedTuple):
    """The acknowledgement of an enqueue."""

    level: str
    told: float


@dataclass
class Ledger:
    """Answers that producers and workers received, and faults injected into the servers. Kept outside the servers."""

    sent: dict[str, str] = field(default_factory=dict)  # id → queue, noted before the send
    acknowledged: dict[str, Receipt] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)  # calls that ended with an error; their effect is unknown
    leases: list[tuple[float, str]] = field(default_factory=list)  # (time, queue)
    completed: dict[str, list[Completion]] = field(default_factory=dict)
    in_doubt: set[str] = field(default_factory=set)  # completions that got no answer
    crashes: list[Crash] = field(default_factory=list)
    left: set[str] = field(default_factory=set)  # still on the servers at the end
    faults: list[BaseException] = field(default_factory=list)  # errors that ended a thread or the run
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note_error(self, call: str, error: Exception) -> None:
        """Count a failed call."""
        with self.lock:
            self.errors[f"{call}: {type(error).__name__}"] += 1

    def resumed_after(self, crash: Crash) -> float | None:
        """Seconds from the promotion to the first new lease on the affected queues."""
        first = None
        for at, queue in reversed(self.leases):
            if at < crash.promoted - 1:  # threads append slightly out of order
                break
            if queue in crash.queues and at > crash.promoted:
                first = min(first or at, at)
        return None if first is None else first - crash.promoted

    def lost(self) -> set[str]:
        """Jobs acknowledged, not completed, and not on the servers."""
        return self.acknowledged.keys() - self.completed.keys() - self.left - self.in_doubt

    def unexpected(self) -> set[str]:
        """Jobs completed but never sent."""
        return self.completed.keys() - self.sent.keys()

    def doubled(self) -> tuple[list[str], list[float]]:
        """Jobs completed twice without a failover; and per rolled-back job, seconds between completion and kill."""
        unexplained: list[str] = []
        undone: list[float] = []
        for id, times in self.completed.items():
            for first, second in pairwise(times):
                crash = self._between(self.sent[id], first.told, second.leased)
                if crash is None:
                    unexplained.append(id)
                else:
                    undone.append(max(0.0, crash.killed - first.told))
        return unexplained, undone

    def at_risk(self) -> int:
        """Number of jobs acknowledged while a kill could still lose them."""
        return sum(
            any(self.sent[id] in crash.queues and crash.exposed < told < crash.promoted for crash in self.crashes)
            for id, (_, told) in self.acknowledged.items()
        )

    def _between(self, queue: str, told: float, leased: float) -> Crash | None:
        return next((c for c in self.crashes if queue in c.queues and told <= c.promoted <= leased), None)


class Load:
    """One producer and two workers per queue, in threads, until the block ends and the queues are empty."""

    def __init__(
        self, url: str, queues: Sequence[str], levels: Sequence[str], ledger: Ledger, *, size: int = 0, workers: int = 2
    ) -> None:
        self.ledger = ledger
        self._queues = queues
        self._levels = levels
        self._padding = b"x" * size
        self._app = Windlass(url, retry_for=CALL_TIMEOUT_S, call_timeout=CONFIRM_TIMEOUT_S)
        self._ending, self._drained = threading.Event(), threading.Event()
        self._round = len(ledger.crashes)  # keeps the ids of each load distinct
        self._producers = [self._thread(self._produce, name) for name in queues]
        self._workers = [self._thread(self._work, name) for name in queues for _ in range(workers)]

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Run producers inside the block; afterwards, work off all jobs."""
        with self._app:
            for thread in (*self._producers, *self._workers):
                thread.start()
            try:
                yield self
            finally:
                self.stop_producing()
                self._drain()

    def stop_producing(self) -> None:
        """Stop producers. Returns once no producer waits for an answer."""
        self._ending.set()
        for thread in self._producers:
            thread.join(CALL_TIMEOUT_S + 10)

    def wait_for_more(self, count: int) -> None:
        """Wait until `count` more jobs have completed. Stalled work is a fault."""
        self._wait_for(lambda: len(self.ledger.completed), count, "work to go on")

    def wait_answered(self, count: int) -> None:
        """Wait until `count` more enqueues have been acknowledged or have failed."""
        self._wait_for(
            lambda: len(self.ledger.acknowledged) + self.ledger.errors.total(), count, "enqueues to be answered"
        )

    def _wait_for(self, number: Callable[[], int], more: int, what: str) -> None:
        goal = number() + more
        wait_until(lambda: self.ledger.faults or number() >= goal, what, timeout=CALL_TIMEOUT_S)
        if self.ledger.faults:
            raise self.ledger.faults[0]

    def _drain(self) -> None:
        for name in self._queues:  # also jobs of a run without workers, and jobs that a failover left leased
            self._work_off(self._app.queue(name))
        self._drained.set()
        for thread in self._workers:
            thread.join(CALL_TIMEOUT_S + 10)
        for name in self._queues:
            queue = self._app.queue(name)
            self.ledger.left |= {job.id for state in State for job in queue.all_jobs(state)}
            queue.purge()

    def _work_off(self, queue: Queue) -> None:
        def empty() -> bool:
            self._take(queue, 100)
            counts = queue.counts()
            return counts.waiting + counts.running == 0

        wait_until(empty, f"{queue!r} to be empty", timeout=CALL_TIMEOUT_S + 2 * LEASE_S, ignoring=(WindlassError,))

    def _thread(self, work: Callable[[str], None], queue: str) -> threading.Thread:
        def guarded() -> None:
            try:
                work(queue)
            except BaseException as error:
                self.ledger.faults.append(error)

        return threading.Thread(target=guarded, daemon=True)

    def _produce(self, name: str) -> None:
        queue = self._app.queue(name)
        for number, level in enumerate(cycle(self._levels)):
            if self._ending.is_set():
                return
            ids = [f"{name}-{self._round}-{number}-{place}" for place in range(BATCH_JOBS)]
            self.ledger.sent |= dict.fromkeys(ids, name)
            jobs = [RawJob(id.encode() + self._padding, id=id, durability=level) for id in ids]
            try:
                receipts = queue.enqueue_many(jobs)
            except WindlassError as error:  # the jobs may exist or not
                self.ledger.note_error("enqueue", error)
            else:
                told = monotonic()
                self.ledger.acknowledged |= {each.id: Receipt(each.durability, told) for each in receipts}
            while self._workers and self._is_ahead(queue):
                if self._ending.wait(0.01):
                    return

    def _is_ahead(self, queue: Queue) -> bool:
        """Whether enough jobs wait: a kill should hit waiting jobs, but not a huge backlog."""
        try:
            return queue.counts().waiting > MAX_BACKLOG
        except WindlassError:
            return False

    def _work(self, name: str) -> None:
        queue = self._app.queue(name)
        while not self._drained.is_set():
            try:
                self._take(queue, 5, WORK_S)
            except WindlassError as error:
                self.ledger.note_error("lease", error)

    def _take(self, queue: Queue, most: int, work: float = 0.0) -> None:
        """Lease up to `most` jobs, work on each for `work` seconds, and complete them."""
        batch = queue.lease_many(most, seconds=LEASE_S, wait=0.05)
        leased = monotonic()
        if not batch:
            return
        self.ledger.leases.append((leased, queue.name))
        sleep(work * len(batch))
        try:
            kept = queue.complete_many(batch)
        except WindlassError as error:
            self.ledger.note_error("complete", error)
            self.ledger.in_doubt.update(lease.id for lease in batch)
            return
        told = monotonic()
        with self.ledger.lock:
            for lease in (lease for lease, ours in zip(batch, kept, strict=True) if ours):
                self.ledger.completed.setdefault(lease.id, []).append(Completion(leased, told))


# -- where it happens -------------------------------------------------------------------------------


class Topology(Protocol):
    """A group of servers with failover."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def level(self) -> str:
        """The durability that waits for all replicas."""

    @property
    def queues(self) -> Sequence[str]: ...

    @property
    def url(self) -> str: ...

    def primary_of(self, queue: str) -> Server:
        """The primary that holds a queue, once no failover is in progress."""

    def replicas_of(self, primary: Server) -> list[Server]: ...

    def heal(self, killed: Server) -> None:
        """Restart the killed server; returns when all replicas are in sync."""


class Sentinels:
    """One primary, two replicas, three sentinels."""

    name = "sentinel 1+2"
    level = "replicated(2)"
    queues = ("orders", "mails", "images")

    def __init__(self, group: SentinelGroup) -> None:
        self._group = group
        self.url = group.url
        self.version = group.primary.version

    def primary_of(self, queue: str) -> Server:
        return self._group.wait_calm()

    def replicas_of(self, primary: Server) -> list[Server]:
        return [server for server in self._group.servers if server is not primary]

    def heal(self, killed: Server) -> None:
        wait_until(lambda: self._group.wait_calm() is not killed, "the sentinels to name another primary")
        killed.start()
        self._group.wait_replicas(2)


class Nodes:
    """Three primaries, each with a replica, and a queue on each of the three."""

    name = "cluster 3+3"
    level = "replicated(1)"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.version = cluster.nodes[0].version
        names = (f"queue-{number}" for number in count())
        by_node: dict[int, str] = {}
        while len(by_node) < cluster.primaries:
            name = next(names)
            by_node.setdefault(cluster.owner(self.slot_of(name)), name)
        self.queues = tuple(by_node.values())

    @property
    def url(self) -> str:
        """A URL with every node, because the first node may be down."""
        return f"redis://{','.join(f'{HOST}:{node.port}' for node in self._cluster.nodes)}/0"

    def slot_of(self, queue: str) -> int:
        """The slot that holds all keys of a queue."""
        return self._cluster.slot_of(queue_key(queue, "state"))

    def primary_of(self, queue: str) -> Server:
        self._cluster.wait_ok()
        return self._cluster.nodes[self._cluster.owner(self.slot_of(queue))]

    def replicas_of(self, primary: Server) -> list[Server]:
        return [node for node in self._cluster.live if primary_port(node) == primary.port]

    def heal(self, killed: Server) -> None:
        killed.start()
        wait_until(
            lambda: is_replica(killed), "the killed node to follow", timeout=CALL_TIMEOUT_S, ignoring=ROLE_CHANGE_ERRORS
        )
        self._cluster.wait_ok()


# -- the faults -------------------------------------------------------------------------------------


def crash(topology: Topology, queue: str, ledger: Ledger, before: Callable[[], object] | None = None) -> Server:
    """Kill the primary of a queue; returns it once a replica has been promoted.

    `before` runs while the replicas are held back; writes that they have not read by then die with the primary.
    """
    primary = topology.primary_of(queue)
    heirs = topology.replicas_of(primary)
    queues = frozenset(name for name in topology.queues if topology.primary_of(name) is primary)
    exposed = None
    with ExitStack() as held:
        if before is not None:
            exposed = monotonic() - USUAL_LAG_S
            for heir in heirs:
                held.enter_context(heir.paused())
            before()
        killed = monotonic()
        primary.kill()
    wait_until(
        lambda: any(heir.command("ROLE")[0] == b"master" for heir in heirs),
        "a replica to be promoted",
        timeout=CALL_TIMEOUT_S,
        interval=0.005,
        ignoring=ROLE_CHANGE_ERRORS,
    )
    ledger.crashes.append(Crash(queues, exposed or killed - 1, killed, monotonic()))
    return primary


def fail_over(topology: Topology, times: int, seed: int, until: float = math.inf) -> Report:
    """Kill primaries under load, one after the other; every enqueue waits for all replicas."""
    chance = random.Random(f"{topology.name} {seed}")
    report = Report(f"{topology.name}, {topology.level}: primaries killed under load", topology.version, times)
    load = Load(topology.url, topology.queues, [topology.level], report.ledger)
    with report.timed(), load.running():
        while report.done < times and monotonic() < until:
            load.wait_for_more(chance.randint(20, 200))
            killed = crash(topology, chance.choice(topology.queues), report.ledger)
            found = partial(report.ledger.resumed_after, report.ledger.crashes[-1])
            wait_until(found, "work to be resumed", timeout=CALL_TIMEOUT_S)
            topology.heal(killed)
            load.wait_for_more(20)
            report.done += 1
    return report


def hold_back(topology: Topology, times: int, seed: int, level: str) -> Report:
    """Kill primaries whose replicas lag: measures how many jobs a level loses, or refuses to acknowledge."""
    chance = random.Random(f"{topology.name} {level} {seed}")
    report = Report(f"{topology.name}, {level}: killed while replicas are held back", topology.version, times)
    report.may_lose, report.worked = level == MEMORY, False
    with report.timed():
        for _ in range(times):
            queue = chance.choice(topology.queues)
            load = Load(topology.url, [queue], [level], report.ledger, size=HELD_BYTES, workers=0)
            with load.running():
                # Each unacknowledged enqueue waits for its timeout: a few are enough.
                answers = HELD_JOBS if level == MEMORY else 1
                killed = crash(topology, queue, report.ledger, before=partial(load.wait_answered, answers))
                load.stop_producing()
                topology.heal(killed)
            report.done += 1
    return report


def reshard(cluster: Cluster, times: int, seed: int, until: float = math.inf) -> Report:
    """Move the slots of queues between primaries under load: key by key, or in one step if the server supports it."""
    topology = Nodes(cluster)
    chance = random.Random(f"reshard {seed}")
    report = Report(f"{topology.name}, slots of queues moved under load", topology.version, times)
    load = Load(topology.url, topology.queues, [MEMORY, topology.level], report.ledger)
    with report.timed(), load.running():
        while report.done < times and monotonic() < until:
            load.wait_for_more(chance.randint(20, 100))
            slot = topology.slot_of(chance.choice(topology.queues))
            target = chance.choice(sorted(cluster.owners() - {cluster.owner(slot)}))
            if report.done % 2 and topology.version.startswith("Valkey"):
                cluster.move_slot_at_once(slot, target)
            else:
                cluster.move_slot(slot, target, step=chance.randint(1, 5))
            report.done += 1
        load.wait_for_more(20)
    return report


# -- what came of it --------------------------------------------------------------------------------


@dataclass
class Report:
    """The ledger of one run and its verdict."""

    title: str
    version: str
    times: int
    done: int = 0
    seconds: float = 0.0
    may_lose: bool = False
    worked: bool = True
    ledger: Ledger = field(default_factory=Ledger)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time the block. An error ends it and counts as a finding."""
        began = monotonic()
        try:
            yield
        except Exception as error:
            self.ledger.faults.append(error)
        self.seconds = monotonic() - began

    def missed(self) -> list[str]:
        """The goals that were missed."""
        ledger = self.ledger
        doubled, _ = ledger.doubled()
        slowest = max(self._resumed(), default=0.0)
        found = {
            "no enqueue was acknowledged": not ledger.acknowledged,
            f"only {self.done} of {self.times} faults were injected": self.done < self.times,
            f"{len(ledger.lost())} lost": bool(ledger.lost()) and not self.may_lose,
            f"{len(doubled)} completed twice without a failover in between": bool(doubled),
            f"{len(ledger.unexpected())} completed but never sent": bool(ledger.unexpected()),
            f"{len(ledger.left)} left on the servers": bool(ledger.left),
            f"no job was leased for {slowest:.1f} s after a promotion": slowest > RESUME_GOAL_S,
            f"the run failed: {ledger.faults[:1]}": bool(ledger.faults),
        }
        return [what for what, true in found.items() if true]

    def lines(self) -> Iterator[str]:
        """The figures as text lines."""
        ledger = self.ledger
        doubled, undone = ledger.doubled()
        levels = Counter(receipt.level for receipt in ledger.acknowledged.values())
        yield f"{self.title} ({self.version})"
        yield f"  {self.done} times in {self.seconds:.0f} s"
        yield "  acknowledged " + (", ".join(f"{n:,} at {level}" for level, n in sorted(levels.items())) or "none")
        yield f"  completed {len(ledger.completed):,}; errors {dict(sorted(ledger.errors.items())) or 'none'}"
        when = "within a second of a kill" if self.worked else "while replicas were held back"
        of = f" of {ledger.at_risk():,} acknowledged {when}" if ledger.crashes else ""
        yield f"  lost {len(ledger.lost())}{of}; completions in doubt {len(ledger.in_doubt)}"
        oldest = f", the oldest {max(undone) * 1000:.0f} ms before the kill" if undone else ""
        yield f"  completed twice {len(doubled)}; rolled back by a failover and run again {len(undone)}{oldest}"
        if ledger.crashes:
            yield f"  from kill to promotion {_spread(crash.promoted - crash.killed for crash in ledger.crashes)}"
        if resumed := self._resumed():
            yield f"  from promotion to the first job leased {_spread(resumed)}"
        for what in self.missed():
            yield f"  RESUME_GOAL_S MISSED: {what}"

    def _resumed(self) -> list[float]:
        if not self.worked:
            return []
        return [after for crash in self.ledger.crashes if (after := self.ledger.resumed_after(crash)) is not None]


def _spread(seconds: Iterable[float]) -> str:
    ordered = sorted(seconds)
    return f"p50 {statistics.median(ordered):.2f} s, max {ordered[-1]:.2f} s"


def main() -> int:
    """Run the chosen scenarios; returns 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m chaos.failovers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sentinel", type=int, default=40, help="failovers of a Sentinel group (default %(default)s)")
    parser.add_argument("--cluster", type=int, default=40, help="failovers in a cluster (default %(default)s)")
    parser.add_argument("--reshards", type=int, default=50, help="slot moves in a cluster (default %(default)s)")
    parser.add_argument("--held", type=int, default=2, help="kills while replicas lag (default %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=30, help="start no new fault after this many minutes (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="random seed (default: random)")
    chosen = parser.parse_args()
    seed, until = chosen.seed, monotonic() + 60 * chosen.minutes
    print(f"seed {seed}: repeat with --seed {seed}; Python {platform.python_version()}", flush=True)
    missed = False
    for report in _runs(chosen, seed, until):
        print(*report.lines(), sep="\n", flush=True)
        missed = missed or bool(report.missed())
    return int(missed)


def _runs(chosen: argparse.Namespace, seed: int, until: float) -> Iterator[Report]:
    if chosen.sentinel:
        with sentinel_group() as group:
            yield from _failovers(Sentinels(group), chosen.sentinel, chosen.held, seed, until)
    if chosen.cluster:
        with cluster_of_six() as cluster:
            yield from _failovers(Nodes(cluster), chosen.cluster, chosen.held, seed, until)
    if chosen.reshards:
        with cluster_of_six(node_timeout_ms=15_000) as cluster:  # no server dies here, so none may be called dead
            yield reshard(cluster, chosen.reshards, seed, until)


def sentinel_group() -> SentinelGroup:
    """A Sentinel group whose `replicated` level includes the primary's disk."""
    return SentinelGroup(down_after_ms=DOWN_AFTER_MS, appendonly=True, appendfsync="always")


def cluster_of_six(node_timeout_ms: int = DOWN_AFTER_MS) -> Cluster:
    """A cluster whose `replicated` level includes the primary's disk."""
    return Cluster(replicas=1, node_timeout_ms=node_timeout_ms, appendonly=True, appendfsync="always")


def _failovers(topology: Topology, times: int, held: int, seed: int, until: float) -> Iterator[Report]:
    first = fail_over(topology, times, seed, until)
    yield first
    if held and not first.ledger.faults:  # after a fault the servers' state is unknown
        yield hold_back(topology, held, seed, topology.level)
        yield hold_back(topology, held, seed, MEMORY)


if __name__ == "__main__":
    sys.exit(main())
