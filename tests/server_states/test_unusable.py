"""Servers that must not be used, cannot be reached or let nobody in: the caller is told which, and soon."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.faces import Face
from tests.support.proxy import HANG, FaultProxy, always, pretend_version
from tests.support.server import HOST, Server, redis_binary, valkey_binary
from tests.support.server_states import BOTH_FACES, PASSWORD, queue_on
from tests.topology.life import drain
from windlass import errors

# -- servers that must not be used -----------------------------------------------------------------


@BOTH_FACES
@pytest.mark.parametrize(("name", "version"), [("redis", "6.2.14"), ("redis", "5.0.0"), ("valkey", "7.0.0")])
def test_a_server_that_is_too_old_is_refused(own: Server, face: type[Face], name: Any, version: str) -> None:
    with (
        FaultProxy(own.address, faults=pretend_version(version, name)) as proxy,
        queue_on(proxy.url, face) as queue,
        pytest.raises(errors.ServerTooOld, match=rf"{name} {version}.*Redis 7\.0 or Valkey 7\.2"),
    ):
        queue.enqueue(b"x")
    assert own.command("KEYS", "*") == []


@pytest.mark.parametrize(("name", "version"), [("redis", "7.0.0"), ("redis", "8.2.1"), ("valkey", "7.2.0")])
@pytest.mark.usefixtures("tidy")
def test_a_server_that_is_just_new_enough_is_not(own: Server, name: Any, version: str) -> None:
    with FaultProxy(own.address, faults=pretend_version(version, name)) as proxy, queue_on(proxy.url) as queue:
        queue.enqueue(b"x")
        assert drain(queue) == [b"x"]


@BOTH_FACES
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "allkeys-random", "volatile-ttl"])
@pytest.mark.usefixtures("tidy")
def test_a_server_that_may_evict_is_refused_unless_allowed(own: Server, face: type[Face], policy: str) -> None:
    own.command("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        with queue_on(own.url, face) as queue, pytest.raises(errors.ServerMayEvict, match=f"{policy}.*noeviction"):
            queue.enqueue(b"x")
        assert own.command("KEYS", "*") == []
        with queue_on(own.url, face, allow_eviction=True) as queue:
            queue.enqueue(b"x")
            assert drain(queue) == [b"x"]
    finally:
        own.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


# -- servers that cannot be reached, or let nobody in ----------------------------------------------


@BOTH_FACES
@pytest.mark.parametrize(
    "url", [f"redis://{HOST}:1/0", "unix:///nowhere/server.sock", "redis://no-such-host.invalid:6379/0"]
)
def test_an_unreachable_server_is_told_soon(face: type[Face], url: str) -> None:
    unreachable = pytest.raises(errors.ServerUnreachable, match=r"nothing was sent.*'states'")
    with queue_on(url, face, retry_for=0.2) as queue, unreachable:
        queue.enqueue(b"x")


@BOTH_FACES
def test_a_server_that_never_answers_is_told(own: Server, face: type[Face]) -> None:
    with (
        FaultProxy(own.address, faults=always(HANG)) as proxy,
        queue_on(proxy.url, face, retry_for=0.2, call_timeout=0.2) as queue,
        pytest.raises(errors.ServerUnreachable, match="nothing was sent"),
    ):
        queue.enqueue(b"x")
    assert own.command("KEYS", "*") == []


@BOTH_FACES
@pytest.mark.parametrize("user", [":wrong", "nobody:" + PASSWORD, ""])
def test_a_wrong_or_missing_password_is_told_at_once(face: type[Face], guarded: Server, user: str) -> None:
    url = f"redis://{user}@{HOST}:{guarded.port}/0" if user else f"redis://{HOST}:{guarded.port}/0"
    # Repeating it cannot help, so it is not repeated.
    with queue_on(url, face, retry_for=300) as queue, pytest.raises(errors.AccessDenied, match="password"):
        queue.enqueue(b"x")


@BOTH_FACES
def test_a_database_that_does_not_exist_is_told(own: Server, face: type[Face]) -> None:
    with (
        queue_on(f"redis://{HOST}:{own.port}/99", face, retry_for=0.2) as queue,
        pytest.raises(errors.WindlassError, match=r"(?i)database") as refused,
    ):
        queue.enqueue(b"x")
    assert not isinstance(refused.value, errors.ServerFault), "this is the URL's fault, and no reason for a report"


@pytest.mark.usefixtures("tidy")
def test_databases_are_apart(own: Server) -> None:
    with (
        queue_on(f"redis://{HOST}:{own.port}/3") as third,
        queue_on(f"unix://{own.socket_path}?db=3") as same,
        queue_on(own.url) as other,
    ):
        third.enqueue(b"x")
        assert other.counts().ready == 0
        assert drain(same) == [b"x"]


@BOTH_FACES
@pytest.mark.parametrize("which", ["valkey", "redis 7.0"])
def test_a_server_with_no_room_for_another_client_is_told(face: type[Face], which: str) -> None:
    binary = valkey_binary() if which == "valkey" else redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with Server(binary, tcp=True, config={"maxclients": "4"}) as server, ThreadPoolExecutor(1) as pool:
        others = [server.client() for _ in range(4)]
        for other in others:
            other.ping()
        for url in (server.url, server.tcp_url) * 2:
            with (
                queue_on(url, face, retry_for=0.05) as queue,
                pytest.raises(errors.ServerUnreachable, match="nothing was sent"),
            ):
                queue.enqueue(b"x")
        with queue_on(server.url, face, retry_for=20) as queue:
            call = pool.submit(queue.enqueue, b"x")
            for other in others[:3]:
                other.close()
            call.result(20)
            assert len(drain(queue)) == 1
        others[3].close()
