"""The settings of a worker, which supervisor and runner share: queues, concurrency, time limits, logs."""

from __future__ import annotations

import os
import re
import socket
from itertools import accumulate, pairwise
from typing import Literal

from msgspec import Struct, field

from windlass import __version__
from windlass.storage.port import Layout
from windlass.values.ids import random_id
from windlass.values.worker_record import WorkerRecord
from windlass.worker.app_facts import KnownTasks
from windlass.worker.presence import IDLE_BEAT_FACTOR, MAX_BEAT_INTERVAL_S

ISOLATED_SLOTS = 16  # suspects that run at a time: they must not wait for each other, but each costs a process
BEATS_PER_LEASE = 3  # one lost heartbeat must not lose a lease
MAX_FAILING_CALLS = 32  # of them to queues that could not be reached: such a call keeps its place until it times out
MAX_CALLS_AT_ONCE = 256  # of a supervisor with more queues: each uses a connection, and many systems allow 1,024 files
SAFE_LEASE_SHARE = 0.85  # without a heartbeat for this share of the lease, jobs are stopped; the rest is time to stop


class Settings(Struct, frozen=True):
    """Times are in seconds. `concurrency` counts coroutines on the loop; with `auto` it is the upper limit.

    The supervisor replaces patterns among the names of `queues` by the app's own queues.
    """

    name: str
    queues: dict[str, int]
    concurrency: int = 100
    auto: bool = False
    threads: int = 8
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    lease: float = 15.0
    grace: float = 30.0
    kill_grace: float = 5.0
    max_jobs: int | None = None
    max_rss: int | None = None
    watch: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: str = "info"
    log_arguments: bool = False
    log_jobs: bool = False
    allow_unsafe: bool = False  # start even if the server may lose jobs
    raw_output: bool = False  # pass on what jobs print with its control characters
    full_tracebacks: bool = False  # show frames of Windlass, too

    @property
    def slots(self) -> dict[str, range]:
        """The slots by kind: children first, then threads, then coroutines.

        "isolated" slots are children for suspects, which are jobs that may have killed a runner. Each suspect runs in
        a process of its own.
        """
        sizes = {
            "process": self.processes,
            "isolated": ISOLATED_SLOTS if self.processes else 0,
            "thread": self.threads,
            "loop": self.concurrency,
        }
        ends = list(accumulate(sizes.values(), initial=0))
        return {kind: range(first, end) for kind, (first, end) in zip(sizes, pairwise(ends), strict=True)}

    @property
    def child_slots(self) -> range:
        """The slots of child processes."""
        return range(self.slots["thread"].start)

    @property
    def entries(self) -> int:
        """The number of slots."""
        return self.slots["loop"].stop


def worker_name(wanted: str | None = None) -> str:
    """Make a unique name that shows where the worker runs. A reused name would keep a dead worker's leases alive."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60].lstrip("-") or "worker"
    return f"{wanted or f'{host}-{os.getpid()}'}-{random_id()[:6]}"


def worker_record(
    settings: Settings,
    *,
    started_at: float,
    running: int,
    finished: int,
    rss: int | None,
    stopping: bool,
    suspended: dict[str, str],
    known: KnownTasks,
) -> WorkerRecord:
    """Build the record that a worker publishes."""
    return WorkerRecord(
        name=settings.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        started_at=started_at,
        queues=settings.queues,
        slots={"loop": settings.concurrency, "thread": settings.threads, "process": settings.processes},
        running=running,
        finished=finished,
        rss=rss,
        state="stopping" if stopping else "working",
        suspended=suspended,
        tasks_digest=known.digest,
        tasks=known.some,
        every=min(settings.lease / BEATS_PER_LEASE, MAX_BEAT_INTERVAL_S) * (1 if running else IDLE_BEAT_FACTOR),
    )


def lease_on(layout: Layout, lease: float) -> float:
    """Return the lease time on a queue: the worker's own, or less if peers of that layout give up on it sooner."""
    return lease if layout.heartbeat is None else min(lease, layout.heartbeat)
