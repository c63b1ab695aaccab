"""How safe an acknowledged job is: what is asked for is confirmed by the server, and the receipt never claims more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.proxy import DROP_REPLY, FaultProxy, nth
from tests.support.replication import EAGER_REPLICATION, follows
from tests.support.server import Server, redis_binary, valkey_binary
from tests.support.waiting import wait_until
from windlass import RawJob, Receipt, Status, Windlass
from windlass.errors import InvalidOption, InvalidTask, NotDurable, OutcomeUnknown
from windlass.values.durability import Durability

NONE = {"appendonly": "no"}
EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec"}
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
SKIPPING = ALWAYS | {"no-appendfsync-on-rewrite": "yes"}


@contextmanager
def app_on(server: Server, **options: object) -> Iterator[Windlass]:
    with Windlass(server.tcp_url, call_timeout=1, retry_for=2, **options) as app:  # type: ignore[arg-type]
        yield app
        app.queue("q").purge()


def reached(server: Server, level: str | None) -> str:
    """What the receipt says, or what an error says was reached."""
    with app_on(server, durability=level) as app:
        queue = app.queue("q")
        try:
            return queue.enqueue(b"x").durability
        except NotDurable as error:
            short = error
        assert (short.asked, short.receipts[0].durability) == (level, short.reached)
        assert queue.counts().ready == 1, "it says that the server has the job"
        return f"only {short.reached}"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (NONE, ("memory", "memory", "only memory", "only memory", "only memory")),
        (EVERYSEC, ("memory", "memory", "everysec", "only everysec", "only everysec")),
        (ALWAYS, ("memory", "memory", "fsync", "fsync", "only fsync")),
        # While it rewrites its log it writes nothing to the disk.
        (SKIPPING, ("memory", "memory", "only memory", "only memory", "only memory")),
    ],
    ids=["none", "everysec", "always", "skipping"],
)
def test_a_receipt_states_what_the_server_confirmed(config: dict[str, str], expected: tuple[str, ...]) -> None:
    with Server(valkey_binary(), config=config, tcp=True) as server:
        levels = (None, "memory", "everysec", "fsync", "replicated(1)")
        assert tuple(reached(server, level) for level in levels) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (NONE, ("only memory", "only memory")),
        (EVERYSEC, ("everysec", "only everysec")),
        (ALWAYS, ("fsync", "fsync")),
        (SKIPPING, ("only memory", "only memory")),
    ],
    ids=["none", "everysec", "always", "skipping"],
)
def test_a_server_that_cannot_wait_for_its_disk_is_asked_for_its_settings(
    config: dict[str, str], expected: tuple[str, ...]
) -> None:
    binary = redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with Server(binary, config=config, tcp=True) as server:
        assert (reached(server, "everysec"), reached(server, "fsync")) == expected


def test_settings_that_may_not_be_seen_promise_nothing() -> None:
    with Server(valkey_binary(), config=ALWAYS, tcp=True) as server:
        server.command("ACL", "SETUSER", "default", "-config")
        assert (reached(server, "everysec"), reached(server, "fsync")) == ("only memory", "only memory")


def test_the_embedded_server_gives_fsync_without_being_asked(tmp_path: Path) -> None:
    with Windlass(home=tmp_path / "home") as app:
        queue = app.queue("q")
        assert queue.enqueue(b"x", id="a") == Receipt("a", Status.ADDED, "fsync")
        assert queue.enqueue(b"x", id="b", durability="everysec").durability == "fsync"
        assert asyncio.run(queue.aenqueue(b"x", id="c", durability="memory")).durability == "fsync"
        queue.purge()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica."""
    with Server(valkey_binary(), config=ALWAYS | EAGER_REPLICATION, tcp=True) as primary:
        follow = {"replicaof": f"127.0.0.1 {primary.port}"}
        with Server(valkey_binary(), config=ALWAYS | EAGER_REPLICATION | follow, tcp=True) as replica:
            wait_until(lambda: follows(replica) and primary.command("WAIT", 1, 100) == 1, "the replica follows")
            yield primary, replica


