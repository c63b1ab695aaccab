"""Servers that refuse for a while, as a replica, loading, busy or full: waited for, or told when there is no time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis

from tests.support.faces import Face
from tests.support.server import HOST, Server, redis_binary, valkey_binary
from tests.support.server_states import BOTH_FACES, queue_on
from tests.support.waiting import wait_until
from tests.topology.life import drain
from windlass import Queue, errors


@BOTH_FACES
def test_a_replica_takes_no_writes(own: Server, face: type[Face]) -> None:
    with (
        Server(config={"replicaof": f"{HOST} {own.port}"}) as replica,
        queue_on(replica.url, face, retry_for=0.2) as queue,
    ):
        with pytest.raises(errors.ServerReadOnly, match=r"READONLY.*primary"):
            queue.enqueue(b"x")
        assert queue.counts().ready == 0


@BOTH_FACES
def test_a_replica_that_lost_its_primary_and_says_nothing(face: type[Face]) -> None:
    config = {"replicaof": f"{HOST} 1", "replica-serve-stale-data": "no"}
    server = Server(config=config)
    starting = threading.Thread(target=lambda: _ignoring_errors(server.start))
    starting.start()
    try:
        wait_until(lambda: server.info("replication"), "the replica to run", ignoring=(redis.RedisError, OSError))
        with queue_on(server.url, face, retry_for=0.2) as queue:
            for call in (lambda: queue.enqueue(b"x"), queue.counts):
                with pytest.raises(errors.ServerReadOnly, match=r"READONLY|MASTERDOWN"):
                    call()
        server.command("REPLICAOF", "NO", "ONE")
        starting.join(20)
    finally:
        server.close()
        starting.join(20)


def _ignoring_errors(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:  # the server was closed under it
        pass


@pytest.fixture(scope="module", params=["valkey", "redis 7.0"])
def slow_loader(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that needs a second to read its data, again at each start."""
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed")
    config = {"key-load-delay": "2000", "loading-process-events-interval-bytes": "1024"}
    with Server(binary, config=config) as server:
        with server.client() as client:
            client.mset({f"ballast:{number}": "x" * 200 for number in range(500)})
            client.save()
        yield server


@contextmanager
def loading(server: Server) -> Iterator[None]:
    """The server is started anew and has begun to read its data."""
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(server.start)
        wait_until(
            lambda: server.info("persistence")["loading"] == "1",
            "the server to be loading",
            ignoring=(redis.RedisError, OSError),
        )
        yield
        started.result(20)


@BOTH_FACES
def test_a_server_that_is_loading_is_waited_for(slow_loader: Server, face: type[Face]) -> None:
    with queue_on(slow_loader.url, face, retry_for=20) as queue:
        with loading(slow_loader):
            queue.enqueue(b"x")
        assert drain(queue) == [b"x"]


@BOTH_FACES
def test_a_server_that_is_loading_is_told_when_there_is_no_time(slow_loader: Server, face: type[Face]) -> None:
    with (
        queue_on(slow_loader.url, face, retry_for=0.1) as queue,
        loading(slow_loader),
        pytest.raises(errors.ServerLoading, match="LOADING"),
    ):
        queue.enqueue(b"x")


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_a_server_held_up_by_a_script(own: Server, face: type[Face]) -> None:
    own.command("CONFIG", "SET", "busy-reply-threshold", "10")
    with ThreadPoolExecutor(2) as pool, queue_on(own.url, face, retry_for=20, name="before") as before:
        before.counts()  # one that has its connection, and one that comes when the server is busy
        endless = pool.submit(_ignoring_errors, lambda: own.command("EVAL", "while true do end", 0, timeout=30))
        try:
            wait_until(lambda: _is_busy(own), "the server to be busy")
            with (
                queue_on(own.url, face, retry_for=0.1) as queue,
                pytest.raises(errors.ServerBusy, match="BUSY"),
            ):
                queue.enqueue(b"x")
            waiting = pool.submit(before.enqueue, b"x")
        finally:
            own.command("SCRIPT", "KILL")
            endless.result(10)
        waiting.result(20)
        assert drain(before) == [b"x"]


def _is_busy(server: Server) -> bool:
    try:
        server.command("PING")
    except redis.ResponseError as error:
        return "BUSY" in str(error) or "busy" in str(error)
    return False


def fill(queue: Queue) -> int:
    """Enqueues until the server is full; how many jobs it took."""
    for taken in range(1000):
        try:
            queue.enqueue(b"x" * 10_000)
        except errors.QueueFull:
            return taken
    raise AssertionError("the server is never full")


@BOTH_FACES
@pytest.mark.usefixtures("tidy")
def test_a_full_server_refuses_new_jobs_and_works_off_the_old(own: Server, face: type[Face]) -> None:
    with queue_on(own.url, face, max_dead=10) as queue:
        used = int(own.info("memory")["used_memory"])
        own.command("CONFIG", "SET", "maxmemory", used + 2_000_000)
        try:
            taken = fill(queue)
            assert taken > 20
            assert queue.counts().ready == taken, "a refused job must leave no trace"
            with pytest.raises(errors.QueueFull, match="maxmemory"):
                queue.enqueue_many([b"y" * 100_000] * 5)
            own.command("SCRIPT", "FLUSH")
            own.command("CLIENT", "KILL", "TYPE", "normal")
            first, second, third, fourth, fifth = queue.lease_many(5)
            assert queue.extend(first, 60)
            assert queue.progress(first, 0.5)
            assert queue.retry(first, delay=0, message="m" * 1000)
            assert queue.fail(second, "m" * 1000)
            assert queue.release(third)
            assert queue.cancel(third.id)
            assert queue.cancel(fourth.id, running=True)
            assert queue.complete(fourth)
            assert queue.complete(fifth)
            assert queue.pause()
            assert queue.resume()
            assert not queue.beat("someone", register=True)
            (held,) = queue.lease_many(1, holder="someone")
            assert queue.complete(held)
            assert queue.audit(repair=True).repaired == 0
            assert len(drain(queue)) == taken - 5
            assert queue.counts().waiting == 0
            assert queue.enqueue(b"room again").id
            assert drain(queue) == [b"room again"]
            queue.purge()
        finally:
            own.command("CONFIG", "SET", "maxmemory", 0)
