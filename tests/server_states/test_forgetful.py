"""Servers that forget their scripts or data, cut connections or fall silent: calls go on, each with its effect once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.support.faces import Face
from tests.support.proxy import DROP_REPLY, FORWARD, Fault, FaultProxy, nth, rewrite
from tests.support.server import Server
from tests.support.server_states import BOTH_FACES, PASSWORD, queue_on
from tests.support.waiting import wait_until
from tests.topology.life import drain, every_verb, leased
from windlass import Lease, Queue, Windlass, errors
from windlass.storage.native import keys


class Disturbed:
    """A queue before each of whose calls something happens to the server."""

    def __init__(self, queue: Queue, disturb: Callable[[], object]) -> None:
        self._queue = queue
        self._disturb = disturb

    def __getattr__(self, name: str) -> Any:
        self._disturb()
        return getattr(self._queue, name)


def kill_clients(server: Server) -> None:
    """Closes every connection but the one that asks for it."""
    with server.client() as client:
        for kind in ("normal", "pubsub"):
            client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_flushed_scripts_are_loaded_again_between_any_two_calls(own: Server, face: type[Face]) -> None:
    with queue_on(own.url, face) as queue:
        every_verb(cast(Queue, Disturbed(queue, lambda: own.command("SCRIPT", "FLUSH"))))


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_killed_connections_are_made_again_between_any_two_calls(own: Server, face: type[Face]) -> None:
    with queue_on(own.url, face) as queue:
        every_verb(cast(Queue, Disturbed(queue, lambda: kill_clients(own))))


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_an_answer_that_nobody_asked_for_is_not_taken_for_that_of_the_next_call(own: Server, face: type[Face]) -> None:
    with FaultProxy(own.address) as proxy, queue_on(proxy.url, face) as queue:
        queue.enqueue(b"", id="first")
        proxy.faults = nth(rewrite(lambda frame: 2 * frame), only={"EVALSHA"})
        queue.enqueue(b"", id="second")
        known = proxy.connections
        assert queue.counts().ready == 2
        assert proxy.connections == known + 1
        queue.purge()


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_an_error_that_comes_instead_of_a_wake_up_ends_that_connection_only(own: Server, face: type[Face]) -> None:
    with FaultProxy(own.address) as proxy, queue_on(proxy.url, face) as queue:
        proxy.faults = nth(rewrite(lambda frame: frame + b"-ERR upstream is going away\r\n"), only={"SUBSCRIBE"})
        assert queue.lease(wait=0.1) is None
        assert proxy.counts["rewrite"] == 1
        queue.enqueue(b"x")
        assert drain(queue) == [b"x"]
        queue.purge()


async def test_a_coroutine_knows_that_its_connection_was_closed_so_nothing_is_in_doubt() -> None:
    with Server() as server:
        async with Windlass(server.url, retry_for=0.1) as app:
            queue = app.queue("states")
            await queue.aenqueue(b"x")
            beside, own_end = await asyncio.open_unix_connection(server.socket_path)
            own_end.write(b"PING\r\n")
            assert await beside.readline() == b"+PONG\r\n"  # known to the server: closed by its end, not reset
            server.kill()
            assert await beside.read() == b""  # this turn of the loop told all whose connection was closed
            own_end.close()
            with pytest.raises(errors.ServerUnreachable, match="nothing was sent"):
                await queue.aenqueue(b"x")


@BOTH_FACES
def test_who_waits_at_a_key_finds_its_connection_closed(face: type[Face]) -> None:
    with Server() as server, queue_on(server.url, face, layouts={"*": "workqueue"}) as queue:
        assert queue.lease(wait=0.1) is None
        kill_clients(server)
        assert queue.lease(wait=0.1) is None
        queue.enqueue(b"x")
        assert drain(queue) == [b"x"]


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_what_is_no_answer_at_all_ends_the_connection_and_the_call_is_repeated(own: Server, face: type[Face]) -> None:
    with FaultProxy(own.address) as proxy, queue_on(proxy.url, face) as queue:
        queue.enqueue(b"", id="first")
        proxy.faults = nth(rewrite(lambda frame: b"HTTP/1.1 502 Bad Gateway\r\n\r\n"), only={"EVALSHA"})
        known = proxy.connections
        assert queue.enqueue(b"", id="second").status == "added"
        assert proxy.connections == known + 1
        assert len(drain(queue)) == 2
        queue.purge()


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_scripts_flushed_all_the_time(own: Server, face: type[Face]) -> None:
    ending = threading.Event()

    def flush() -> None:
        with own.client() as client:
            while not ending.wait(0.01):
                client.execute_command("SCRIPT", "FLUSH")

    with ThreadPoolExecutor(1) as pool, queue_on(own.url, face, retry_for=20) as queue:
        flushing = pool.submit(flush)
        try:
            for number in range(300):
                queue.enqueue(b"%d" % number)
            done = drain(queue)
        finally:
            ending.set()
            flushing.result(10)
    assert done == [b"%d" % number for number in range(300)]


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_a_connection_lost_while_scripts_are_loaded_again(own: Server, face: type[Face]) -> None:
    with FaultProxy(own.address) as proxy, queue_on(proxy.url, face) as queue:
        queue.enqueue(b"before")
        own.command("SCRIPT", "FLUSH")
        proxy.faults = nth(DROP_REPLY, only={"SCRIPT"})
        queue.enqueue(b"after")
        assert proxy.counts["drop_reply"] == 1
        assert drain(queue) == [b"before", b"after"]


@BOTH_FACES
def test_a_call_that_may_have_happened_is_never_told_as_one_that_did_not(face: type[Face]) -> None:
    """The reply is lost, and the server lets nobody in when the call is to be repeated."""
    with Server() as server, FaultProxy(server.address) as proxy, queue_on(proxy.url, face) as queue:
        queue.counts()

        def lock_out(request: list[bytes]) -> Fault:
            if request[0] != b"EVALSHA":
                return FORWARD
            server.command("CONFIG", "SET", "requirepass", PASSWORD)
            server.config["requirepass"] = PASSWORD
            return DROP_REPLY

        proxy.faults = lock_out
        with pytest.raises(errors.OutcomeUnknown, match="may have been applied"):
            queue.enqueue(b"x")
        proxy.faults = None
        assert server.command("ZCARD", keys.queue_key("states", "ready")) == 1


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_all_data_gone_under_a_running_job(own: Server, face: type[Face]) -> None:
    with queue_on(own.url, face) as queue:
        queue.enqueue_many([b"one", b"two"])
        lease = leased(queue)
        own.command("FLUSHALL")
        assert not queue.extend(lease, 30)
        assert not queue.complete(lease)
        queue.enqueue(b"three")
        after = leased(queue)
        assert after.data == b"three"
        assert after.fence > lease.fence, "fences rise even when the server has forgotten them"
        assert queue.complete(after)


@contextmanager
def waiter_on(server: Server, queue: Queue) -> Iterator[Callable[[], Lease | None]]:
    """Somebody waits for a job, and is known to the server as idle; gives the way to ask for what came."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.lease, 30, 30)
        wait_until(lambda: server.command("ZCARD", keys.queue_key(queue.name, "idle")), "the waiter to be idle")
        yield lambda: waiting.result(20)


