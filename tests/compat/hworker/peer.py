"""A worker and a monitor of the published kind: what the document says, with plain commands and scripts of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import redis

TIMEOUT = timedelta(seconds=120)

_TAKE = "local v = redis.call('RPOP', KEYS[1]) if v then redis.call('HSET', KEYS[2], v, ARGV[1]) end return v"
_RETRY = "redis.call('LPUSH', KEYS[1], ARGV[1]) return redis.call('HDEL', KEYS[2], ARGV[1])"
_RETURN = (
    "if redis.call('HDEL', KEYS[2], ARGV[1]) == 0 then return 0 end redis.call('RPUSH', KEYS[1], ARGV[1]) return 1"
)


def moment(ago: float = 0) -> bytes:
    """A time so many seconds ago, as that system writes it."""
    then = datetime.now(UTC) - timedelta(seconds=ago)
    return f'"{then:%Y-%m-%dT%H:%M:%S.%f}000000Z"'.encode()


class Peer:
    """One peer on one queue."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client: Any = client
        self.jobs, self.progress, self.broken, self.failed = (
            f"hworker-{what}-{name}" for what in ("jobs", "progress", "broken", "failed")
        )

    def queue(self, *texts: str | bytes) -> None:
        """Put jobs on the queue."""
        for text in texts:
            self._client.lpush(self.jobs, text)

    def take(self, ago: float = 0) -> bytes | None:
        """Begin the next job, as if so many seconds ago."""
        return cast(bytes | None, self._client.eval(_TAKE, 2, self.jobs, self.progress, moment(ago)))

    def complete(self, text: bytes) -> bool:
        """The job is done."""
        return cast(int, self._client.hdel(self.progress, text)) == 1

    def retry(self, text: bytes) -> None:
        """The job is to be run again."""
        self._client.eval(_RETRY, 2, self.jobs, self.progress, text)

    def monitor(self, ahead: float = 0) -> int:
        """Return what is in progress for too long; how many. Its clock may be so many seconds ahead."""
        returned = 0
        for text in self._client.hkeys(self.progress):
            began = self._client.hget(self.progress, text)
            if began and datetime.now(UTC) - _read(began) > TIMEOUT - timedelta(seconds=ahead):
                returned += self._client.eval(_RETURN, 2, self.jobs, self.progress, text)
        return returned

    def running(self) -> dict[bytes, bytes]:
        """What is in progress, and since when."""
        return cast(dict[bytes, bytes], self._client.hgetall(self.progress))

    def waiting(self) -> list[bytes]:
        """What waits, the next one first."""
        return cast(list[bytes], self._client.lrange(self.jobs, 0, -1))[::-1]


def _read(value: bytes) -> datetime:
    whole, _, fraction = value.strip(b'"').rstrip(b"Z").decode().partition(".")
    return datetime.fromisoformat(f"{whole}+00:00") + timedelta(seconds=float(f"0.{fraction or 0}"))