def test_replicated_waits_for_replicas_and_counts_them(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    assert reached(primary, "replicated(1)") == "replicated(1)"
    assert reached(primary, "replicated(2)") == "only replicated(1)"
    with replica.paused():
        assert reached(primary, "replicated(1)") == "only fsync"


def test_a_repeat_after_a_lost_reply_waits_for_the_replica_as_well(pair: tuple[Server, Server]) -> None:
    """`WAIT` counts for the writes of its own connection, and the first answer may have gone to another."""
    primary, replica = pair
    with FaultProxy(primary.address) as proxy, Windlass(proxy.url, call_timeout=1, retry_for=3) as app:
        queue = app.queue("q", durability="replicated(1)")
        queue.enqueue(b"warm up", id="a")
        proxy.faults = nth(DROP_REPLY, only={"EVALSHA"})
        with replica.paused(), pytest.raises(NotDurable, match="with durability fsync instead of"):
            queue.enqueue(b"x", id="b")
        proxy.faults = nth(DROP_REPLY, only={"EVALSHA"})
        assert queue.enqueue(b"x", id="c").durability == "replicated(1)"
        assert queue.counts().ready == 3
        queue.purge()


def test_the_safest_level_of_a_batch_is_kept_for_all_of_it(pair: tuple[Server, Server]) -> None:
    with app_on(pair[0], durability={"orders": "replicated(1)", "*": "memory"}) as app:
        receipts = app.queue("q").enqueue_many([b"x", RawJob(b"y", durability="replicated(1)")])
        assert [receipt.durability for receipt in receipts] == ["replicated(1)"] * 2
        assert app.queue("orders").enqueue(b"x").durability == "replicated(1)"
        assert app.queue("orders", durability="memory").enqueue(b"x").durability == "memory"
        assert app.queue("others").enqueue(b"x").durability == "memory"
        for name in ("orders", "others"):
            app.queue(name).purge()


def test_a_task_tells_how_safe_its_job_is(pair: tuple[Server, Server]) -> None:
    with app_on(pair[0]) as app:

        @app.task(queue="q")
        def pay(amount: int) -> None: ...

        assert pay.enqueue(1).durability == "memory"
        assert pay.using(durability="replicated(1)").enqueue(1).durability == "replicated(1)"
        with pytest.raises(InvalidOption, match="durability cannot be set for a handed-over job"):
            app.hand_over("q", pay.using(durability="fsync").call(1))
        with pytest.raises(InvalidTask, match="cannot have the option 'durability'"):
            app.schedule("often", pay.using(durability="fsync").call(1), every=60)


@pytest.mark.parametrize("setting", [("appendonly", "no"), ("appendfsync", "everysec"), ("appendfsync", "no")])
def test_settings_are_asked_for_each_time(setting: tuple[str, str]) -> None:
    with Server(valkey_binary(), config=ALWAYS, tcp=True) as server, app_on(server) as app:
        queue = app.queue("q", durability="fsync")
        assert queue.enqueue(b"x").durability == "fsync"
        server.command("CONFIG", "SET", *setting)
        with pytest.raises(NotDurable):
            queue.enqueue(b"x")
        server.command("CONFIG", "SET", "appendonly", "yes", "appendfsync", "always")
        wait_until(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "the first log to be written")
        assert queue.enqueue(b"x").durability == "fsync"
        assert app.queue("q").enqueue(b"x").durability == "memory", "what is not asked for is not claimed"


def test_an_fsync_receipt_means_that_the_disk_was_written() -> None:
    """WAITAOF answers too early in this server: it must not be what a receipt stands on."""
    with Server(valkey_binary(), config=EVERYSEC, tcp=True) as server:
        assert [reached(server, "fsync") for _ in range(5)] == ["only everysec"] * 5


def test_all_are_sent_before_it_is_told_that_they_are_not_safe_enough(pair: tuple[Server, Server]) -> None:
    with app_on(pair[0]) as app:
        with pytest.raises(NotDurable) as short:
            app.queue("q", durability="replicated(2)").enqueue_many([b"x"] * 2100)
        assert len(short.value.receipts) == 2100
        assert app.queue("q").counts().ready == 2100

        @app.task(queue="q")
        def one() -> None: ...

        @app.task(queue="others")
        def other() -> None: ...

        calls = [one.using(durability="replicated(2)").call(), other.call(), one.call()]
        with pytest.raises(NotDurable) as short:
            app.enqueue_many(calls)
        assert [receipt.durability for receipt in short.value.receipts] == ["replicated(1)", "memory", "replicated(1)"]
        assert app.queue("others").counts().ready == 1
        app.queue("others").purge()


def test_a_primary_that_is_demoted_while_it_waits_has_not_confirmed_anything() -> None:
    with (
        Server(valkey_binary(), config=ALWAYS | EAGER_REPLICATION, tcp=True) as primary,
        Windlass(primary.tcp_url, call_timeout=5, retry_for=1) as app,
    ):
        queue = app.queue("q", durability="replicated(1)")
        with ThreadPoolExecutor(1) as pool:
            enqueueing = pool.submit(queue.enqueue, b"x")
            wait_until(lambda: b"cmd=wait" in primary.command("CLIENT", "LIST"), "it to wait for replicas")
            primary.command("REPLICAOF", "127.0.0.1", 1)
            with pytest.raises(OutcomeUnknown):
                enqueueing.result()
        primary.command("REPLICAOF", "NO", "ONE")
        queue.purge()


@pytest.mark.parametrize("level", ["disk", "replicated", "replicated(0)", "replicated(1000)", "Fsync", "", 2, b"fsync"])
def test_a_level_that_does_not_exist_is_refused(level: object) -> None:
    with pytest.raises(InvalidOption, match="durability must be"):
        Windlass("redis://127.0.0.1:1", durability={"*": level})  # type: ignore[dict-item]
    with pytest.raises(InvalidOption, match="durability must be"):
        Windlass("redis://127.0.0.1:1").queue("q").enqueue(b"", durability=level)  # type: ignore[arg-type]


def test_levels_have_an_order() -> None:
    names = ["memory", "everysec", "fsync", "replicated(1)", "replicated(2)"]
    levels = [Durability.parse(name) for name in names]
    assert levels == sorted(levels)
    assert [str(level) for level in levels] == names
