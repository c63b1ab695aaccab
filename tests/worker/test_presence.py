"""The list of workers: records, their lifetime, and workers that may not publish. And the list of queues."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from msgspec import structs

from tests.support.cluster import Cluster
from tests.support.conditions import until
from tests.support.internals import aperform_call, perform_call
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Windlass, __version__, errors
from windlass.storage.native import keys, scripts
from windlass.storage.port import Call
from windlass.transport import presence as fleet
from windlass.values.worker_record import WorkerRecord
from windlass.worker import presence
from windlass.worker.settings import Settings
from windlass.worker.supervisor.supervisor import Supervisor

SEEN, ABOUT = keys.presence_keys()
RECORD = WorkerRecord(
    name="one",
    host="here",
    pid=42,
    version="1",
    started_at=5.0,
    queues={"emails": 3},
    slots={"loop": 100, "thread": 8, "process": 2},
    running=7,
    finished=1000,
    rss=2**30,
    state="stopping",
)


@pytest.fixture(scope="module")
def empty_server() -> Iterator[Server]:
    """A server without other workers and queues."""
    with Server() as server:
        yield server


@pytest.fixture
def server(empty_server: Server) -> Server:
    return empty_server


def tell(app: Windlass, *records: WorkerRecord) -> None:
    for record in records:
        perform_call(app, fleet.beat(record))


def forget(app: Windlass, *names: str) -> None:
    for name in names:
        perform_call(app, fleet.forget(name))


def make_older(client: redis.Redis, name: str, seconds: float) -> None:
    """Let time pass for one worker."""
    client.zincrby(SEEN, -seconds * 1000, name)


# -- the registry ------------------------------------------------------------------------------------


@pytest.mark.serves("W12")
def test_a_published_record_is_listed_unchanged(app: Windlass, client: redis.Redis) -> None:
    tell(app, RECORD)
    (found,) = app.workers()
    server_time = client.time()[0]
    assert found.seen_at == pytest.approx(server_time, abs=2)
    assert found == WorkerRecord(**{name: getattr(RECORD, name) for name in ABOUT_FIELDS}, seen_at=found.seen_at)
    forget(app, "one")
    assert app.workers() == []


ABOUT_FIELDS = [name for name in WorkerRecord.__struct_fields__ if name != "seen_at"]


async def test_the_awaitable_twin(app: Windlass) -> None:
    await aperform_call(app, fleet.beat(RECORD))
    assert [worker.name for worker in await app.aworkers()] == ["one"]
    await aperform_call(app, fleet.forget("one"))
    assert await app.aworkers() == []


def test_workers_are_listed_by_name_and_each_once(app: Windlass) -> None:
    tell(app, WorkerRecord("b"), WorkerRecord("a"), WorkerRecord("b", running=2))
    assert [(worker.name, worker.running) for worker in app.workers()] == [("a", 0), ("b", 2)]
    forget(app, "a", "b")


@pytest.mark.serves("P6")
def test_a_worker_without_a_beat_for_a_minute_is_unlisted(app: Windlass, client: redis.Redis) -> None:
    tell(app, WorkerRecord("dead"), WorkerRecord("quiet"))
    make_older(client, "dead", 61)
    make_older(client, "quiet", 58)
    assert [worker.name for worker in app.workers()] == ["quiet"]
    assert client.hexists(ABOUT, "dead"), "a reader writes nothing"
    tell(app, WorkerRecord("new"))
    assert client.zrange(SEEN, 0, -1) == [b"quiet", b"new"]
    assert sorted(client.hkeys(ABOUT)) == [b"new", b"quiet"]
    forget(app, "quiet", "new")


def test_records_of_dead_workers_leave_no_keys(app: Windlass, client: redis.Redis) -> None:
    tell(app, RECORD)
    for key in (SEEN, ABOUT):
        assert 30_000 < client.pttl(key) <= 60_000
    forget(app, "one")
    assert not client.exists(SEEN, ABOUT)


def test_a_beat_from_the_future_does_not_count(app: Windlass, client: redis.Redis) -> None:
    """The server's clock was put back by a day."""
    tell(app, WorkerRecord("gone"), WorkerRecord("here"))
    make_older(client, "gone", -86_400)
    assert [worker.name for worker in app.workers()] == ["here"]
    tell(app, WorkerRecord("gone"))
    assert len(app.workers()) == 2
    forget(app, "gone", "here")


@pytest.mark.parametrize("told", [b"no json", b"[]", b'{"name": 1}', b"\xff", None])
def test_a_worker_of_another_version_is_listed_too(app: Windlass, client: redis.Redis, told: bytes | None) -> None:
    tell(app, WorkerRecord("odd"))
    if told is None:
        client.hdel(ABOUT, "odd")
    else:
        client.hset(ABOUT, "odd", told)
    (found,) = app.workers()
    assert (found.name, found.state) == ("odd", "unknown")
    forget(app, "odd")


