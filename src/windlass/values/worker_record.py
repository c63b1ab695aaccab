"""`WorkerRecord`: what a worker reports about itself."""

from __future__ import annotations

from msgspec import Struct

LOST = "lost?"


class WorkerRecord(Struct, frozen=True):
    """A worker's last heartbeat. Times are in seconds since 1970, `rss` is in bytes.

    `queues` maps names to weights, `slots` maps "loop", "thread" and "process" to their number. `finished` counts the
    attempts that have ended since `started_at`. `state` is "working", "stopping", or "lost?" after three missed
    heartbeats (one comes every `every` seconds). `suspended` maps the queues from which it leases only one job at a
    time to the reasons. `tasks_digest` is equal for workers that know the same tasks, and `tasks` has a few of their
    names.
    """

    name: str
    host: str = ""
    pid: int = 0
    version: str = ""
    started_at: float | None = None
    queues: dict[str, int] = {}
    slots: dict[str, int] = {}
    running: int = 0
    finished: int = 0
    rss: int | None = None
    state: str = "working"
    every: float = 5.0
    seen_at: float | None = None
    suspended: dict[str, str] = {}
    tasks_digest: str = ""
    tasks: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the worker has been silent for so long that it is probably dead."""
        return self.state == LOST
