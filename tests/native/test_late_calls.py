"""A call that is given up may still arrive: it must then find that it was answered long ago."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from tests.support.proxy import DROP_REPLY, DROP_REQUEST, FORWARD, HANG_REPLY, Fault, FaultProxy, nth
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Queue, Windlass
from windlass.errors import OutcomeUnknown, ServerUnreachable
from windlass.storage.native.keys import queue_key


class Straggler:
    """The first call of a script does not reach the server; not yet."""

    def __init__(self) -> None:
        self.request: list[bytes] | None = None

    def __call__(self, request: list[bytes]) -> Fault:
        if self.request is None and request[0] == b"EVALSHA":
            self.request = request
            return DROP_REQUEST
        return FORWARD

    def arrive(self, client: redis.Redis) -> object:
        assert self.request is not None
        return client.execute_command(*self.request)  # type: ignore[no-untyped-call]


@pytest.fixture
def lossy(server: Server, client: redis.Redis) -> Iterator[tuple[FaultProxy, Windlass]]:
    """A program behind a proxy. The check that nothing is left is told to wait for what is remembered a while."""
    with FaultProxy(server.address) as proxy, Windlass(proxy.url, retry_for=10) as app:
        yield proxy, app
    client.delete(*client.keys("windlass:{late}:*") or ["none"])


def test_a_look_that_found_nothing_when_repeated_leases_nothing_later(
    lossy: tuple[FaultProxy, Windlass], app: Windlass, client: redis.Redis
) -> None:
    proxy, looking = lossy
    proxy.faults = straggler = Straggler()
    assert looking.queue("late").lease() is None
    queue = app.queue("late")
    queue.enqueue(b"x", id="job")
    straggler.arrive(client)
    assert queue.counts().running == 0, "nobody would know of it"
    lease = queue.lease()
    assert lease is not None
    assert queue.complete(lease)


def test_a_call_that_arrives_after_its_program_has_left_changes_nothing(server: Server, client: redis.Redis) -> None:
    straggler = Straggler()
    with FaultProxy(server.address, faults=straggler) as proxy, Windlass(proxy.url, retry_for=10) as app:
        queue = app.queue("late")
        queue.enqueue(b"x", id="job")
        lease = queue.lease()
        assert lease is not None
        assert queue.complete(lease)
    state = queue_key("late", "state")
    assert set(client.keys("windlass:{late}:*")) == {state.encode()}, "it is remembered"
    assert 0 < client.pttl(state) <= 600_000, "for a while"
    with pytest.raises(redis.ResponseError, match="STALEOP"):
        straggler.arrive(client)
    with Windlass(server.url) as other:
        assert other.queue("late").counts().ready == 0
    client.delete(state)


def test_what_arrives_for_the_first_time_after_the_client_unregistered_keeps_the_state(
    server: Server, client: redis.Redis
) -> None:
    """It was never answered, so nobody was told anything else; and its queue must not be forgotten under it."""
    with FaultProxy(server.address) as proxy, Windlass(proxy.url, retry_for=0.2) as app:
        queue = app.queue("late")
        queue.enqueue(b"x")
        lease = queue.lease()
        assert lease is not None
        assert queue.complete(lease)
        calls: list[list[bytes]] = []

        def lose(request: list[bytes]) -> Fault:
            if request[0] != b"EVALSHA":
                return FORWARD
            calls.append(request)
            return DROP_REQUEST

        proxy.faults = lose
        with pytest.raises(OutcomeUnknown):
            queue.enqueue(b"y", id="job")
        proxy.faults = None
        queue.counts()  # the server can be reached again, and hears that it ended
    state = queue_key("late", "state")
    assert client.pttl(state) > 0
    client.execute_command(*calls[0])  # type: ignore[no-untyped-call]
    assert client.pttl(state) == -1
    with Windlass(server.url) as other:
        assert other.queue("late").counts().ready == 1
        other.queue("late").purge()


async def test_what_is_given_back_is_given_back_even_if_that_is_in_doubt(
    lossy: tuple[FaultProxy, Windlass], server: Server
) -> None:
    """A lease nobody waited for is released; if nobody hears whether it was, that is asked for again."""
    proxy, _ = lossy
    async with Windlass(proxy.url, retry_for=0.2) as app:
        queue = app.queue("late")
        await queue.aenqueue(b"x", id="job")
        with Windlass(server.url) as witness:
            await _abandon_a_lease(queue, proxy, witness.queue("late"))
            # The repeat of the lease is answered, its release never arrives.
            seen = 0

            def only_the_first(request: list[bytes]) -> Fault:
                nonlocal seen
                seen += request[0] == b"EVALSHA"
                return DROP_REQUEST if request[0] == b"EVALSHA" and seen > 1 else FORWARD

            proxy.faults = only_the_first
            with pytest.raises(ServerUnreachable, match="still unknown"):
                await queue.abeat("w", 60)
            proxy.faults = nth(DROP_REPLY, only={"EVALSHA"})
            await queue.abeat("w", 60)
            assert witness.queue("late").counts().ready == 1
            await queue.apurge()


async def _abandon_a_lease(queue: Queue, proxy: FaultProxy, witness: Queue) -> None:
    proxy.faults = nth(HANG_REPLY, only={"EVALSHA"})
    lease = asyncio.create_task(queue.alease(60, holder="w"))
    await asyncio.to_thread(wait_until, lambda: witness.counts().running == 1, "the lease")
    lease.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lease
