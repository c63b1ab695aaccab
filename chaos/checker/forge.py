"""Logs of invented runs: records as a real run would write them, with every promise kept.

    python -m chaos.checker.forge --jobs 10000000 FOLDER

A small model of a queue replaces the server, and time is a counter. So a log of any length can be made without a run of
that length, to measure the checker and to plant single violations (tests/chaos).
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from chaos.log import (
    Answered,
    Beaten,
    Began,
    Claim,
    Ended,
    EnqueueAsked,
    Extended,
    Fault,
    Finished,
    Healed,
    Inspected,
    Left,
    Record,
    Refused,
    Sent,
    SettleAsked,
    Started,
)

NS_PER_MS = 1_000_000
LEASE_MS = 1000  # ms
_EPOCH = 1_700_000_000_000_000
_WALL = 1_700_000_000_000  # ms since 1970 when time is 0
_FLUSH = 1 << 20

_encode = msgspec.msgpack.Encoder().encode


# -- a queue ---------------------------------------------------------------------------------------


class _Job:
    __slots__ = (
        "blocked",
        "check",
        "failures",
        "id",
        "max_failures",
        "max_stalls",
        "priority",
        "run_at",
        "seq",
        "stalls",
    )

    def __init__(self, asked: EnqueueAsked) -> None:
        self.id = asked.job
        self.check = asked.check
        self.priority = asked.priority
        self.max_failures = asked.max_failures
        self.max_stalls = asked.max_stalls
        self.failures = 0
        self.stalls = 0
        self.seq = 0
        self.run_at = 0  # while it is scheduled
        self.blocked: EnqueueAsked | None = None


class _Leased:
    __slots__ = ("cancelled", "fence", "holder", "job")

    def __init__(self, job: _Job, fence: int, holder: str) -> None:
        self.job = job
        self.fence = fence
        self.holder = holder
        self.cancelled = False


class Queue:
    """A model of a queue, as far as the log shows it. `now` and `wall` are times in ms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.step = 0
        self.jobs: dict[str, _Job] = {}  # waiting jobs
        self.leases: dict[str, _Leased] = {}
        self.dead: dict[str, tuple[_Job, str, str]] = {}
        self._ready: list[tuple[int, int, str]] = []
        self._scheduled: list[tuple[int, int, str]] = []
        self._seq = 0
        self._fence = _EPOCH
        self._holders: dict[str, int] = {}
        self._held: dict[str, dict[str, _Leased]] = {}
        self.grace = 0

    @property
    def is_empty(self) -> bool:
        return not self.jobs and not self.leases

    @property
    def waiting(self) -> int:
        return len(self.jobs)

    def enqueue(self, jobs: Iterable[EnqueueAsked], wall: int, *, keep: bool = False) -> str:
        self.step += 1
        self._promote(wall)
        return "".join([self._put(asked, wall, keep) for asked in jobs])

    def _put(self, asked: EnqueueAsked, wall: int, keep: bool) -> str:
        there = self.jobs.get(asked.job)
        lease = self.leases.get(asked.job)
        if keep and (there or lease):
            return "k"
        if lease is not None:
            lease.job.blocked = asked
            return "b"
        if there is not None:
            there.check, there.failures, there.stalls = asked.check, 0, 0
            there.max_failures, there.max_stalls = asked.max_failures, asked.max_stalls
            return "u"
        run_at = asked.run_at or (wall + asked.delay if asked.delay else 0)
        self._place(_Job(asked), run_at, wall)
        return "a"

    def _place(self, job: _Job, run_at: int, wall: int, *, old: bool = False) -> None:
        self.jobs[job.id] = job
        if run_at > wall:
            self._seq += 1
            job.seq, job.run_at = self._seq, run_at
            heapq.heappush(self._scheduled, (run_at, job.seq, job.id))
            return
        if not old:
            self._seq += 1
            job.seq = self._seq
        job.run_at = 0
        heapq.heappush(self._ready, (job.priority, job.seq, job.id))

    def _promote(self, wall: int) -> None:
        moved = 0
        while self._scheduled and self._scheduled[0][0] <= wall and moved < 1000:
            _, seq, id = heapq.heappop(self._scheduled)
            job = self.jobs.get(id)
            if job is not None and job.run_at and job.seq == seq:
                moved += 1
                self._place(job, 0, wall)

    def cancel(self, ids: Iterable[str]) -> tuple[bool, ...]:
        self.step += 1
        done = []
        for id in ids:
            lease = self.leases.get(id)
            if lease is not None:
                lease.cancelled = True
            done.append(lease is not None or self.jobs.pop(id, None) is not None)
        return tuple(done)

    def beat(self, holder: str, now: int, *, register: bool = False) -> bool:
        self.step += 1
        known = holder in self._holders
        if known or register:
            self._holders[holder] = now + LEASE_MS
        return known or register

    def extend(self, id: str, fence: int) -> bool:
        self.step += 1
        lease = self.leases.get(id)
        return lease is not None and lease.fence == fence and not lease.cancelled

    def turn(
        self, settles: Iterable[SettleAsked], want: int, holder: str, wall: int
    ) -> tuple[tuple[bool, ...], tuple[Claim, ...], int]:
        settled = tuple([self._settle(asked, wall) for asked in settles])
        self._promote(wall)
        recovered = self._sweep(wall)
        claims = self._lease(want, holder, wall) if holder in self._holders else ()
        if any(settled) or claims or recovered:
            self.step += 1
        return settled, claims, recovered

    def _settle(self, asked: SettleAsked, wall: int) -> bool:
        lease = self.leases.get(asked.job)
        if lease is None or lease.fence != asked.fence:
            return False
        self._end_lease(lease)
        job = lease.job
        if asked.outcome == "completed" or lease.cancelled:
            self._let_go(job, wall)
        elif asked.outcome == "released":
            self._put_back(job, 0, wall, old=True)
        elif asked.outcome == "retried":
            job.failures += 1
            self._put_back(job, wall + asked.delay if asked.delay else 0, wall, old=False)
        elif asked.outcome == "snoozed":
            self._put_back(job, wall + asked.delay if asked.delay else 0, wall, old=False)
        elif asked.outcome == "crashed":
            job.stalls += asked.alone
            if asked.alone and job.stalls > job.max_stalls:
                self._bury(job, "dead", "crashed", wall)
            else:
                self._put_back(job, wall + asked.delay if asked.delay else 0, wall, old=True)
        elif asked.outcome == "failed":
            job.failures += 1
            self._bury(job, "dead", "failed", wall)
        else:
            self._bury(job, "broken", "undecodable", wall)
        return True

    def _end_lease(self, lease: _Leased) -> None:
        del self.leases[lease.job.id]
        self._held[lease.holder].pop(lease.job.id, None)

    def _let_go(self, job: _Job, wall: int) -> None:
        """The job ended; a job blocked by it becomes a job of its own."""
        if job.blocked is not None:
            self._place(_Job(job.blocked), 0, wall)

    def _bury(self, job: _Job, where: str, reason: str, wall: int) -> None:
        self.dead[job.id] = (job, where, reason)
        self._let_go(job, wall)

    def _put_back(self, job: _Job, run_at: int, wall: int, *, old: bool) -> None:
        if job.blocked is not None:
            asked, job.blocked = job.blocked, None
            job.check, job.failures, job.stalls, run_at = asked.check, 0, 0, 0
        self._place(job, run_at, wall, old=old)

    def _sweep(self, now: int) -> int:
        if now < self.grace:
            return 0
        count = 0
        for holder in [holder for holder, end in self._holders.items() if end <= now]:
            del self._holders[holder]
            for lease in list(self._held.pop(holder, {}).values()):
                count += 1
                del self.leases[lease.job.id]
                job = lease.job
                job.stalls += 1
                if lease.cancelled:
                    self._let_go(job, now)
                elif job.stalls > job.max_stalls:
                    self._bury(job, "dead", "stalled", now)
                else:
                    self._put_back(job, 0, now, old=True)
        return count

    def unregister_holder(self, holder: str) -> None:
        """A holder without leases deregisters."""
        if not self._held.get(holder):
            self._holders.pop(holder, None)

    def _lease(self, want: int, holder: str, now: int) -> tuple[Claim, ...]:
        self._fence = max(self._fence, _EPOCH + now * 1000)
        held = self._held.setdefault(holder, {})
        claims: list[Claim] = []
        while len(claims) < want and self._ready:
            priority, seq, id = heapq.heappop(self._ready)
            job = self.jobs.get(id)
            if job is None or job.run_at or job.seq != seq:
                continue
            del self.jobs[id]
            self._fence += 1
            self.leases[id] = held[id] = _Leased(job, self._fence, holder)
            claims.append(Claim(id, self._fence, job.check, priority, job.failures, job.stalls))
        if claims:
            self._holders[holder] = max(self._holders[holder], now + LEASE_MS)
        return tuple(claims)


