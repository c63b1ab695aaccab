"""What a worker is told: which queues, how many jobs at a time, how patient to be. Keeper and runner share it."""

from __future__ import annotations

import os
import re
import socket
from typing import Literal

from msgspec import Struct, field

from windlass import __version__
from windlass.fleet import WorkerRecord
from windlass.ids import random_id


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

    @property
    def slots(self) -> dict[str, range]:
        """The places on the board: children first, then threads, then coroutines."""
        first_thread, first_coroutine = self.processes, self.processes + self.threads
        return {
            "process": range(first_thread),
            "thread": range(first_thread, first_coroutine),
            "loop": range(first_coroutine, first_coroutine + self.concurrency),
        }

    @property
    def entries(self) -> int:
        """How many places the board needs."""
        return self.processes + self.threads + self.concurrency


def worker_name(wanted: str | None = None) -> str:
    """A name that tells people where the worker is. Never used twice: a dead worker's jobs would wait for ever."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60].lstrip("-") or "worker"
    return f"{wanted or f'{host}-{os.getpid()}'}-{random_id()[:6]}"


def worker_record(
    settings: Settings, *, started_at: float, running: int, finished: int, rss: int | None, stopping: bool
) -> WorkerRecord:
    """What a worker tells the fleet of itself."""
    return WorkerRecord(
        name=settings.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        started_at=started_at,
        queues=settings.queues,
        slots={kind: len(slots) for kind, slots in settings.slots.items()},
        running=running,
        finished=finished,
        rss=rss,
        state="stopping" if stopping else "working",
    )