def test_unknown_fields_of_a_newer_version_are_ignored(app: Windlass, client: redis.Redis) -> None:
    tell(app, WorkerRecord("new"))
    client.hset(ABOUT, "new", b'{"name": "new", "host": "there", "mood": "fine"}')
    assert app.workers()[0].host == "there"
    forget(app, "new")


@pytest.mark.parametrize("key", [SEEN, ABOUT])
def test_a_foreign_key_in_its_place_raises_and_is_not_changed(app: Windlass, client: redis.Redis, key: str) -> None:
    client.set(key, "foreign")
    with pytest.raises(errors.KeyConflict):
        tell(app, RECORD)
    assert client.keys("*") == [key.encode()]
    client.delete(key)


def test_no_queue_can_have_these_keys() -> None:
    with pytest.raises(errors.InvalidName):
        Windlass("redis://127.0.0.1:1").queue(".workers")


def test_a_thousand_workers(app: Windlass, client: redis.Redis) -> None:
    names = [f"w{n:04}" for n in range(1000)]
    tell(app, *map(WorkerRecord, names))
    assert [worker.name for worker in app.workers()] == names
    client.delete(SEEN, ABOUT)


def test_the_rights_in_the_docs_are_enough(server: Server) -> None:
    """The worker's line has every command of the writing script, the reader's of the reading one."""
    commands = {name.decode().upper() for name in server.command("COMMAND", "LIST")}
    for script, role in ((scripts.PRESENCE_BEAT, "worker"), (scripts.PRESENCE_LIST, "reader")):
        line = (Path(__file__).parents[2] / "docs" / "acl" / f"{role}.acl").read_text()
        granted = {name.upper() for name in re.findall(r"\+(\w+)", line)}
        assert commands.intersection(re.findall(r"'([A-Z]+)'", script.text)) <= granted


# -- publishing --------------------------------------------------------------------------------------


async def test_a_worker_is_listed_until_it_ends(app: Windlass) -> None:
    beats = iter(range(1000))
    working = asyncio.create_task(
        presence.keep_presence(app, "w", lambda: WorkerRecord("w", finished=next(beats)), 0.01, asyncio.Event())
    )
    await until(lambda: next(beats) > 10)
    (worker,) = await app.aworkers()
    assert worker.finished > 0
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert await app.aworkers() == []


