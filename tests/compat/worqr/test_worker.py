"""A worker hears what its peers, of whatever make, cancel; and takes its name back when it stops."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tests.compat.worqr.conftest import NAME, members
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Windlass


@pytest.mark.speaks("worqr", "W10", "W12")
async def test_what_a_peer_cancels_is_dropped_and_its_neighbour_goes_on(server: Server, client: redis.Redis) -> None:
    started: list[bytes] = []
    dropped: list[bytes] = []
    done: list[bytes] = []
    go_on = asyncio.Event()
    async with Windlass(server.url, layouts={NAME: "worqr"}) as app:

        @app.handler(NAME)
        async def work(data: bytes) -> None:
            started.append(data)
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                dropped.append(data)
                raise
            done.append(data)

        worker = app.worker()
        working = asyncio.create_task(worker.run())
        queue = app.queue(NAME)
        await queue.aenqueue_many([b"one", b"one", b"other"])
        await asyncio.to_thread(wait_until, lambda: len(started) == 3, "all to run")
        assert members(client, f"worqr:workingQueues:{_worker(client)}") == {NAME}
        client.publish(f"worqr_{NAME}_cancel", "one")  # as a peer of the published package does
        await asyncio.to_thread(wait_until, lambda: len(dropped) == 2, "both copies to be dropped")
        go_on.set()
        await asyncio.to_thread(wait_until, lambda: done == [b"other"], "the other to end")
        await asyncio.to_thread(wait_until, lambda: not queue.counts().running, "nothing to be left")
        await worker.stop()
        await working
        assert members(client, "worqr:workers") == set()
        assert queue.counts().ready == 0


def _worker(client: redis.Redis) -> str:
    (name,) = members(client, "worqr:workers")
    return name