@BOTH_FACES
def test_a_waiter_outlives_a_server_that_is_killed(face: type[Face]) -> None:
    with Server() as server, queue_on(server.url, face, retry_for=20) as queue, queue_on(server.url) as other:
        with waiter_on(server, queue) as found:
            server.kill()
            server.start()
            other.enqueue(b"after the restart")
            lease = found()
        assert lease is not None
        assert lease.data == b"after the restart"
        assert queue.complete(lease)


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_a_waiter_outlives_its_connections(own: Server, face: type[Face]) -> None:
    with queue_on(own.url, face) as queue, queue_on(own.url) as other:
        with waiter_on(own, queue) as found:
            kill_clients(own)
            other.enqueue(b"x")
            lease = found()
        assert lease is not None
        assert queue.complete(lease)


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_a_server_that_stops_for_longer_than_a_call_may_take(own: Server, face: type[Face]) -> None:
    """Each call is sent again and again meanwhile, and has its effect once."""
    with (
        FaultProxy(own.address) as proxy,
        queue_on(proxy.url, face, retry_for=30, call_timeout=0.25) as queue,
        ThreadPoolExecutor(1) as pool,
    ):

        def while_stopped(call: Callable[..., Any], *args: Any) -> Any:
            tries = proxy.connections
            with own.paused():
                waiting = pool.submit(call, *args)
                wait_until(lambda: proxy.connections >= tries + 2, "the call to be given up and repeated")
            return waiting.result(20)

        assert len(while_stopped(queue.enqueue_many, [b"a", b"b", b"c"])) == 3
        assert queue.counts().ready == 3
        first, second = while_stopped(queue.lease_many, 2)
        assert (queue.counts().ready, queue.counts().running) == (1, 2)
        assert while_stopped(queue.complete, first) is True
        assert while_stopped(lambda: queue.retry(second, delay=0)) is True
        again = queue.lease_many(5)
        assert [(lease.data, lease.failures) for lease in again] == [(b"c", 0), (b"b", 1)]
        assert queue.complete_many(again) == [True, True]