async def test_an_unchanged_record_is_sent_less_often_and_news_soon(
    app: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[WorkerRecord] = []
    beat = fleet.beat

    def tell(record: WorkerRecord, namespace: str) -> Call[bool]:
        told.append(record)
        return beat(record, namespace)

    monkeypatch.setattr(presence, "beat", tell)
    asked = 0
    now = WorkerRecord("w", every=0.5)

    def record() -> WorkerRecord:
        nonlocal asked
        asked += 1
        return structs.replace(now, rss=asked)  # changed memory is no news

    working = asyncio.create_task(presence.keep_presence(app, "w", record, 0.01, asyncio.Event()))
    await until(lambda: len(told) == 3)
    assert asked > 10
    now = structs.replace(now, finished=1, every=60.0)
    await until(lambda: len(told) == 4)
    assert told[-1].finished == 1
    (listed,) = await app.aworkers()
    assert listed.finished == 1
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_a_stop_is_published_at_once(app: Windlass) -> None:
    stopping = asyncio.Event()
    states = {True: "stopping", False: "working"}
    working = asyncio.create_task(
        presence.keep_presence(app, "w", lambda: WorkerRecord("w", state=states[stopping.is_set()]), 60, stopping)
    )
    await until(app.workers)
    stopping.set()
    await until(lambda: [worker.state for worker in app.workers()] == ["stopping"], 2)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_missing_rights_are_logged_once(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    server.command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "+@all", "&*", "~windlass:{emails}:*")
    beats = iter(range(1000))
    with caplog.at_level(logging.INFO, "windlass.presence"):
        async with Windlass(f"unix://narrow:pw@{server.socket_path}", retry_for=1) as app:
            working = asyncio.create_task(
                presence.keep_presence(app, "w", lambda: WorkerRecord("w", pid=next(beats)), 0.01, asyncio.Event())
            )
            await until(lambda: next(beats) > 10)
            assert not working.done()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    server.command("ACL", "DELUSER", "narrow")
    (line,) = caplog.messages
    assert "cannot publish its presence" in line


async def test_a_dead_server_does_not_delay_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with Server() as server:
        beats = iter(range(1000))
        app = Windlass(server.url, retry_for=10)
        working = asyncio.create_task(
            presence.keep_presence(app, "w", lambda: WorkerRecord("w", pid=next(beats)), 0.01, asyncio.Event())
        )
        await until(lambda: next(beats) > 5)
        with server.paused():
            working.cancel()
            async with asyncio.timeout(presence.DELETE_TIMEOUT_S + 2):
                await asyncio.gather(working, return_exceptions=True)
        await app.aclose()


# -- a real worker -----------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> str:
    """An app of its own, by name."""
    (tmp_path / "fleet_shop.py").write_text(
        "from windlass import Windlass\n"
        f"app = Windlass({server.url!r})\n"
        "@app.task(queue='fleet-emails')\n"
        "async def welcome() -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    return "fleet_shop:app"


async def test_a_supervisor_publishes_its_worker(app: Windlass, shop: str) -> None:
    settings = Settings("supervisor-1", {"fleet-emails": 2}, lease=1.5, threads=3, processes=1, concurrency=5, grace=5)
    supervisor = asyncio.create_task(Supervisor(shop, settings).run())
    await until(app.workers)
    (worker,) = app.workers()
    assert (worker.name, worker.pid, worker.version, worker.state) == (
        "supervisor-1",
        os.getpid(),
        __version__,
        "working",
    )
    assert worker.queues == {"fleet-emails": 2}
    assert worker.slots == {"loop": 5, "thread": 3, "process": 1}
    app.queue("fleet-emails").enqueue(b'{"task": "welcome"}')
    await until(lambda: [w.finished for w in app.workers()] == [1])
    await until(lambda: (app.workers()[0].rss or 0) > 1_000_000)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(supervisor, 15) == 0
    assert app.workers() == []


# -- queues ------------------------------------------------------------------------------------------


@pytest.mark.serves("P7")
def test_queues_are_found_in_every_state(app: Windlass, client: redis.Redis) -> None:
    assert app.queues() == []
    app.queue("b").enqueue(b"x")
    app.queue("a.b-c_d").enqueue(b"x", delay=60)
    app.queue("z").pause()
    client.lpush(keys.queue_key("pushed", "inbox"), b"x")
    tell(app, RECORD)
    assert app.queues() == ["a.b-c_d", "b", "pushed", "z"]
    for name in app.queues():
        app.queue(name).purge()
    client.delete(SEEN, ABOUT)


def test_keys_that_only_look_like_a_queue_are_ignored(app: Windlass, client: redis.Redis) -> None:
    odd = ["windlass:{a b}:state", "windlass:{}:state", "windlass:{q}:stabe", "windlass:{q}:result:{x}:state", "state"]
    for key in odd:
        client.set(key, "x")
    assert app.queues() == []
    client.delete(*odd)


async def test_queues_awaited_and_among_many_other_keys(app: Windlass, client: redis.Redis) -> None:
    client.mset({f"other:{n}": "x" for n in range(5000)})
    await app.queue("needle").aenqueue(b"x")
    assert await app.aqueues() == ["needle"]
    await app.queue("needle").apurge()
    client.delete(*(f"other:{n}" for n in range(5000)))


def test_queues_of_all_nodes_of_a_cluster() -> None:
    names = [f"q{n}" for n in range(12)]
    with Cluster(primaries=3) as cluster, Windlass(cluster.url, retry_for=5) as app:
        for name in names:
            app.queue(name).enqueue(b"x")
        assert {cluster.owner(cluster.slot_of(keys.queue_key(name, "state"))) for name in names} == {0, 1, 2}
        assert app.queues() == sorted(names)
        tell(app, RECORD)
        assert [worker.name for worker in app.workers()] == ["one"]


def test_queues_of_a_server_that_cannot_be_reached() -> None:
    app = Windlass("redis://127.0.0.1:1", retry_for=0.1)
    with pytest.raises(errors.ServerUnreachable, match=r"127\.0\.0\.1:1"):
        app.queues()


def test_queues_are_read_again_when_the_server_comes_back() -> None:
    with Server() as server, Windlass(server.url, retry_for=10) as app:
        app.queue("kept").enqueue(b"x")
        server.restart()
        wait_until(lambda: app.queues() == [], "an answer of the new server")


def test_missing_scan_rights_raise(server: Server) -> None:
    server.command("ACL", "SETUSER", "blind", "reset", "on", ">pw", "+@all", "-scan", "~*", "&*")
    with Windlass(f"unix://blind:pw@{server.socket_path}", retry_for=1) as app, pytest.raises(errors.AccessDenied):
        app.queues()
    server.command("ACL", "DELUSER", "blind")
