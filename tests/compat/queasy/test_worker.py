"""The worker on a Queasy queue: handlers, failure handlers and locks, beside a peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import redis

from tests.compat.queasy.conftest import NAME, Look
from tests.compat.queasy.peer import Peer
from tests.support.conditions import until
from tests.support.server import Server
from windlass import Failure, JobRecord, Windlass
from windlass.errors import JobFailed


@pytest.fixture
def own(server: Server, client: redis.Redis) -> Iterator[Windlass]:
    """An app whose queue `emails` is in this layout."""
    with Windlass(server.url, retry_for=5, layouts={NAME: "queasy"}) as app:
        yield app
        if not app.closed:
            app.queue(NAME).purge()


@asynccontextmanager
async def working(app: Windlass) -> AsyncIterator[None]:
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    yield
    await worker.stop()
    await running


@pytest.mark.speaks("queasy", "Q1", "Q3", "Q5")
async def test_a_failure_handler_is_told_of_a_peers_job(own: Windlass, peer: Peer, look: Look) -> None:
    told: list[tuple[bytes, JobRecord, JobFailed]] = []
    done: list[bytes] = []

    @own.handler(NAME)
    async def send(data: bytes) -> None:
        if data == b'"bounces"':
            raise Failure("there is no such address")
        done.append(data)

    @send.on_failure(min_backoff=0.01)
    async def regret(data: bytes, job: JobRecord, error: JobFailed) -> None:
        told.append((data, job, error))
        if len(told) < 3:
            raise LookupError("not today")

    peer.notify("bounces", "a")
    peer.notify("ann", "b")
    async with working(own):
        await until(lambda: len(told) == 3 and not [key for key in look() if "_job:" in key])
    assert done == [b'"ann"']
    data, job, error = told[-1]
    assert (data, job.id, job.failures) == (b'"bounces"', "a", 1)
    assert "there is no such address" in str(error)
    own.close()
    assert look() == {}, "the placeholder is gone with its worker"


@pytest.mark.speaks("queasy", "Q14")
async def test_a_job_that_a_peer_took_away_is_stopped_at_the_next_heartbeat(
    own: Windlass, peer: Peer, client: redis.Redis
) -> None:
    ends: list[str] = []
    began, stopped = asyncio.Event(), asyncio.Event()

    @own.handler(NAME)
    async def send(data: bytes) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("stopped")
            stopped.set()
            raise

    peer.notify(1, "a")
    worker = own.worker(lease=1)
    running = asyncio.create_task(worker.run())
    await began.wait()
    (member,) = cast(Any, client).zrange("{emails}:active", 0, -1)
    client.zadd("{emails}:active", {member: 1})
    client.hset("{emails}:active_job:a", "stallCount", 3)
    assert peer.clear_stall() == 1, "it takes the job for stalled, and this was the last time"
    async with asyncio.timeout(15):
        await stopped.wait()
    await worker.stop()
    await running
    assert ends == ["stopped"]
    assert not client.exists("{emails}:active", "{emails}:waiting")
