"""A torn log: the server's append-only file is cut anywhere, as a power failure would, and the queue is whole.

Every operation is one script, and a script is in the log wholly or not at all. So after a cut the queue is
exactly what it was after the last operation that fits: acknowledged ones before the cut are all there, and
nothing is half done.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server
from windlass import Lease, Queue, State, Windlass

CUTS = int(os.environ.get("WINDLASS_TORN_CUTS", "60"))
SEED = int(os.environ.get("WINDLASS_TORN_SEED", "3"))


def picture(queue: Queue) -> Any:
    """All that can be seen of a queue."""
    counts = queue.counts()
    jobs = {state.value: list(queue.all_jobs(state)) for state in State}
    return (counts.running, counts.blocked, counts.dead, counts.paused, jobs)


def live(queue: Queue, chance: random.Random, leases: list[Lease]) -> None:
    """One random operation."""
    roll = chance.random()
    if roll < 0.45 or not leases:
        if roll < 0.15:
            leases += queue.lease_many(chance.randint(1, 4), 3600, holder=chance.choice([None, "w"]))
        elif roll < 0.3:
            queue.enqueue_many([b"many"] * chance.randint(1, 5))
        else:
            queue.enqueue(
                b"data", id=chance.choice("abcdef"), priority=chance.randint(0, 9), delay=chance.choice([0, 0, 900])
            )
        return
    lease = leases.pop(chance.randrange(len(leases)))
    if roll < 0.6:
        queue.complete(lease)
    elif roll < 0.7:
        queue.release(lease)
    elif roll < 0.8:
        queue.retry(lease, delay=chance.choice([0, 900]), message="again")
    elif roll < 0.87:
        queue.fail(lease, "no")
    elif roll < 0.94:
        queue.progress(lease, 0.5)
        leases.append(lease)
    else:
        queue.cancel(lease.id, running=True)


@pytest.mark.serves("W2")
def test_a_cut_log_holds_whole_operations_only() -> None:
    chance = random.Random(SEED)
    with Server(appendonly=True, appendfsync="always") as server:
        pictures: list[tuple[int, Any]] = []
        with Windlass(server.url) as app:
            queue = app.queue("torn")
            leases: list[Lease] = []
            for _ in range(250):
                live(queue, chance, leases)
                pictures.append((log_of(server).stat().st_size, picture(queue)))
            server.kill()
        whole = log_of(server).read_bytes()
        first = pictures[0][0]
        for _ in range(CUTS):
            cut = chance.randint(first, len(whole))
            shutil.copyfile(os.devnull, log_of(server))
            log_of(server).write_bytes(whole[:cut])
            server.start()
            with Windlass(server.url) as app:
                queue = app.queue("torn")
                expected = [seen for size, seen in pictures if size <= cut][-1]
                assert picture(queue) == expected, f"cut at {cut} of {len(whole)}"
                assert queue.audit(repair=True).repaired == 0
            server.kill()
    print(f"{CUTS} cuts, 0 invariant breaks (seed {SEED})")


def log_of(server: Server) -> Path:
    """The part of the log that grows."""
    (log,) = [path for path in server.aof_files() if ".incr." in path.name]
    return log
