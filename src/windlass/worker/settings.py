"""What a worker is told: which queues, how many jobs at a time, how patient to be. Supervisor and runner share it."""

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
from windlass.worker.presence import OFTEN, QUIET

ISOLATED = 16
BEATS = 3  # heartbeats in one lease time
SAFETY = 0.85  # part of the lease time after which jobs whose lease cannot be kept are stopped


class Settings(Struct, frozen=True):
    """Times are in seconds. `concurrency` counts coroutines on the loop; with `auto` it is the most there may be."""

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
    allow_unsafe: bool = False  # start also on a server that may lose jobs

    @property
    def slots(self) -> dict[str, range]:
        """The places on the slot_table: children first, then threads, then coroutines.

        `apart` are children for suspects, jobs that may have killed a runner: each gets a process of its own.
        """
        sizes = {
            "process": self.processes,
            "isolated": ISOLATED if self.processes else 0,
            "thread": self.threads,
            "loop": self.concurrency,
        }
        ends = list(accumulate(sizes.values(), initial=0))
        return {kind: range(first, end) for kind, (first, end) in zip(sizes, pairwise(ends), strict=True)}

    @property
    def child_slots(self) -> range:
        """The places on the slot_table that are run by children."""
        return range(self.slots["thread"].start)

    @property
    def entries(self) -> int:
        """How many places the slot_table needs."""
        return self.slots["loop"].stop


def worker_name(wanted: str | None = None) -> str:
    """A name that tells people where the worker is. Never used twice: a dead worker's jobs would wait for ever."""
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
) -> WorkerRecord:
    """What a worker tells the fleet of itself."""
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
        every=min(settings.lease / BEATS, OFTEN) * (1 if running else QUIET),
    )


def lease_on(layout: Layout, lease: float) -> float:
    """The lease time on a queue: the worker's own, or less where peers call a silent worker lost sooner."""
    return lease if layout.heartbeat is None else min(lease, layout.heartbeat)
