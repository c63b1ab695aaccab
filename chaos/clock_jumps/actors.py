"""One load program: `python -m chaos.clock_jumps.actors URL JOURNAL SEED SECONDS`.

After the first line on its standard input it creates and abandons no more jobs; it exits at the end of input. Its
threads lease jobs and complete, extend, hold or abandon them; another one schedules new ones. Each action is a line of
JSON in the journal, with the times before the request and after the answer.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from windlass import Lease, Queue, Windlass
from windlass.errors import WindlassError

QUEUE = "jumps"
EXTENDS_PER_LEASE = 3  # extensions per lease time
TAKER_THREADS = 4
MAX_WAIT_S = 0.3  # maximum seconds that a taker waits for a job


class Journal:
    """The journal of this program. Each line is written with one call."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, id: str, asked: float, answered: float, **more: Any) -> None:
        line = json.dumps([what, id, asked, answered, more]) + "\n"
        os.write(self._fd, line.encode())


class Actor:
    """State shared by the threads."""

    def __init__(self, url: str, journal: Journal, seed: str, seconds: float) -> None:
        self.journal = journal
        self.seconds = seconds
        self.draining = threading.Event()
        self.ending = threading.Event()
        self._url = url
        self._seed = seed

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self._seed} {name}")

    def app(self) -> Windlass:
        """A new app per thread, so that threads do not share what they know of the clock."""
        return Windlass(self._url, retry_for=20)

    def do(self, what: str, id: str, deed: Callable[[], Any], **more: Any) -> Any:
        """Perform an action and log it."""
        asked = time.monotonic()
        told = deed()
        self.journal.write(what, id, asked, time.monotonic(), told=told if isinstance(told, bool) else None, **more)
        return told


def take(actor: Actor, number: int) -> None:
    """Raw leases: most are completed in time, some extended for long, some abandoned; the first is always abandoned."""
    chance = actor.chance(f"taker {number}")
    taken = 0
    with actor.app() as app:
        queue = app.queue(QUEUE)
        while not actor.ending.is_set():
            asked = time.monotonic()
            lease = queue.lease(actor.seconds, wait=MAX_WAIT_S)
            if lease is None:
                continue
            note_lease(actor, lease, asked, holder=None)
            taken += 1
            fate = chance.random() if taken > 1 else 0.0
            if fate < 0.15 and not actor.draining.is_set():
                continue  # abandoned: another taker gets the job when the lease expires
            if fate < 0.3:
                extend_on(actor, queue, lease, chance.uniform(1.0, 2.5) * actor.seconds)
            else:
                time.sleep(chance.uniform(0.0, 0.3) * actor.seconds)
            complete(actor, queue, lease)


def note_lease(actor: Actor, lease: Lease, asked: float, holder: str | None) -> None:
    actor.journal.write(
        "lease", lease.id, asked, time.monotonic(), fence=lease.fence, holder=holder, seconds=actor.seconds
    )


def complete(actor: Actor, queue: Queue, lease: Lease) -> None:
    actor.do("complete", lease.id, lambda: queue.complete(lease), fence=lease.fence)


def extend_on(actor: Actor, queue: Queue, lease: Lease, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not actor.ending.is_set():
        time.sleep(actor.seconds / EXTENDS_PER_LEASE)
        kept = actor.do("extend", lease.id, lambda: queue.extend(lease, actor.seconds), fence=lease.fence)
        if not kept:
            return


def hold(actor: Actor) -> None:
    """A named holder: heartbeats keep its jobs safe. Sometimes it stops, and continues under a new name."""
    chance = actor.chance("holder")
    with actor.app() as app:
        queue = app.queue(QUEUE)
        number = 0
        while not actor.ending.is_set():
            number += 1
            _hold_as(actor, queue, f"holder-{os.getpid()}-{number}", chance)


def _hold_as(actor: Actor, queue: Queue, name: str, chance: random.Random) -> None:
    held: dict[str, tuple[Lease, float]] = {}
    falls_silent = time.monotonic() + chance.uniform(2.0, 8.0) * actor.seconds
    actor.do("beat", name, lambda: queue.beat(name, actor.seconds, register=True), holder=name)
    while not actor.ending.is_set():
        time.sleep(actor.seconds / EXTENDS_PER_LEASE)
        if time.monotonic() > falls_silent and not actor.draining.is_set():
            return
        if not actor.do("beat", name, lambda: queue.beat(name, actor.seconds), holder=name):
            return  # declared lost: the judge decides whether rightly
        asked = time.monotonic()
        for lease in queue.lease_many(2, actor.seconds, holder=name) if len(held) < 6 else ():
            note_lease(actor, lease, asked, holder=name)
            held[lease.id] = lease, time.monotonic() + chance.uniform(0.5, 3.0) * actor.seconds
        for id, (lease, until) in list(held.items()):
            if time.monotonic() > until:
                del held[id]
                complete(actor, queue, lease)


def schedule(actor: Actor) -> None:
    """New jobs: immediate, delayed, or at a time of day."""
    chance = actor.chance("scheduler")
    with actor.app() as app:
        queue = app.queue(QUEUE)
        count = 0
        while not actor.draining.is_set():
            count += 1
            id = f"{os.getpid()}-{count}"
            wait = chance.uniform(0.1, 2.5) * actor.seconds
            kind = chance.choice(("now", "delay", "run_at"))
            since = time.monotonic()
            when: dict[str, Any] = {"now": {}, "delay": {"delay": wait}, "run_at": {"run_at": time.time() + wait}}[kind]
            queue.enqueue(b"", id=id, max_stalls=1000, **when)
            actor.journal.write("enqueue", id, since, time.monotonic(), kind=kind, wait=wait if when else 0.0)
            time.sleep(chance.uniform(0.1, 0.5))


def visit(actor: Actor) -> None:
    """Programs that make a single call and exit: they know nothing of the clock."""
    chance = actor.chance("visitor")
    while not actor.ending.is_set():
        with actor.app() as app:
            app.queue(QUEUE).clean()
        time.sleep(chance.uniform(0.1, 0.5))


def main() -> int:
    url, path, seed, seconds = sys.argv[1:]
    actor = Actor(url, Journal(path), seed, float(seconds))
    problems: list[str] = []

    def guarded(work: Callable[..., None], *given: Any) -> None:
        try:
            work(actor, *given)
        except WindlassError as error:
            problems.append(f"{work.__name__}: {error!r}")
            actor.draining.set()
            actor.ending.set()

    works: list[tuple[Any, ...]] = [
        (hold,),
        (schedule,),
        (visit,),
        *((take, number) for number in range(TAKER_THREADS)),
    ]
    threads = [threading.Thread(target=guarded, args=work) for work in works]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    actor.draining.set()
    sys.stdin.read()  # until the parent closes it or dies
    actor.ending.set()
    for thread in threads:
        thread.join()
    for problem in problems:
        print(problem, flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
