"""Servers that are too old, full, silent, loading, forgetful or gone: what a caller is told, and what goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from tests.support.faces import FACES, Face
from tests.support.proxy import (
    DROP_REPLY,
    FORWARD,
    HANG,
    Fault,
    FaultProxy,
    always,
    nth,
    pretend_version,
    random_faults,
)
from tests.support.servers import HOST, Server, redis_binary, valkey_binary, wait_until
from tests.topology.life import drain, every_verb, leased
from windlass import Lease, Queue, Windlass, errors
from windlass.layouts.native import keys
from windlass.transport import Endpoint

BOTH_FACES = pytest.mark.parametrize("face", FACES, ids=["blocking", "awaitable"])
PASSWORD = "hunter2-7f3a"


@contextmanager
def queue_on(url: str, face: type[Face] = FACES[0], name: str = "states", **options: Any) -> Iterator[Queue]:
    """A queue of an app of its own, through one of its two faces."""
    with Windlass(url, **{"retry_for": 5, **options}) as app:
        shown = face(app.queue(name))
        try:
            yield cast(Queue, shown)
        finally:
            shown.close()


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server whose settings and life the tests of this module may change."""
    with Server(tcp=True) as server:
        yield server


@pytest.fixture
def tidy(own: Server) -> Iterator[None]:
    """The check that no key is left on it."""
    yield
    left = own.command("KEYS", "*")
    own.command("FLUSHALL")
    assert left == []


# -- servers that must not be used ----------------------------------------------------------------


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


# -- servers that cannot be reached, or let nobody in ---------------------------------------------


@BOTH_FACES
@pytest.mark.parametrize(
    "url", [f"redis://{HOST}:1/0", "unix:///nowhere/server.sock", "redis://no-such-host.invalid:6379/0"]
)
def test_an_unreachable_server_is_told_soon(face: type[Face], url: str) -> None:
    with queue_on(url, face, retry_for=0.2) as queue:
        began = time.monotonic()
        with pytest.raises(errors.ServerUnreachable, match=r"'states'.*nothing was sent"):
            queue.enqueue(b"x")
        assert time.monotonic() - began < 3


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
    with queue_on(url, face, retry_for=30) as queue:
        began = time.monotonic()
        with pytest.raises(errors.AccessDenied, match="password"):
            queue.enqueue(b"x")
        assert time.monotonic() - began < 3, "repeating it cannot help"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(tcp=True, config={"requirepass": PASSWORD}) as server:
        yield server


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


# -- passwords are never shown --------------------------------------------------------------------


