"""A peer of the published kind: the functions of its document, run on the same queue. See peer.lua."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import redis

_TEXT = (Path(__file__).parent / "peer.lua").read_text()
_FLAGS = ("updateData", "updateMaxFailures", "updateMaxStalls", "updateMinBackoff", "updateMaxBackoff", "resetCounts")


class Peer:
    """A worker and producer of the published kind. `later` is how far its clock is ahead, in ms.

    With `boolean` it reads the flags of a blocked job as the first published Lua does: text is never a set flag.
    """

    def __init__(self, client: redis.Redis, queue: str, worker: str = "peer-1") -> None:
        self.worker = worker
        self.later = 0
        self.boolean = False
        self._queue = f"{{{queue}}}"
        self._script: Any = client.register_script(_TEXT)

    def notify(self, data: Any, id: str, **options: Any) -> None:
        """Add or change a job."""
        job = {
            "id": id,
            "data": json.dumps(data),
            "runAt": 0,
            "maxFailures": 10,
            "maxStalls": 3,
            "minBackoff": 2000,
            "maxBackoff": 300_000,
            "updateRunAt": "true",
            **dict.fromkeys(_FLAGS, "true"),
            **options,
        }
        self._run("notify", json.dumps([text for pair in job.items() for text in map(str, pair)]))

    def cancel(self, id: str) -> bool:
        """Cancel a waiting job."""
        return bool(self._run("cancel", id))

    def dequeue(self, count: int = 1, *, failures: bool = False) -> list[dict[str, str]]:
        """Lease jobs, or failures."""
        queue = f"{self._queue}-fail" if failures else self._queue
        rows: list[list[bytes]] = self._run("dequeue", self.worker, count, queue=queue)
        return [dict(zip(*[(text.decode() for text in row)] * 2, strict=True)) for row in rows]

    def heartbeat(self, id: str) -> bool:
        """Renew the lock on a job; returns False if it was lost."""
        return bool(self._run("heartbeat", id, self.worker))

    def success(self, id: str) -> None:
        """Complete a job."""
        self._run("success", id, self.worker)

    def retry(self, id: str, run_at: int = 0, error: str = '{"message":"no"}') -> None:
        """Fail an attempt."""
        self._run("retry", id, self.worker, run_at, error)

    def clear_stall(self) -> int:
        """Reclaim stalled jobs; returns how many."""
        return int(self._run("clear_stall"))

    def _run(self, function: str, *args: Any, queue: str | None = None) -> Any:
        now = round(time.time() * 1000) + self.later
        return self._script(keys=[queue or self._queue], args=[function, now, int(self.boolean), *args])
