"""The pauses: each worker is stopped, or cut off, again and again, each time for longer than its lease.

A pause ends only when somebody else has taken over what the worker had, so none of them is in vain. While that other
attempt runs, what a stale worker might do is tried with its old fence by us as well, deed by deed: all must be refused.
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

SHORTEST, LONGEST = 1.3, 2.5  # leases
TAKEN_WITHIN = 15.0  # seconds for others to take over
BACK_WITHIN = 30.0  # seconds for a worker to work again
MOST_TRIED = 3  # stale leases that are tried for each pause


@dataclass(frozen=True)
class Pause:
    """One pause of one worker, in CLOCK_MONOTONIC seconds."""

    kind: str
    worker: str
    began: float
    ended: float
    held: int
    """How many jobs it had in its hands."""
    taken: int
    """How many of them were leased by others before it went on."""
    back_after: float | None
    """Seconds from its end until the worker had a job again; None if it never had."""


@dataclass
class Toll:
    """What came of all pauses."""

    pauses: list[Pause] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Deeds under old fences that we tried and that were refused, by their kind."""
    accepted: list[str] = field(default_factory=list)
    """And those that were not."""
    problems: list[str] = field(default_factory=list)

    def of(self, kind: str) -> list[Pause]:
        return [pause for pause in self.pauses if pause.kind == kind]


class Pausing:
    """One thread for each worker, until there were enough pauses of each kind."""

    def __init__(self, site: Site, wanted: dict[str, int], seed: int, *, part: Part = "worker") -> None:
        self.toll = Toll()
        self._site = site
        self._left = dict(wanted)
        self._part = part
        self._lock = threading.Lock()
        # Somebody must be there to take over.
        self._room = threading.Semaphore(max(1, len(site.hands) * 2 // 3))
        self._threads = [
            threading.Thread(target=self._guarded, args=(hand, random.Random(f"{seed} {hand.name}")), name=hand.name)
            for hand in site.hands
        ]

    def run(self) -> Toll:
        """Returns when all is done."""
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
        length = chance.uniform(SHORTEST, LONGEST) * self._site.lease
        fault = self._fault(hand)
        wait_until(lambda: self._site.held_by(hand), f"{hand.name} to work", timeout=BACK_WITHIN, interval=0.05)
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
        """Wait until something of what it held is another's; in vain if all of it was done just before the pause."""

        def settled() -> bool:
            now = [self._site.app.queue(record.queue).get(record.id) for record in held]
            ours = [record for record in now if record is not None and hand.holds(record.holder)]
            return not ours

        try:
            wait_until(settled, "others to take over", timeout=TAKEN_WITHIN, interval=0.02)
        except TimeoutError as error:
            with self._lock:
                self.toll.problems.append(f"{hand.name}: {error}")

    def _try_stale(self, hand: Hand, held: list[JobRecord]) -> int:
        """Do with the old fences what a stale worker might. How many of the jobs were in the hands of others."""
        taken = 0
        for record in held:
            queue = self._site.app.queue(record.queue)
            now = queue.get(record.id)
            if now is None or now.fence is None or hand.holds(now.holder):
                continue
            taken += 1
            if taken <= MOST_TRIED:
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
                    self.toll.accepted.append(
                        f"{name} of {record.queue}/{record.id} under the old fence {record.fence}"
                    )
                else:
                    self.toll.refused[name] += 1

    def _back_at_work(self, hand: Hand, pause: Pause) -> Pause:
        """Wait until the worker has a job again: it may not be paused before, or there would be nothing to lose."""
        try:
            wait_until(lambda: self._site.held_by(hand), "work", timeout=BACK_WITHIN, interval=0.02)
        except TimeoutError:
            with self._lock:
                self.toll.problems.append(f"{hand.name} did not work again {BACK_WITHIN:g} s after a {pause.kind}")
            return pause
        return Pause(*_but_last(pause), time.monotonic() - pause.ended)


def _but_last(pause: Pause) -> tuple[str, str, float, float, int, int]:
    return pause.kind, pause.worker, pause.began, pause.ended, pause.held, pause.taken
