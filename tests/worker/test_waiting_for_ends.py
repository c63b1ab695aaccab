"""A thousand fast jobs, a thousand answers: under several workers, whether a wait begins before the end or after it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Ending, TaskCall, Windlass
from windlass.storage.native.keys import queue_key, result_key

KEYS = {"k": b"a key for the tests, long enough."[:32]}
BEFORE = 60  # waits that begin before any job has run: each has a connection of its own


def declare(url: str, keys: Mapping[str, bytes] | None) -> tuple[Windlass, list[TaskCall]]:
    app = Windlass(url, signing_keys=keys)

    @app.task(queue="fast")
    async def nothing() -> None: ...

    @app.task(queue="fast", keep_result="1h")
    async def number() -> int:
        return 7

    return app, [number.call() if place % 10 == 0 else nothing.call() for place in range(1000)]


def all_done(app: Windlass) -> bool:
    counts = app.queue("fast").counts()
    return counts.ready + counts.running == 0


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "sealed"])
async def test_a_thousand_fast_jobs_a_thousand_answers(server: Server, keys: Mapping[str, bytes] | None) -> None:
    app, calls = declare(server.url, keys)
    apps = [declare(server.url, keys)[0] for _ in range(3)]
    jobs = await app.aenqueue_many(calls)
    before = [asyncio.create_task(job.aresult(timeout=60)) for job in jobs[:BEFORE]]
    with server.client() as client:
        watched = queue_key("fast", "watched")
        await asyncio.to_thread(wait_until, lambda: client.zcard(watched) == BEFORE, "the waits to begin")
        workers = [each.worker(allow_unsafe=True) for each in apps]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        answers = await asyncio.gather(*before)
        await asyncio.to_thread(wait_until, lambda: all_done(app), "the jobs to end")
        answers += [await job.aresult(timeout=60) for job in jobs[BEFORE:500]]
        answers += await asyncio.to_thread(lambda: [job.result(timeout=60) for job in jobs[500:]])
        assert answers == [7 if place % 10 == 0 else None for place in range(1000)]
        assert Counter([await job.astate() for job in jobs]) == {Ending.COMPLETED: 1000}
        assert len(client.keys(result_key("fast", "*"))) == 100, "only what was asked for is kept"
        for worker in workers:
            await worker.stop()
        await asyncio.gather(*running)
        for each in (app, *apps):
            await each.aclose()
        client.flushall()
