"""The pauses: each worker is repeatedly stopped or cut off for longer than its lease.

A pause ends only after other workers have leased the worker's jobs, so every pause tests something. Meanwhile this
program also tries each stale action with the old fence: all must be refused.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.waiting import wait_until

from chaos.nemesis.fault import Fault
from chaos.nemesis.network import Partition
from chaos.nemesis.processes import Part, Stop
from chaos.pauses.site import Hand, Site
from windlass import JobRecord, Lease, Queue

MIN_LEASES, MAX_LEASES = 1.3, 2.5  # leases
TAKEOVER_TIMEOUT_S = 15.0  # seconds for other workers to take over
BACK_TIMEOUT_S = 30.0  # seconds until a resumed worker has a job
MAX_TRIED = 3  # stale leases tried per pause


@dataclass(frozen=True)
class Pause:
    """One pause of one worker, in CLOCK_MONOTONIC seconds."""

    kind: str
    worker: str
    began: float
    ended: float
    held: int
    """Number of jobs it held."""
    taken: int
    """Number of these leased by others before it was resumed."""
    back_after: float | None
    """Seconds from its end until the worker had a job again; None if it never did."""


@dataclass
class Toll:
    """The totals of all pauses."""

    pauses: list[Pause] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Refused actions with old fences, by kind."""
    accepted: list[str] = field(default_factory=list)
    """Accepted ones."""
    problems: list[str] = field(default_factory=list)

    def of(self, kind: str) -> list[Pause]:
        return [pause for pause in self.pauses if pause.kind == kind]


class Pausing:
    """One thread per worker, until there were enough pauses of each kind."""

    def __init__(self, site: Site, wanted: dict[str, int], seed: int, *, part: Part = "worker") -> None:
        self.toll = Toll()
        self._site = site
        self._left = dict(wanted)
        self._part = part
        self._lock = threading.Lock()
        # Some worker must remain to take over.
        self._room = threading.Semaphore(max(1, len(site.hands) * 2 // 3))
        self._threads = [
            threading.Thread(target=self._guarded, args=(hand, random.Random(f"{seed} {hand.name}")), name=hand.name)
            for hand in site.hands
        ]

    def run(self) -> Toll:
        """Returns when all pauses are done."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        return self.toll

    def _guarded(self, hand: Hand, chance: random.Random) -> None:
        kind = "partition" if hand.namespace else "stop"
        try:
            while self._take(kind):
                with self._room:
                    pause = self._pause(kind, hand, chance)
                back = self._back_at_work(hand, pause)
                with self._lock:
                    self.toll.pauses.append(back)
        except Exception as error:
            with self._lock:
                self.toll.problems.append(f"{hand.name}: {error!r}")

    def _take(self, kind: str) -> bool:
        with self._lock:
            self._left[kind] = self._left.get(kind, 0) - 1
            return self._left[kind] >= 0

    def _pause(self, kind: str, hand: Hand, chance: random.Random) -> Pause:
        length = chance.uniform(MIN_LEASES, MAX_LEASES) * self._site.lease
        fault = self._fault(hand)
        wait_until(lambda: self._site.held_by(hand), f"{hand.name} to work", timeout=BACK_TIMEOUT_S, interval=0.05)
        with fault:
            began = time.monotonic()
            held = self._site.held_by(hand)
            time.sleep(length)
            self._await_takeover(hand, held)
            taken = self._try_stale(hand, held)
        return Pause(kind, hand.name, began, time.monotonic(), len(held), taken, None)

    def _fault(self, hand: Hand) -> Fault:
        return Partition(hand.namespace) if hand.namespace else Stop(hand, self._part)

    def _await_takeover(self, hand: Hand, held: list[JobRecord]) -> None:
        """Wait until another worker has leased one of its jobs; in vain if all were finished before the pause."""

        def settled() -> bool:
            now = [self._site.app.queue(record.queue).get(record.id) for record in held]
            ours = [record for record in now if record is not None and hand.holds(record.holder)]
            return not ours

        try:
            wait_until(settled, "others to take over", timeout=TAKEOVER_TIMEOUT_S, interval=0.02)
        except TimeoutError as error:
            with self._lock:
                self.toll.problems.append(f"{hand.name}: {error}")

    def _try_stale(self, hand: Hand, held: list[JobRecord]) -> int:
        """Try each stale action with the old fences. Returns how many of the jobs other workers held."""
        taken = 0
        for record in held:
            queue = self._site.app.queue(record.queue)
            now = queue.get(record.id)
            if now is None or now.fence is None or hand.holds(now.holder):
                continue
            taken += 1
            if taken <= MAX_TRIED:
                self._try_all(queue, record)
        return taken

    def _try_all(self, queue: Queue, record: JobRecord) -> None:
        assert record.fence is not None
        lease = Lease(record.queue, record.id, record.data, record.fence, holder=record.holder)
        deeds: dict[str, Callable[[], bool]] = {
            "progress": lambda: queue.progress(lease, 0.9),
            "extend": lambda: queue.extend(lease, 60),
            "release": lambda: queue.release(lease),
            "retry": lambda: queue.retry(lease, delay=0),
            "fail": lambda: queue.fail(lease, "stale"),
            "complete": lambda: queue.complete(lease),
        }
        for name, deed in deeds.items():
            ours = deed()
            with self._lock:
                if ours:
                    self.toll.accepted.append(f"{name} of {record.queue}/{record.id} with the old fence {record.fence}")
                else:
                    self.toll.refused[name] += 1

    def _back_at_work(self, hand: Hand, pause: Pause) -> Pause:
        """Wait until the worker has a job again, so that its next pause has a job to lose."""
        try:
            wait_until(lambda: self._site.held_by(hand), "work", timeout=BACK_TIMEOUT_S, interval=0.02)
        except TimeoutError:
            with self._lock:
                self.toll.problems.append(f"{hand.name} had no job {BACK_TIMEOUT_S:g} s after a {pause.kind}")
            return pause
        return Pause(*_but_last(pause), time.monotonic() - pause.ended)


def _but_last(pause: Pause) -> tuple[str, str, float, float, int, int]:
    return pause.kind, pause.worker, pause.began, pause.ended, pause.held, pause.taken
