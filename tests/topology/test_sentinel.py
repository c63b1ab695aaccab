"""Through Sentinel: the primary is found, and found again when it is another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.seats import PrimarySeat
from tests.support.sentinel import SentinelGroup
from tests.support.server import HOST, Server
from tests.support.waiting import wait_until
from tests.topology.life import BOTH_FACES, QueueLife, drain, every_verb, through
from windlass import Queue, Windlass, errors


@pytest.fixture
def server(group: SentinelGroup) -> PrimarySeat:
    return PrimarySeat(group)


class TestThroughSentinel(QueueLife):
    """The representative life."""


@pytest.fixture
def tidy(group: SentinelGroup) -> Iterator[None]:
    """The check that no key is left, on whichever server is the primary in the end."""
    yield
    primary = primary_other_than(None, group)
    # What is remembered of lost calls goes by itself.
    assert [key for key in primary.command("KEYS", "*") if not 0 < primary.command("PTTL", key) <= 600_000] == []


@pytest.mark.usefixtures("tidy")
def test_a_dead_sentinel_is_passed_over(group: SentinelGroup) -> None:
    victim = group.sentinels[0]
    victim.kill()
    try:
        for _ in range(5):
            with Windlass(group.url, retry_for=5) as app:
                app.queue("sentinels").enqueue(b"x")
                assert drain(app.queue("sentinels")) == [b"x"]
    finally:
        victim.start()


@BOTH_FACES
def test_a_wrong_service_name_is_told(group: SentinelGroup, face: type) -> None:
    with Windlass(group.url.replace(group.NAME, "nosuch"), retry_for=0.2) as app:
        queue = through(face, app.queue("q"))
        with pytest.raises(errors.ServerUnreachable, match=r"'nosuch'.*no Sentinel knows this service"):
            queue.enqueue(b"x")
        queue.close()  # type: ignore[attr-defined]


def test_no_sentinel_at_all_is_told() -> None:
    with (
        Windlass(f"redis+sentinel://{HOST}:1,{HOST}:2/mymaster/0", retry_for=0.2) as app,
        pytest.raises(errors.ServerUnreachable, match=r"'mymaster'.*refused"),
    ):
        app.queue("q").enqueue(b"x")


def test_a_sentinel_that_wants_a_password_is_told() -> None:
    """What a Sentinel answers is passed on: “none of them knows it” would send people looking in the wrong place."""
    with (
        Server(unix=False, tcp=True, config={"requirepass": "secret"}) as closed,
        Windlass(f"redis+sentinel://{HOST}:{closed.port}/mymaster/0", retry_for=0.2) as app,
        pytest.raises(errors.WindlassError, match="NOAUTH"),
    ):
        app.queue("q").enqueue(b"x")


def test_an_address_that_is_no_sentinel_is_told() -> None:
    with (
        Server(unix=False, tcp=True) as plain,
        Windlass(f"redis+sentinel://{HOST}:{plain.port}/mymaster/0", retry_for=0.2) as app,
        pytest.raises(errors.WindlassError, match="unknown command"),
    ):
        app.queue("q").enqueue(b"x")


class Producer:
    """A thread that enqueues without pause and notes when each job was acknowledged."""

    def __init__(self, queue: Queue) -> None:
        self.acknowledged: list[tuple[float, bytes]] = []
        self.errors: list[BaseException] = []
        self._queue = queue
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(60)

    def wait_for_more(self, count: int = 20) -> None:
        goal = len(self.acknowledged) + count
        wait_until(lambda: self.errors or len(self.acknowledged) >= goal, "calls to go on")

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                data = b"%d" % len(self.acknowledged)
                self._queue.enqueue(data)
                self.acknowledged.append((time.monotonic(), data))
        except BaseException as error:
            self.errors.append(error)


def primary_other_than(old: Server | None, group: SentinelGroup) -> Server:
    """The primary that all sentinels name and that says so itself, once it is another."""

    def found() -> Server | None:
        try:
            named = group.primary
        except LookupError:
            return None
        return named if named is not old and named.command("ROLE")[0] == b"master" else None

    return wait_until(found, "another primary", ignoring=(redis.ConnectionError,))


def change_primary(group: SentinelGroup, how: Callable[[], object], queue: Queue) -> None:
    """Lets a producer run across a change of primaries: calls go on, nothing acknowledged afterwards is lost."""
    old = group.primary
    with Producer(queue) as producer:
        producer.wait_for_more()
        how()
        primary_other_than(old, group)
        promoted_at = time.monotonic()
        producer.wait_for_more()
    assert producer.errors == []
    done = drain(queue)
    assert len(done) == len(set(done)), "a job was doubled"
    safe = {data for when, data in producer.acknowledged if when > promoted_at}
    assert safe
    assert safe <= set(done), "a job acknowledged after the promotion is gone"


@pytest.mark.usefixtures("tidy")
@BOTH_FACES
def test_calls_go_on_when_the_primary_dies(group: SentinelGroup, face: type) -> None:
    killed: list[Server] = []
    with Windlass(group.url, retry_for=20, call_timeout=2) as app:
        queue = through(face, app.queue("killed"))
        change_primary(group, lambda: killed.append(group.kill_primary()), queue)
        every_verb(queue)
        queue.close()  # type: ignore[attr-defined]
    killed[0].start()
    group.wait_replicas(2)


@pytest.mark.usefixtures("tidy")
def test_a_waiter_outlives_the_primary_it_waits_on(group: SentinelGroup) -> None:
    with Windlass(group.url, retry_for=20, call_timeout=2) as app:
        queue = app.queue("waiting")
        found: list[object] = []
        waiter = threading.Thread(target=lambda: found.append(queue.lease(30, 30)))
        old = group.primary
        waiter.start()
        wait_until(lambda: old.command("ZCARD", "windlass:{waiting}:idle"), "the waiter to be idle")
        killed = group.kill_primary()
        primary_other_than(killed, group)
        receipt = queue.enqueue(b"at last")
        waiter.join(20)
        assert [getattr(lease, "id", None) for lease in found] == [receipt.id]
        assert queue.purge() == 1
    killed.start()
    group.wait_replicas(2)


@pytest.mark.usefixtures("tidy")
def test_a_primary_that_was_demoted_is_left(group: SentinelGroup) -> None:
    """Connections to it stay open and answer READONLY: the session must ask the sentinels again."""
    old = group.primary
    heir = next(server for server in group.servers if server is not old)

    def demote() -> None:
        heir.command("REPLICAOF", "NO", "ONE")
        old.command("REPLICAOF", HOST, heir.port or 0)
        wait_until(lambda: "errorstat_READONLY" in old.info("errorstats"), "a call to be refused as READONLY")

    with Windlass(group.url, retry_for=20, call_timeout=2) as app:
        queue = app.queue("demoted")
        change_primary(group, demote, queue)
        every_verb(queue)
    group.wait_replicas(2)
