"""What a worker tells of itself."""

from __future__ import annotations

from msgspec import Struct

LOST = "lost?"


class WorkerRecord(Struct, frozen=True):
    """What a worker told of itself. Times are in seconds since 1970, `rss` is in bytes.

    `queues` with their weights; `slots` by the way of running: loop, thread, process. `finished` counts the attempts
    that have ended since `started_at`. `state` is working or stopping, and "lost?" when it has been silent for three
    times as long as it is between two of its signs (`every` seconds). `suspended` names the queues from which it
    takes no jobs for now, with the reasons.
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

    @property
    def is_lost(self) -> bool:
        """It was not heard of for so long that it is probably gone."""
        return self.state == LOST
