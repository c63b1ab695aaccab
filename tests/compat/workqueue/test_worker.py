"""A worker of Windlass on this layout: handlers and tasks beside the published client, and the upkeep that it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import redis
from redis_work_queue import Item, WorkQueue  # type: ignore[import-untyped]

from tests.compat.workqueue.conftest import PREFIX, Look, lease_keys
from tests.support.conditions import until
from tests.support.server import Server
from windlass import Failure, Retry, Windlass
from windlass.errors import UnsupportedByLayout

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")  # of the published client


@pytest.fixture
def app(server: Server, client: redis.Redis) -> Iterator[Windlass]:
    """An app whose queue speaks this layout."""
    with Windlass(server.url, layouts={PREFIX: "workqueue"}) as app:
        yield app


@asynccontextmanager
async def working(app: Windlass, lease: float = 15) -> AsyncIterator[None]:
    """While a worker runs."""
    worker = app.worker([PREFIX], lease=lease)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        await worker.stop()
        await task


@pytest.mark.speaks("workqueue", "R8")
async def test_it_works_off_what_both_add(app: Windlass, client: redis.Redis, look: Look, theirs: WorkQueue) -> None:
    seen: list[bytes] = []

    @app.handler(PREFIX)
    async def unpack(data: bytes) -> None:
        seen.append(data)

    async with working(app):
        for n in range(200):
            await asyncio.to_thread(theirs.add_item, client, Item(f"theirs {n}"))
            await app.queue(PREFIX).aenqueue(b"ours %d" % n)
        await until(lambda: len(seen) == 400 and not look())
    assert sorted(seen) == sorted(f"{whose} {n}".encode() for whose in ("theirs", "ours") for n in range(200))


async def test_tasks_run_too(app: Windlass, look: Look) -> None:
    seen: list[int] = []

    @app.task(queue=PREFIX)
    async def unpack(number: int) -> None:
        seen.append(number)

    await unpack.using(id="first").aenqueue(7)
    assert look() == {"queue": [b"first"], "item:first": f'{{"task":"{unpack.name}","args":{{"number":7}}}}'.encode()}
    async with working(app):
        await until(lambda: seen == [7] and not look())


@pytest.mark.speaks("workqueue", "R7")
async def test_retries_come_again_and_failures_are_completed(
    app: Windlass, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """As the document advises: what must be tried again is not completed, what must not is."""
    seen: list[bytes] = []

    @app.handler(PREFIX)
    async def unpack(data: bytes) -> None:
        seen.append(data)
        if data == b"retry" and seen.count(data) < 3:
            raise Retry("not yet", delay=0.01)
        if data == b"fail":
            raise Failure("never")

    for data in (b"retry", b"fail"):
        await app.queue(PREFIX).aenqueue(data, id=data.decode())
    with caplog.at_level(logging.INFO, logger="windlass"):
        async with working(app):
            await until(lambda: seen.count(b"retry") == 3 and not look())
    assert seen.count(b"fail") == 1
    assert "never" in caplog.text


@pytest.mark.speaks("workqueue", "R5", "R9")
@pytest.mark.parametrize("lost", ["before its lease", "after its lease"])
async def test_an_idle_worker_takes_up_what_others_abandoned(
    app: Windlass, client: redis.Redis, look: Look, theirs: WorkQueue, lost: str
) -> None:
    """No cleaner runs, and nothing is added any more."""
    seen: list[bytes] = []

    @app.handler(PREFIX)
    async def unpack(data: bytes) -> None:
        seen.append(data)

    abandon: dict[str, Callable[[], object]] = {
        "before its lease": lambda: client.rpoplpush(f"{PREFIX}:queue", f"{PREFIX}:processing"),
        "after its lease": lambda: theirs.lease(client, 1),
    }
    theirs.add_item(client, Item(b"x", id="a"))
    abandon[lost]()
    async with working(app):
        await until(lambda: seen == [b"x"] and not look(), 8)


@pytest.mark.speaks("workqueue", "R5")
async def test_their_cleaner_leaves_a_long_job_alone(
    app: Windlass, client: redis.Redis, look: Look, theirs: WorkQueue
) -> None:
    """The worker's heartbeat keeps the lease that their cleaner looks at."""
    runs: list[int] = []
    go_on = asyncio.Event()

    @app.handler(PREFIX)
    async def unpack(data: bytes) -> None:
        runs.append(1)
        await go_on.wait()

    await app.queue(PREFIX).aenqueue(b"x", id="a")
    left = [2000]

    def is_renewed_thrice() -> bool:  # longer than a lease
        theirs.light_clean(client)
        left.append(client.pttl(lease_keys("a")[1]))
        return sum(before < after for before, after in pairwise(left)) == 3

    async with working(app, lease=1.5):
        await until(lambda: runs)
        await until(is_renewed_thrice)
        go_on.set()
        await until(lambda: not look())
    assert runs == [1]
    assert min(left) > 0


async def test_what_the_layout_has_not_is_refused_when_it_is_declared(app: Windlass) -> None:
    with pytest.raises(UnsupportedByLayout, match="workqueue"):

        @app.task(queue=PREFIX, priority=1)
        async def unpack() -> None: ...
