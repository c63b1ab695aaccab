"""The cases: each verb of a raw queue, and the bare list command through the same kind of client.

Every function here makes one call after the other, at the offsets that `calls` yields, and raises if a single job was
not added, leased or completed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hiredis import pack_command
from redis import Redis
from redis.asyncio.connection import UnixDomainSocketConnection as AwaitableConnection
from redis.asyncio.retry import Retry as AwaitableRetry
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.retry import Retry

from bench.server import BenchServer
from windlass import Status, Windlass

LIST = "bare"
FILL = 1000


class Calls:
    """Offsets of batches, until all jobs are done or time is up; always whole batches, and at least one."""

    def __init__(self, jobs: int, batch: int, seconds: float) -> None:
        self.jobs = max(1, jobs // batch) * batch
        self.batch = batch
        self.seconds = seconds
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        deadline = time.perf_counter() + self.seconds
        for start in range(0, self.jobs, self.batch):
            yield start
            self.done += self.batch
            if time.perf_counter() > deadline:
                return


class Rig:
    """A server with an app, a queue, two bare connections and redis-py's client, all open."""

    def __init__(self, server: BenchServer, payloads: list[bytes]) -> None:
        self.server = server
        self.payloads = payloads
        self.loop = asyncio.Runner()
        self.app = Windlass(server.url)
        self.queue = self.app.queue("bench")
        given: dict[str, Any] = {"path": str(server.socket), "protocol": 2, "socket_timeout": 10}
        kind: Any = UnixDomainSocketConnection
        awaitable_kind: Any = AwaitableConnection
        self.blocking = kind(retry=Retry(NoBackoff(), 0), **given)
        self.awaitable = awaitable_kind(retry=AwaitableRetry(NoBackoff(), 0), **given)
        self.client = Redis(unix_socket_path=str(server.socket), protocol=2)
        self.blocking.connect()
        self.loop.run(self.awaitable.connect())

    def close(self) -> None:
        self.loop.run(self.awaitable.disconnect())
        self.blocking.disconnect()
        self.client.close()
        self.app.close()
        self.loop.close()

    def clear(self) -> None:
        """Delete all data of earlier measurements."""
        self.server.command("FLUSHALL", "SYNC")

    def fill_queue(self, jobs: int) -> None:
        """Put `jobs` jobs on the queue."""
        for start in range(0, jobs, FILL):
            self.queue.enqueue_many(self.payloads[start : min(start + FILL, jobs)])

    def fill_list(self, jobs: int) -> None:
        """Put the same number on the bare list."""
        for start in range(0, jobs, FILL):
            self.server.command("LPUSH", LIST, *self.payloads[start : min(start + FILL, jobs)])

    def queued(self) -> int:
        """Number of jobs on the queue and on the list."""
        waiting: int = self.server.command("LLEN", LIST)
        return waiting + self.queue.counts().ready


Side = Callable[[Rig, Calls], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One figure: Windlass and bare. `jobs` is the maximum of a full run; a drain finds that many waiting."""

    key: str
    title: str
    batch: int
    jobs: int
    ours: Side
    bare: Side
    drains: bool = False
    calls_per_batch: int = 1


def enqueue(rig: Rig, calls: Calls) -> None:
    queue, payloads = rig.queue, rig.payloads
    for i in calls:
        if queue.enqueue(payloads[i]).status is not Status.ADDED:
            raise AssertionError("a job was not added")


def enqueue_awaited(rig: Rig, calls: Calls) -> None:
    async def run() -> None:
        queue, payloads = rig.queue, rig.payloads
        for i in calls:
            if (await queue.aenqueue(payloads[i])).status is not Status.ADDED:
                raise AssertionError("a job was not added")

    rig.loop.run(run())


def enqueue_many(rig: Rig, calls: Calls) -> None:
    queue, payloads, batch = rig.queue, rig.payloads, calls.batch
    for i in calls:
        if len(queue.enqueue_many(payloads[i : i + batch])) != batch:
            raise AssertionError("a job was not added")


def lease_and_complete(rig: Rig, calls: Calls) -> None:
    queue, batch = rig.queue, calls.batch
    for _ in calls:
        leases = queue.lease_many(batch)
        if len(leases) != batch or not all(queue.complete_many(leases)):
            raise AssertionError("a job was not leased or not completed")


def push(rig: Rig, calls: Calls) -> None:
    connection, payloads, batch = rig.blocking, rig.payloads, calls.batch
    for i in calls:
        packed = [pack("LPUSH", LIST, payload) for payload in payloads[i : i + batch]]
        connection.send_packed_command([b"".join(packed)], check_health=False)
        for _ in packed:
            connection.read_response()


def push_by_client(rig: Rig, calls: Calls) -> None:
    client, payloads = rig.client, rig.payloads
    for i in calls:
        client.lpush(LIST, payloads[i])


def push_awaited(rig: Rig, calls: Calls) -> None:
    async def run() -> None:
        connection, payloads = rig.awaitable, rig.payloads
        for i in calls:
            await connection.send_packed_command([pack("LPUSH", LIST, payloads[i])], check_health=False)
            await connection.read_response()

    rig.loop.run(run())


def pop(rig: Rig, calls: Calls) -> None:
    connection, batch = rig.blocking, calls.batch
    for _ in calls:
        connection.send_packed_command([b"".join([pack("RPOP", LIST) for _ in range(batch)])], check_health=False)
        if None in [connection.read_response() for _ in range(batch)]:
            raise AssertionError("the list was empty")


def pack(*words: bytes | str) -> bytes:
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub wants a tuple of one
    return packed


def _drain(batch: int, jobs: int) -> Case:
    title = f"lease + complete, {batch} at a time" if batch > 1 else "lease + complete, one at a time"
    return Case(f"lease_complete_{batch}", title, batch, jobs, lease_and_complete, pop, drains=True, calls_per_batch=2)


CASES = (
    Case("enqueue_1", "enqueue, one at a time", 1, 10_000, enqueue, push),
    Case("enqueue_1_awaited", "enqueue, one at a time, awaited", 1, 10_000, enqueue_awaited, push_awaited),
    Case("enqueue_1_client", "enqueue, one at a time (bare: Redis.lpush)", 1, 10_000, enqueue, push_by_client),
    Case("enqueue_100", "enqueue, 100 at a time", 100, 40_000, enqueue_many, push),
    Case("enqueue_1000", "enqueue, 1,000 at a time", 1000, 60_000, enqueue_many, push),
    _drain(1, 5_000),
    _drain(10, 15_000),
    _drain(100, 30_000),
    _drain(500, 30_000),
)
