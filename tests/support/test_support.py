"""Tests of the servers and proxies that the other tests use."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import redis

from tests.support.cluster import Cluster
from tests.support.proxy import (
    CUT_REQUEST,
    DROP_REPLY,
    DROP_REQUEST,
    FORWARD,
    HANG,
    HANG_REPLY,
    Fault,
    FaultProxy,
    Framer,
    TlsProxy,
    always,
    arguments,
    delay,
    delay_reply,
    nth,
    pretend_version,
    random_faults,
)
from tests.support.sentinel import SentinelGroup
from tests.support.server import Server, ServerExited, plain_client, redis_binary, valkey_binary
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> Path:
    if request.param == "valkey":
        return valkey_binary()
    found = redis_binary()
    if found is None:
        pytest.skip("no redis-server on PATH")
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy
    server.command("FLUSHALL")


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[redis.Redis]:
    with plain_client(port=proxy.port, timeout=1.0) as client:
        yield client


# One server


@pytest.mark.parametrize(("unix", "tcp"), [(True, False), (False, True), (True, True)])
def test_a_server_answers_where_it_says(binary: Path, unix: bool, tcp: bool) -> None:
    with Server(binary, unix=unix, tcp=tcp) as server:
        urls = ([server.url] if unix else []) + ([server.tcp_url] if tcp else [])
        for url in urls:
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        assert server.url.startswith("unix://" if unix else "redis://127.0.0.1:")
        folder, pid = server.dir, server.pid
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_directives_and_password_reach_the_server() -> None:
    with Server(tcp=True, config={"requirepass": "hush", "maxmemory": "7mb"}) as server:
        assert server.command("CONFIG", "GET", "maxmemory")[1] == b"7340032"
        for url in (server.url, server.tcp_url):
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        with plain_client(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerExited, match="no-such-directive"), Server(config={"no-such-directive": "1"}):
        pass


def test_a_killed_server_keeps_what_it_acknowledged(binary: Path) -> None:
    with Server(binary, appendonly=True, appendfsync="always") as server:
        for number in range(200):
            server.command("RPUSH", "acknowledged", number)
        server.kill()
        assert server.returncode == -signal.SIGKILL
        assert any(b"acknowledged" in path.read_bytes() for path in server.aof_files())
        server.restart()
        assert server.command("LLEN", "acknowledged") == 200
        assert server.stop() == 0
        server.start()
        assert server.command("LLEN", "acknowledged") == 200


def test_a_restarted_server_keeps_its_port() -> None:
    with Server(unix=False, tcp=True) as server:
        url = server.url
        server.restart()
        assert server.url == url
        assert server.command("PING") == b"PONG"


def test_a_paused_server_is_silent_and_then_goes_on(server: Server) -> None:
    with server.paused(), server.client(timeout=0.1) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    assert server.command("PING") == b"PONG"


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_no_server_outlives_the_tests_that_started_it() -> None:
    story = "from tests.support.server import *; s = Server(); s.start(); print(s.pid, s.dir, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", story], cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        pid, folder = child.stdout.readline().decode().split()
        assert Path(f"/proc/{pid}").exists()
        child.kill()
    wait_until(lambda: _gone(int(pid)), "the server to end")
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = Server()
    try:
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        assert server.command("PING") == b"PONG"
        assert server.alive
    finally:
        server.close()


# Groups of servers


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[Cluster]:
    with Cluster(binary=binary, replicas=1, node_timeout_ms=500) as cluster:
        yield cluster


def test_a_cluster_serves(cluster: Cluster) -> None:
    with redis.RedisCluster.from_url(cluster.url) as client:
        for number in range(50):
            client.set(f"key:{number}", number)
        assert client.get("key:49") == b"49"


def test_a_slot_moves_step_by_step(cluster: Cluster) -> None:
    source, slot = cluster.node_of("{tag}"), cluster.slot_of("{tag}")
    keys = [f"{{tag}}:{number}" for number in range(5)]
    for key in keys:
        source.command("SET", key, key)

    to = (cluster.owner(slot) + 1) % 3
    move = cluster.begin_move(slot, to)
    assert move.migrate(2) == 2
    with pytest.raises(redis.exceptions.TryAgainError):
        source.command("MGET", *keys)
    with pytest.raises(RuntimeError, match="3 keys"):
        move.finish()
    assert move.migrate() == 3
    with pytest.raises(redis.exceptions.AskError):
        source.command("GET", keys[4])
    move.finish()
    assert cluster.node_of("{tag}") is cluster.nodes[to]
    assert cluster.nodes[to].command("GET", keys[4]) == keys[4].encode()
    with pytest.raises(redis.exceptions.MovedError):
        source.command("GET", keys[4])

    cluster.move_slot(slot, (to + 1) % 3)
    assert cluster.node_of("{tag}").command("EXISTS", *keys) == 5


def test_a_cluster_fails_over_when_asked_and_when_a_primary_is_killed(cluster: Cluster) -> None:
    key = "{06S}"  # in slot 0
    cluster.nodes[0].command("SET", key, "kept")
    assert cluster.failover(0) is cluster.nodes[3]
    assert cluster.node_of(key).command("GET", key) == b"kept"
    cluster.nodes[3].kill()
    cluster.wait_ok()
    assert cluster.owner(0) == 0
    assert cluster.node_of(key).command("GET", key) == b"kept"


def test_sentinels_name_a_new_primary(binary: Path) -> None:
    with SentinelGroup(binary=binary) as group:
        first = group.primary
        with first.client() as client:
            client.set("kept", "yes")
            assert client.wait(2, 2000) == 2
        assert group.kill_primary() is first
        second = group.wait_new_primary()
        assert second is not first
        assert second.command("GET", "kept") == b"yes"
        assert second is group.primary
        first.restart()
        group.wait_replicas(2)
        assert first.command("GET", "kept") == b"yes"


# The fault proxy


@pytest.mark.parametrize(
    ("fault", "applied"),
    [(DROP_REPLY, 1), (DROP_REQUEST, 0), (CUT_REQUEST, 0)],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_the_client_sees_a_closed_connection(
    server: Server, proxy: FaultProxy, client: redis.Redis, fault: Fault, applied: int
) -> None:
    proxy.faults = nth(fault, only={"INCRBY"})
    with pytest.raises(redis.ConnectionError):
        client.incr("count")
    assert int(server.command("GET", "count") or 0) == applied
    assert client.incr("count") == applied + 1
    assert proxy.counts[fault.kind] == 1


@pytest.mark.parametrize(("fault", "applied"), [(HANG, 0), (HANG_REPLY, 1)], ids=["hang", "hang_reply"])
def test_the_client_waits_in_vain(
    server: Server, proxy: FaultProxy, client: redis.Redis, fault: Fault, applied: int
) -> None:
    proxy.faults = nth(fault, only={"INCRBY"})
    with (
        plain_client(port=proxy.port, timeout=0.2) as hasty,
        pytest.raises(redis.TimeoutError),
    ):
        hasty.incr("count")
    assert int(server.command("GET", "count") or 0) == applied
    assert client.incr("count") == applied + 1


def test_a_delayed_request_arrives_after_its_client_left(server: Server, proxy: FaultProxy) -> None:
    proxy.faults = nth(delay(0.3), only={"INCRBY"})
    with plain_client(port=proxy.port, timeout=0.1) as hasty, pytest.raises(redis.TimeoutError):
        hasty.incr("count")
    assert server.command("GET", "count") is None
    wait_until(lambda: server.command("GET", "count") == b"1", "the late request")


def test_a_delayed_reply_is_late(proxy: FaultProxy, client: redis.Redis) -> None:
    proxy.faults = nth(delay_reply(0.2), only={"INCRBY"})
    start = time.monotonic()
    assert client.incr("count") == 1
    assert time.monotonic() - start >= 0.2


def test_in_a_pipeline_only_the_chosen_request_is_hit(server: Server, proxy: FaultProxy, client: redis.Redis) -> None:
    assert proxy.port is not None
    proxy.faults = nth(DROP_REQUEST, only=lambda request: request == [b"INCR", b"third"])
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=2.0) as raw:
        raw.sendall(b"INCR first\r\n*2\r\n$4\r\nINCR\r\n$6\r\nsecond\r\nINCR third\r\nINCR fourth\r\n")
        assert _read_all(raw) == b":1\r\n:1\r\n"
    assert server.command("EXISTS", "first", "second") == 2
    assert server.command("EXISTS", "third", "fourth") == 0


def test_large_and_nested_replies_pass(proxy: FaultProxy, client: redis.Redis) -> None:
    big = bytes(range(256)) * 8192
    with client.pipeline(transaction=True) as pipeline:
        for _ in range(3):
            pipeline.set("big", big)
            pipeline.get("big")
            pipeline.lrange("none", 0, -1)
            pipeline.get("none")
        assert pipeline.execute() == [True, big, [], None] * 3
    script = "local t = {} for i = 1, 20000 do t[i] = {i, {}, false, 'x'} end return t"
    reply: Any = client.eval(script, 0)
    assert reply == [[number, [], None, b"x"] for number in range(1, 20001)]


def test_resp3_passes(proxy: FaultProxy) -> None:
    with plain_client(port=proxy.port, protocol=3) as client:
        client.hset("hash", mapping={"a": "1"})
        client.zadd("ranked", {"a": 1.5})
        assert client.hgetall("hash") == {b"a": b"1"}
        assert client.zscore("ranked", "a") == 1.5
        assert client.info("server")["process_id"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_pass_through(server: Server, proxy: FaultProxy, protocol: int) -> None:
    proxy.faults = always(DROP_REPLY, only={"PING"})
    with (
        plain_client(port=proxy.port, protocol=protocol) as client,
        client.pubsub(ignore_subscribe_messages=False) as channel,
    ):
        channel.subscribe("news")
        told: Any = channel.get_message(timeout=2.0)
        assert told["type"] == "subscribe"
        for number in range(20):
            server.command("PUBLISH", "news", number)
        for number in range(20):
            told = channel.get_message(timeout=2.0)
            assert told["data"] == b"%d" % number


def test_a_replica_can_follow_through_the_proxy() -> None:
    with (
        Server(tcp=True, config={"repl-diskless-sync-delay": "0"}) as primary,
        FaultProxy(("127.0.0.1", primary.port or 0)) as proxy,
        Server(tcp=True, config={"replicaof": f"127.0.0.1 {proxy.port}"}) as replica,
    ):
        primary.command("SET", "key", "value")
        wait_until(lambda: replica.command("GET", "key") == b"value", "the replica to follow")


@pytest.mark.parametrize("protocol", [2, 3])
def test_another_version_is_pretended(proxy: FaultProxy, protocol: int) -> None:
    proxy.faults = pretend_version("6.0.16")
    with plain_client(port=proxy.port, protocol=protocol) as client:
        info = client.info("server")
        assert info["redis_version"] == "6.0.16"
        assert "valkey_version" not in info
        hello: Any = client.execute_command("HELLO", protocol)
        said = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2], strict=True))
        assert (said[b"server"], said[b"version"]) == (b"redis", b"6.0.16")


def test_chance_faults_are_counted_and_repeat(server: Server, proxy: FaultProxy) -> None:
    def hits(seed: int) -> tuple[list[int], int]:
        proxy.faults = random_faults(seed, drop_reply=0.2, drop_request=0.2, only={"INCRBY"})
        proxy.counts.clear()
        server.command("DEL", "count")
        lost = []
        with plain_client(port=proxy.port) as client:
            for number in range(100):
                try:
                    client.incr("count")
                except redis.ConnectionError:
                    lost.append(number)
        assert len(lost) == proxy.counts["drop_reply"] + proxy.counts["drop_request"]
        assert int(server.command("GET", "count")) == 100 - proxy.counts["drop_request"]
        return lost, proxy.counts["drop_reply"]

    assert hits(7) == hits(7)
    assert hits(7) != hits(8)


def test_a_proxy_can_go_down_and_come_back(server: Server) -> None:
    for unix in (False, True):
        with FaultProxy(server.address, unix=unix) as proxy, redis.Redis.from_url(proxy.url) as client:
            client.set_retry(redis.retry.Retry(redis.backoff.NoBackoff(), 0))
            assert client.ping()
            proxy.disconnect()
            assert client.ping()
            assert proxy.connections == 2
            proxy.down()
            with pytest.raises(redis.ConnectionError):
                client.ping()
            proxy.up()
            assert client.ping()
            assert proxy.connections == 3


def test_what_a_fault_function_raises_is_not_lost(server: Server) -> None:
    def broken(request: list[bytes]) -> Fault:
        raise ZeroDivisionError

    proxy = FaultProxy(server.address, faults=broken)
    proxy.start()
    with plain_client(port=proxy.port) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(ZeroDivisionError):
        proxy.close()


def test_a_closed_proxy_leaves_nothing_behind(server: Server) -> None:
    threads, handles = set(threading.enumerate()), _open_files()
    with FaultProxy(server.address, faults=nth(HANG, only={"GET"})) as proxy, TlsProxy(server.address) as tls:
        clients = [socket.create_connection(("127.0.0.1", proxy.port or 0)) for _ in range(5)]
        clients.append(socket.create_connection(("127.0.0.1", tls.port or 0)))  # never starts the TLS handshake
        secure = _tls_client(tls)
        assert secure.ping()
        clients[0].sendall(b"GET hung\r\n")
        clients[1].sendall(b"BLPOP nothing 0\r\n")
        clients[2].sendall(b"SUBSCRIBE news\r\n*2\r\n$3")
        clients[3].sendall(b"*2\r\n$3\r\nGET")
        wait_until(lambda: proxy.connections == 5 and proxy.requests == 3, "the requests")
    for connection in clients:
        connection.close()
    secure.close()
    assert set(threading.enumerate()) == threads
    assert _open_files() == handles


@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_messages_are_found_however_they_are_cut(step: int) -> None:
    messages = [
        b"+OK\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$0\r\n\r\n",
        b"$4\r\n\r\n\r\n\r\n",
        b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n-ERR no\r\n",
        b"%1\r\n+key\r\n~2\r\n#t\r\n_\r\n",
        b"|1\r\n+ttl\r\n:5\r\n$1\r\nv\r\n",
        b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"PING\r\n",
    ]
    stream, framer, found = b"".join(messages), Framer(), []
    for start in range(0, len(stream), step):
        framer.feed(stream[start : start + step])
        while (frame := framer.next()) is not None:
            found.append(frame)
    assert found == messages
    assert arguments(b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n") == [b"GET", b"\r\n"]
    assert arguments(b"get  key\r\n") == [b"get", b"key"]
    assert random_faults(1, drop_reply=0.0)([b"GET"]) is FORWARD


# The TLS proxy


@pytest.mark.parametrize(
    ("certificate", "trusted", "why"),
    [
        ("good", True, None),
        ("good", False, "self-signed|unable to get local issuer"),
        ("expired", True, "expired"),
        ("wrong_host", True, "IP address mismatch"),
        ("untrusted", True, "unable to get local issuer|self-signed"),
    ],
)
def test_tls_is_as_good_as_its_certificate(
    server: Server,
    certificate: Literal["good", "expired", "wrong_host", "untrusted"],
    trusted: bool,
    why: str | None,
) -> None:
    with (
        TlsProxy(server.address, certificate=certificate) as proxy,
        _tls_client(proxy, trusted=trusted) as client,
    ):
        if why is None:
            big = b"x" * 1_000_000
            assert client.set("big", big)
            assert client.get("big") == big
            assert client.delete("big") == 1
        else:
            with pytest.raises(redis.ConnectionError, match=why):
                client.ping()


def test_tls_can_ask_for_the_client_s_certificate(server: Server) -> None:
    with TlsProxy(server.address, require_client_certificate=True) as proxy:
        with _tls_client(proxy, certificate=proxy.client_cert_path) as client:
            assert client.ping()
        with _tls_client(proxy) as stranger, pytest.raises(redis.ConnectionError):
            stranger.ping()


def _tls_client(proxy: TlsProxy, *, trusted: bool = True, certificate: Path | None = None) -> redis.Redis:
    connect: Callable[..., redis.Redis] = redis.Redis.from_url
    return connect(
        proxy.url,
        retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        ssl_ca_certs=str(proxy.ca_path) if trusted else None,
        ssl_certfile=str(certificate) if certificate else None,
        ssl_keyfile=str(certificate) if certificate else None,
    )


def _read_all(raw: socket.socket) -> bytes:
    return b"".join(iter(lambda: raw.recv(4096), b""))


def _open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def _gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