# -- processes -------------------------------------------------------------------------------------


class Pen:
    """Writes the log file of one process."""

    def __init__(self, folder: Path, role: str, pid: int, t: int, holder: str = "") -> None:
        self._file = (folder / f"{role}-{pid}-{t}.log").open("wb", buffering=_FLUSH)
        self.pid = pid
        self.calls = 0
        self.write(Began(t, pid, role, holder, _WALL + t // NS_PER_MS))

    def write(self, record: Record) -> None:
        body = _encode(record)
        self._file.write(len(body).to_bytes(4, "little") + body)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Mix:
    """Probabilities and rates of events."""

    batch: int = 100
    singles: float = 0.01
    timed: float = 0.04
    cancelled: float = 0.002
    priorities: float = 0.1
    retried: float = 0.02
    released: float = 0.005
    crashed: float = 0.003
    snoozed: float = 0.005
    failed: float = 0.003
    broken: float = 0.0005
    progress: float = 0.005
    unheard: float = 0.01  # share of a producer's calls that get no answer
    hold: int = 3  # ms that a worker takes for a batch, on average
    idle: int = 20  # ms between lease calls on an empty queue
    pace: int = 3  # ms between two batches of a producer, on average
    disturb_every: int = 400  # ms between two faults


SMALL = Mix(
    batch=12,
    singles=0.08,
    timed=0.12,
    cancelled=0.03,
    retried=0.08,
    released=0.05,
    crashed=0.05,
    snoozed=0.03,
    failed=0.03,
    broken=0.02,
    progress=0.05,
    unheard=0.1,
    hold=60,
    idle=100,
    pace=400,
    disturb_every=150,
)


class _Producer:
    def __init__(self, world: World, number: int, queue: Queue, jobs: int) -> None:
        self.world = world
        self.queue = queue
        self.name = f"p{number}"
        self.pen = world.pen("producer")
        self._left = jobs
        self._number = 0
        self._cancels: deque[tuple[int, str]] = deque()

    def go(self) -> int | None:
        """Send a batch; returns when to continue, None when all jobs are sent."""
        world, mix = self.world, self.world.mix
        while self._cancels and self._cancels[0][0] < world.t:
            self._cancel(self._cancels.popleft()[1])
        if not self._left:
            return world.t + 50 * NS_PER_MS if self._cancels else None
        if self.queue.waiting > 200 * mix.batch:
            return world.t + 5 * NS_PER_MS
        batch = [self._job() for _ in range(min(mix.batch, self._left))]
        self._left -= len(batch)
        jobs = tuple({job.job: job for job in batch}.values())
        if world.chance.random() < mix.unheard:
            self._send_in_doubt(jobs)
        else:
            self._send(jobs)
        return world.t + world.chance.randrange(mix.pace // 2, 2 * mix.pace) * NS_PER_MS

    def _job(self) -> EnqueueAsked:
        chance, mix = self.world.chance, self.world.mix
        self._number += 1
        id = f"{self.name}-{self._number:08d}"
        check = crc32(id.encode())
        drawn = chance.random()
        if drawn < mix.singles:
            return EnqueueAsked(f"one-{self.queue.name}-{chance.randrange(10)}", check, singleton=True)
        drawn -= mix.singles
        if drawn < mix.cancelled:
            self._cancels.append((self.world.t + 20 * NS_PER_MS, id))
            return EnqueueAsked(id, check, delay=5000)
        drawn -= mix.cancelled
        priority = chance.randrange(10) if chance.random() < mix.priorities else 5
        if drawn < mix.timed:
            ms = chance.randrange(20, 1500)
            if chance.random() < 0.5:
                return EnqueueAsked(id, check, priority, delay=ms)
            return EnqueueAsked(id, check, priority, run_at=self.world.wall + ms)
        return EnqueueAsked(id, check, priority, max_stalls=chance.choice((3, 3, 3, 4)))

    def _send(self, jobs: tuple[EnqueueAsked, ...], *, keep: bool = False) -> None:
        world, pen = self.world, self.pen
        pen.calls += 1
        pen.write(Sent(world.tick(), pen.calls, self.queue.name, jobs))
        world.tick()
        statuses = self.queue.enqueue(jobs, world.wall, keep=keep)
        world.answer(pen, self.queue, statuses=statuses, level="fsync")

    def _send_in_doubt(self, jobs: tuple[EnqueueAsked, ...]) -> None:
        """Lose the answer and resend until there is one."""
        world, pen = self.world, self.pen
        pen.calls += 1
        pen.write(Sent(world.tick(), pen.calls, self.queue.name, jobs))
        world.tick()
        if world.chance.random() < 0.6:
            self.queue.enqueue(jobs, world.wall)
        pen.write(Refused(world.tick(), pen.calls, "OutcomeUnknown", True))
        self._send(jobs, keep=True)

    def _cancel(self, id: str) -> None:
        world, pen = self.world, self.pen
        pen.calls += 1
        pen.write(Sent(world.tick(), pen.calls, self.queue.name, cancels=(id,)))
        world.tick()
        world.answer(pen, self.queue, cancelled=self.queue.cancel((id,)))


class _Worker:
    def __init__(self, world: World, queue: Queue) -> None:
        self.world = world
        self.queue = queue
        self.runner = world.pen("runner")
        self.supervisor = world.pen("supervisor")
        self.holder = f"w{self.runner.pid}"
        self.gone = False
        self.stopped = False
        self.beat_at = world.t
        self.hand: list[tuple[SettleAsked, str]] = []  # outcomes of the current attempts, and how each ends
        self._beat(register=True)

    def _beat(self, *, register: bool = False) -> bool:
        world = self.world
        world.tick()
        known = self.queue.beat(self.holder, world.wall, register=register)
        self.supervisor.write(
            Beaten(world.t, self.queue.name, self.holder, _EPOCH, self.queue.step, world.wall, LEASE_MS, known)
        )
        self.beat_at = world.t + LEASE_MS * NS_PER_MS // 3
        return known

    def go(self) -> int | None:
        """One turn; returns when to continue."""
        world = self.world
        if self.gone:
            return None
        if self.stopped:
            return world.t + 20 * NS_PER_MS
        if world.t >= self.beat_at and not self._beat():
            self.leave()
            return None
        self._turn()
        if self.hand:
            return world.t + world.chance.randrange(world.mix.hold // 2, 2 * world.mix.hold) * NS_PER_MS
        return world.t + world.mix.idle * NS_PER_MS

    def _finish(self) -> list[SettleAsked]:
        """End all attempts. Returns the outcomes in the order of the answer: completed jobs first."""
        pen, hand = self.runner, self.hand
        self.hand = []
        for asked, how in hand:
            if how:
                pen.write(Finished(self.world.tick(), pen.pid, self.queue.name, asked.job, asked.fence, how))
        return sorted([asked for asked, _ in hand], key=lambda asked: asked.outcome != "completed")

    def _turn(self) -> None:
        world, queue, pen = self.world, self.queue, self.runner
        sent = self._finish()
        pen.calls += 1
        pen.write(Sent(world.tick(), pen.calls, queue.name, (), tuple(sent), want=world.mix.batch, holder=self.holder))
        world.tick()
        settled, claims, recovered = queue.turn(sent, world.mix.batch, self.holder, world.wall)
        world.answer(
            pen,
            queue,
            settled=settled,
            claims=claims,
            recovered=recovered,
            holder=self.holder,
            lease=LEASE_MS if claims else 0,
        )
        self.hand = [self._begin(claim) for claim in claims]

    def _begin(self, claim: Claim) -> tuple[SettleAsked, str]:
        """Start one attempt, with a random outcome."""
        world, pen, mix = self.world, self.runner, self.world.mix
        name, job, fence = self.queue.name, claim.job, claim.fence
        if world.chance.random() < mix.released:
            return SettleAsked(job, fence, "released"), ""
        attempt = claim.failures + claim.stalls + 1
        pen.write(Started(world.tick(), pen.pid, name, job, fence, claim.check, attempt))
        drawn = world.chance.random()
        if drawn < mix.progress:
            world.tick()
            kept = self.queue.extend(job, fence)
            pen.write(Extended(world.t, name, job, fence, kept, _EPOCH, self.queue.step, world.wall, 0))
        drawn -= mix.progress
        if 0 < drawn < mix.crashed:
            return SettleAsked(job, fence, "crashed", world.chance.choice((0, 50, 300)), alone=True), ""
        drawn -= mix.crashed
        if 0 < drawn < mix.snoozed:
            return SettleAsked(job, fence, "snoozed", world.chance.choice((0, 0, 30, 200))), "raised"
        drawn -= mix.snoozed
        if 0 < drawn < mix.retried + mix.failed + mix.broken:
            if drawn < mix.retried and claim.failures < 10:
                return SettleAsked(job, fence, "retried", world.chance.choice((0, 0, 30, 200))), "raised"
            return SettleAsked(job, fence, "failed" if drawn < mix.retried + mix.failed else "broken"), "raised"
        return SettleAsked(job, fence, "completed"), "ok"

    def leave(self) -> None:
        """Exit normally."""
        world = self.world
        self.gone = True
        self.queue.unregister_holder(self.holder)
        for pen in (self.runner, self.supervisor):
            world.driver.write(Ended(world.tick(), pen.pid, "exit 0"))
            pen.close()

    def kill(self) -> None:
        """Die at a random moment: with a call in flight, with leased jobs."""
        world, pen = self.world, self.runner
        self.gone = True
        if self.stopped:
            return
        if world.chance.random() < 0.6:
            pen.calls += 1
            want = world.mix.batch if world.chance.random() < 0.5 else 0
            sent = self._finish()
            pen.write(Sent(world.tick(), pen.calls, self.queue.name, (), tuple(sent), want=want, holder=self.holder))
            if world.chance.random() < 0.5:
                world.tick()
                self.queue.turn(sent, want, self.holder, world.wall)
        whole = world.chance.random() < 0.5
        pids = (self.runner.pid, self.supervisor.pid) if whole else (self.runner.pid,)
        world.driver.write(Fault(world.tick(), "kill worker" if whole else "kill runner", True, pids))
        for pid in pids:
            world.driver.write(Ended(world.tick(), pid, "signal 9"))
        if not whole:
            self._reclaim()
        self.runner.close()
        self.supervisor.close()

    def _reclaim(self) -> None:
        """The supervisor sees that its runner died, and returns the runner's jobs."""
        world, pen, queue = self.world, self.supervisor, self.queue
        held = [lease for lease in queue.leases.values() if lease.holder == self.holder]
        outcome = world.chance.choice(("released", "crashed"))
        settles = tuple(SettleAsked(lease.job.id, lease.fence, outcome, alone=False) for lease in held)
        pen.calls += 1
        pen.write(Sent(world.tick(), pen.calls, queue.name, (), settles))
        world.tick()
        settled, _, recovered = queue.turn(settles, 0, "", world.wall)
        world.answer(pen, queue, settled=settled, recovered=recovered)
        queue.unregister_holder(self.holder)

    def stop(self) -> None:
        """Stand still for longer than the lease, then find all leases lost."""
        world = self.world
        self.stopped = True
        world.driver.write(Fault(world.tick(), "stop worker", True, (self.runner.pid, self.supervisor.pid)))
        world.at(world.t + (LEASE_MS + 300) * NS_PER_MS, self._go_on)

    def _go_on(self) -> None:
        world, pen, queue = self.world, self.runner, self.queue
        if self.gone:
            return
        self.stopped = False
        world.driver.write(Fault(world.tick(), "stop worker", False, (self.runner.pid, self.supervisor.pid)))
        if self.hand:
            sent = self._finish()
            pen.calls += 1
            pen.write(Sent(world.tick(), pen.calls, queue.name, (), tuple(sent), holder=self.holder))
            world.tick()
            settled, _, recovered = queue.turn(sent, 0, self.holder, world.wall)
            world.answer(pen, queue, settled=settled, recovered=recovered, holder=self.holder)
        self.beat_at = world.t
        if not self._beat():
            self.leave()
            world.hire(queue)


class World:
    """Time, randomness and all actors."""

    def __init__(self, folder: Path, jobs: int, *, seed: int, mix: Mix, producers: int, workers: int) -> None:
        self.folder = folder
        self.mix = mix
        self.chance = random.Random(seed)
        self.t = 1000 * NS_PER_MS
        self._pid = 1000
        self._pens: list[Pen] = []
        self._plans: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self.driver = self.pen("driver")
        self.queues = [Queue("alpha"), Queue("beta")]
        self.workers: list[_Worker] = []
        self.busy = producers
        self.faults_end = False
        for number in range(producers):
            share = jobs // producers + (number < jobs % producers)
            self._follow(_Producer(self, number, self.queues[number % 2], share).go, self._producer_done)
        for number in range(workers):
            self.hire(self.queues[number % 2])

    @property
    def wall(self) -> int:
        return _WALL + self.t // NS_PER_MS

    def tick(self) -> int:
        """Advance the time a little."""
        self.t += 7_000
        return self.t

    def pen(self, role: str) -> Pen:
        self._pid += 1
        pen = Pen(self.folder, role, self._pid, self.tick())
        self._pens.append(pen)
        return pen

    def answer(self, pen: Pen, queue: Queue, **said: object) -> None:
        given = {"statuses": "", "level": "", "settled": (), "cancelled": (), "claims": (), "recovered": 0, **said}
        pen.write(
            Answered(self.tick(), pen.calls, queue.name, _EPOCH, queue.step, self.wall, wall=self.wall, **given)  # type: ignore[arg-type]
        )

    def at(self, t: int, do: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._plans, (t, self._planned, do))

    def _follow(self, go: Callable[[], int | None], done: Callable[[], None] = lambda: None) -> None:
        def again() -> None:
            t = go()
            if t is None:
                done()
            else:
                self.at(t, again)

        self.at(self.t, again)

    def hire(self, queue: Queue) -> None:
        self.workers = [worker for worker in self.workers if not worker.gone]
        worker = _Worker(self, queue)
        self.workers.append(worker)
        self._follow(worker.go)

    def _producer_done(self) -> None:
        self.busy -= 1

    def run(self) -> None:
        """Run from the first job to the final inspection."""
        self.at(self.t + self.mix.disturb_every * NS_PER_MS, self._disturb)
        while self.busy or not all(queue.is_empty for queue in self.queues) or not self.faults_end:
            t, _, do = heapq.heappop(self._plans)
            self.t = max(self.t, t)
            do()
        for worker in self.workers:
            if not worker.gone:
                worker.leave()
        self._look()
        for pen in self._pens:
            pen.close()

    def _disturb(self) -> None:
        if not self.busy:
            if any(worker.stopped and not worker.gone for worker in self.workers):
                self.at(self.t + 100 * NS_PER_MS, self._disturb)
                return
            self.driver.write(Healed(self.tick()))
            self.faults_end = True
            return
        worker = self.chance.choice(self.workers)
        drawn = self.chance.random()
        if drawn < 0.6:
            if not worker.gone and not worker.stopped:
                worker.kill()
                self.hire(worker.queue)
        elif drawn < 0.8:
            if not worker.gone and not worker.stopped:
                worker.stop()
        else:
            self._kill_server()
        self.at(self.t + self.mix.disturb_every * NS_PER_MS, self._disturb)

    def _kill_server(self) -> None:
        """The server is down for a while. Live holders get time to send a heartbeat afterwards."""
        self.driver.write(Fault(self.tick(), "kill server", True, (0,)))
        self.t += 200 * NS_PER_MS
        self.driver.write(Fault(self.tick(), "kill server", False, (0,)))
        for queue in self.queues:
            queue.grace = self.wall + LEASE_MS

    def _look(self) -> None:
        for queue in self.queues:
            counts = {"ready": 0, "scheduled": 0, "running": 0, "blocked": 0, "dead": 0, "broken": 0}
            for id, (job, where, reason) in queue.dead.items():
                counts[where] += 1
                why = reason if where == "dead" else ""
                self.driver.write(Left(self.tick(), queue.name, id, where, job.failures, job.stalls, why, job.check))
            self.driver.write(Inspected(self.tick(), queue.name, True, 1.0, 0, 3, counts))


def forge(
    folder: Path, jobs: int, *, seed: int = 1, mix: Mix | None = None, producers: int = 4, workers: int = 6
) -> None:
    """Write the log of a run with `jobs` jobs into an empty folder."""
    World(folder, jobs, seed=seed, mix=mix or Mix(), producers=producers, workers=workers).run()


def main() -> int:
    """Command line: write a log."""
    parser = argparse.ArgumentParser(prog="python -m chaos.checker.forge", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=100)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if any(chosen.folder.iterdir()):
        parser.error(f"{chosen.folder} is not empty")
    began = time.monotonic()
    forge(chosen.folder, chosen.jobs, seed=chosen.seed, mix=Mix(batch=chosen.batch))
    size = sum(file.stat().st_size for file in chosen.folder.iterdir())
    print(f"{chosen.jobs} jobs, {size / 1e6:.0f} MB, in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