@BOTH_FACES
def test_the_password_is_shown_nowhere(face: type[Face], guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    for url in (
        f"redis://:{PASSWORD}@{HOST}:1/0",
        f"redis://nobody:{PASSWORD}@{HOST}:{guarded.port}/0",
        f"redis://:{PASSWORD}@{HOST}:{guarded.port}/99",
        f"unix://:{PASSWORD}@/nowhere.sock",
        f"rediss://:{PASSWORD}@{HOST}:{guarded.port}/0",
        f"redis+sentinel://:{PASSWORD}@{HOST}:1/main/0?sentinel_password={PASSWORD}",
    ):
        endpoint = Endpoint.parse(url)
        seen += [repr(endpoint), str(endpoint)]
        with Windlass(url, retry_for=0.05, call_timeout=0.3) as app:
            queue = cast(Queue, face(app.queue("states")))
            seen += [repr(app), str(app), repr(app.queue("states"))]
            with pytest.raises(errors.WindlassError) as refused:
                queue.enqueue(b"x")
            queue.close()  # type: ignore[attr-defined]
        seen += traceback.format_exception(refused.value)
    seen.append(caplog.text)
    assert [text for text in seen if PASSWORD in text] == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:{}/more@host:6379/0",
        "redis://user:{}#more@host:6379/0",
        "redis://user:{}?more@host:6379/0",
        "redis://:{}@host:port/0",
        "redis://:{}@host:6379/zero",
        "redis://host:6379/0?password={}",
        "redis://user:6379/{}@host:6379/0",
        "redis+sentinel://:{}@host:26379",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    """A password with a slash in it is the usual way to a broken URL, so the message must not quote what it saw."""
    with pytest.raises(errors.InvalidOption) as refused:
        Windlass(url.format(PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


def test_every_url_of_the_page_can_be_read() -> None:
    page = (Path(__file__).parents[1] / "docs" / "server.md").read_text()
    written = re.findall(r"`(\w[\w+]*://[^`]*)`", page)
    urls = [url for url in written if "…" not in url and url not in ("redis://", "rediss://")]
    assert {url.partition(":")[0] for url in urls} == {
        "redis", "rediss", "valkey", "valkeys", "unix", "redis+sentinel", "rediss+sentinel", "embedded",
    }  # fmt: skip
    for url in urls:
        Endpoint.parse(url)


# -- servers that refuse for a while --------------------------------------------------------------


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
            assert queue.clean(deep=True).mended == 0
            assert len(drain(queue)) == taken - 5
            assert queue.counts().waiting == 0
            assert queue.enqueue(b"room again").id
            assert drain(queue) == [b"room again"]
            queue.purge()
        finally:
            own.command("CONFIG", "SET", "maxmemory", 0)


# -- servers that forget, cut off or fall silent --------------------------------------------------


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
        assert (queue.counts().ready, queue.counts().leased) == (1, 2)
        assert while_stopped(queue.complete, first) is True
        assert while_stopped(lambda: queue.retry(second, delay=0)) is True
        again = queue.lease_many(5)
        assert [(lease.data, lease.failures) for lease in again] == [(b"c", 0), (b"b", 1)]
        assert queue.complete_many(again) == [True, True]


# -- programs that fork, and tasks that are cancelled ---------------------------------------------


def in_a_fork(work: Callable[[], None]) -> int:
    """Runs work in a forked child; the child's pid. It ends with 0 when the work went well."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def assert_ended_well(pid: int, patience: float = 30) -> None:
    ended = threading.Event()
    timer = threading.Timer(patience, lambda: None if ended.is_set() else os.kill(pid, signal.SIGKILL))
    timer.start()
    try:
        _, status = os.waitpid(pid, 0)
        ended.set()
    finally:
        timer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.usefixtures("tidy")
def test_a_program_that_forks_and_enqueues_on_both_sides(own: Server, tmp_path: Path) -> None:
    """Each side reads only its own answers, though the child was born with the parent's open connections."""
    with queue_on(own.url) as queue:
        queue.enqueue(b"first", id="first")

        def enqueue_and_look(side: str) -> None:
            for number in range(200):
                id = f"{side}-{number}"
                assert queue.enqueue(id.encode(), id=id).id == id
                found = queue.get(id)
                assert found is not None
                assert found.data == id.encode()

        children = [in_a_fork(lambda side=side: enqueue_and_look(f"child{side}")) for side in range(2)]  # type: ignore[misc]
        enqueue_and_look("parent")
        for child in children:
            assert_ended_well(child)
        assert len(set(drain(queue))) == 601
        queue.purge()


@pytest.mark.usefixtures("tidy")
def test_an_asyncio_program_that_forks_keeps_its_connections(own: Server) -> None:
    """The child must not touch the parent's event loop: the kernel's list of sockets is shared between them."""

    async def both_sides(app: Windlass) -> float:
        queue = app.queue("states")
        await queue.aenqueue(b"before")

        def child() -> None:
            fresh = app.queue("states")
            fresh.enqueue(b"child")

        pid = in_a_fork(child)
        began = time.monotonic()
        await asyncio.to_thread(assert_ended_well, pid)
        for _ in range(20):
            await queue.aenqueue(b"parent")
        return time.monotonic() - began

    with Windlass(own.url, retry_for=10, call_timeout=3) as app:
        taken = asyncio.run(both_sides(app))
        assert len(drain(app.queue("states"))) == 22
        app.queue("states").purge()
    assert taken < 2.5, "a connection went silent"


@pytest.mark.usefixtures("tidy")
async def test_tasks_cancelled_in_the_middle_of_a_call_never_mix_up_replies(own: Server) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    faults = random_faults(seed, drop_reply=0, delays=0.5, delay_seconds=0.003, only={"EVALSHA"})
    with FaultProxy(own.address, faults=faults, unix=True) as proxy:
        async with Windlass(proxy.url, retry_for=10) as app:
            queue = app.queue("states")
            ids = [f"job-{number}" for number in range(50)]
            await asyncio.gather(*(queue.aenqueue(id.encode() * 3, id=id) for id in ids))
            cancelled = answered = 0

            async def ask(id: str) -> None:
                if chance.random() < 0.5:
                    found = await queue.aget(id)
                    assert found is not None
                    assert (found.id, found.data) == (id, id.encode() * 3)
                else:
                    receipt = await queue.aenqueue(id.encode() * 3, id=id)
                    assert receipt.id == id
                    assert receipt.status == "updated"

            async def ask_and_cancel() -> None:
                nonlocal cancelled, answered
                while cancelled < 500:
                    task = asyncio.create_task(ask(chance.choice(ids)))
                    spared = chance.random() < 0.1
                    await asyncio.wait([task], timeout=None if spared else chance.random() * 0.006)
                    if task.cancel():
                        cancelled += 1
                    else:
                        answered += 1
                    try:
                        await task
                    except asyncio.CancelledError:
                        pass

            await asyncio.gather(*(ask_and_cancel() for _ in range(5)))
            assert cancelled >= 500
            assert answered > 20
            proxy.faults = None
            for id in ids:
                await ask(id)
            assert await queue.apurge() == len(ids)
