"""The worker on an hworker queue: what a handler returns and raises, and what becomes of the job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
import redis

from tests.compat.hworker.peer import Peer
from tests.support.conditions import until
from tests.support.server import Server
from windlass import Failure, Retry, State, Windlass
from windlass.errors import UnsupportedByLayout


async def work(app: Windlass, enough: Callable[[], object]) -> None:
    """Run a worker until there is enough."""
    worker = app.worker()
    working = asyncio.create_task(worker.run())
    await until(enough)
    await worker.stop()
    await working


@pytest.mark.speaks("hworker", "H1", "H6")
async def test_a_handler_says_how_it_went_and_its_messages_are_logged(
    app: Windlass, client: redis.Redis, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    @app.handler("mail")
    async def deliver(data: bytes) -> Retry | Failure | None:
        seen.append(data)
        if data == b'"bounces"':
            return Failure("there is no such address")
        if data == b'"busy"' and seen.count(data) == 1:
            return Retry("the line is busy", delay=0)
        return None

    peer.queue('["1","busy"]', '["2","bounces"]', '["3", {"to": "ann"}]')
    with caplog.at_level(logging.INFO, "windlass.worker"):
        await work(app, lambda: len(seen) == 4)
    assert seen.count(b'"busy"') == 2
    assert seen.index(b'{"to": "ann"}') < 3
    assert "the line is busy" in caplog.text
    assert "there is no such address" in caplog.text
    assert client.lrange(peer.failed, 0, -1) == [b'["2","bounces"]']
    assert not client.exists(peer.jobs, peer.progress, peer.broken)


@pytest.mark.speaks("hworker", "H2")
@pytest.mark.parametrize("meaning", ["fail", "retry"])
async def test_what_an_exception_means_is_chosen_at_start_up(
    server: Server, client: redis.Redis, peer: Peer, meaning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Windlass(server.url, on_exception=meaning, layouts={"mail": "hworker"}) as app:  # type: ignore[arg-type]
        seen: list[bytes] = []

        @app.handler("mail")
        def deliver(data: bytes) -> None:
            seen.append(data)
            if data == b"1":
                raise LookupError("nobody home")

        peer.queue('["a",1]', '["b",2]', '["c",3]')
        await work(app, lambda: len(seen) >= 3 and "nobody home" in caplog.text)
        assert sorted(seen) == [b"1", b"2", b"3"], "an exception takes no worker down"
        left = {"fail": ([], [b'["a",1]']), "retry": ([b'["a",1]'], [])}[meaning]
        assert (peer.waiting(), client.lrange(peer.failed, 0, -1)) == left
        assert not client.exists(peer.progress)
        app.queue("mail").purge()


@pytest.mark.speaks("hworker", "H4")
async def test_a_worker_goes_on_past_what_it_cannot_read(app: Windlass, client: redis.Redis, peer: Peer) -> None:
    sent: list[str] = []

    @app.task(queue="mail")
    async def welcome(name: str) -> None:
        sent.append(name)

    await welcome.aenqueue("ann")
    peer.queue(
        "no array",
        '["no task",{"name":"bob"}]',
        '["no name",{"task":"welcome","args":{}}]',
        '["by hand",{"task":"welcome","args":{"name":"eve"}}]',
    )
    await work(app, lambda: len(sent) == 2 and client.hlen(peer.broken) == 3)
    assert sorted(sent) == ["ann", "eve"]
    broken = {job.id[:7]: job.data for job in (await app.queue("mail").ajobs(State.BROKEN)).jobs}
    assert broken == {
        "sha1:04": b"no array",
        "no task": b'{"name":"bob"}',
        "no name": b'{"task":"welcome","args":{}}',
    }
    assert not client.exists(peer.jobs, peer.progress, peer.failed)


@pytest.mark.speaks("hworker", "H3")
async def test_a_worker_keeps_its_jobs_from_the_monitors_of_peers(
    app: Windlass, client: redis.Redis, peer: Peer
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @app.handler("mail")
    async def deliver(data: bytes) -> None:
        began.set()
        await may_end.wait()

    peer.queue('["a",1]')
    worker = app.worker(lease=1)
    working = asyncio.create_task(worker.run())
    await began.wait()
    first = peer.running()[b'["a",1]']
    await until(lambda: peer.running()[b'["a",1]'] > first)
    may_end.set()
    await until(lambda: not client.exists(peer.progress))
    await worker.stop()
    await working
    assert peer.waiting() == []


def test_options_that_have_no_place_in_these_keys_are_refused(app: Windlass) -> None:
    with pytest.raises(UnsupportedByLayout, match="limits"):
        app.handler("mail", max_failures=3)(lambda data: None)
