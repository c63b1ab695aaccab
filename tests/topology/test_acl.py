"""The users of docs/acl: each may do its part and nothing more, and the server notes no breach while it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.internals import handle_on, layout_of, perform, perform_call, settle
from tests.support.server import Server, redis_binary, valkey_binary
from tests.support.waiting import wait_until
from tests.topology.life import BOTH_FACES, drain, every_verb, fill_every_key, leased, through
from windlass import Lease, Limits, Queue, RawJob, State, Status, Windlass, errors
from windlass.storage.native import keys, scripts
from windlass.values.job import NewJob
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    HandOver,
    Kept,
    NoFailureHandler,
    Released,
    UnknownTask,
)

RULES = Path(__file__).parents[2] / "docs" / "acl"
ROLES = ("producer", "worker", "reader")
TOO_NEW_FOR_REDIS_7_0 = (" +client|setinfo", " +waitaof")


def rules(role: str) -> str:
    return (RULES / f"{role}.acl").read_text()


def without_what_is_too_new(rules: str) -> str:
    for right in TOO_NEW_FOR_REDIS_7_0:
        rules = rules.replace(right, "")
    return rules


@pytest.fixture(scope="module", params=["valkey", "redis 7.0"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that loads the three files as they stand, as its `aclfile`."""
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed")
    server = Server(binary)
    lines = "".join(map(rules, ROLES))
    if request.param != "valkey":
        lines = without_what_is_too_new(lines)
    users = server.dir / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\n" + lines)
    server.config["aclfile"] = str(users)
    with server:
        yield server


def as_role(server: Server, role: str) -> Windlass:
    url = f"unix://windlass-{role}:change-me@{server.socket_path}"
    return Windlass(url, retry_for=2)


@pytest.fixture
def master(server: Server) -> Iterator[Queue]:
    """The queue as someone sees it who may do everything."""
    server.command("ACL", "LOG", "RESET")
    with Windlass(server.url, retry_for=2) as app:
        yield app.queue("guarded")
        app.queue("guarded").purge()
        server.command("DEL", keys.queue_key("guarded", "schedules"), keys.queue_key("guarded", "ticks"))
    with server.client() as client:
        for mark in client.keys(keys.result_key("guarded", "*")):
            client.delete(mark)
    assert server.command("KEYS", "*") == []


def snapshot(server: Server) -> dict[bytes, Any]:
    """Everything that is stored, but for the idle waiters, who come and go."""
    with server.client() as client:
        names: list[bytes] = sorted(client.keys("*"))
        return {name: client.dump(name) for name in names if not name.endswith(b":idle")}


def assert_no_breach(server: Server) -> None:
    """What the server noted of forbidden commands, keys and channels: nothing."""
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in server.command("ACL", "LOG")]
    assert [(entry[b"username"], entry[b"context"], entry[b"object"]) for entry in entries] == []


# -- what each may do -----------------------------------------------------------------------------


@BOTH_FACES
def test_a_producer_puts_jobs_on_a_queue_in_every_way(server: Server, master: Queue, face: type) -> None:
    with as_role(server, "producer") as app, ThreadPoolExecutor(1) as pool:
        queue = through(face, app.queue("guarded"))
        assert queue.enqueue(b"plain").status is Status.ADDED
        assert len(queue.enqueue_many([b"a", RawJob(b"b", priority=0), RawJob(b"c", id="c", delay=60)])) == 3
        assert queue.enqueue(b"kept", id="c", if_exists="keep").status is Status.KEPT
        assert queue.enqueue(b"soon", id="soon", delay=0.05, max_failures=1).status is Status.ADDED
        assert queue.enqueue(b"sooner", id="c", delay=30).status is Status.UPDATED
        assert queue.update("c", delay=0, priority=9)
        assert queue.update("c", delay=60)
        assert queue.update("c", run_at=1)
        assert not queue.update("nosuch", priority=1)
        wait_until(lambda: master.counts().ready == 5, "the scheduled job to be due")
        assert queue.enqueue(b"promotes it", id="d").status is Status.ADDED
        running = leased(master)
        assert queue.enqueue(b"behind", id=running.id).status is Status.BLOCKED
        assert queue.enqueue(b"merged", id=running.id).status is Status.BLOCKED
        assert master.complete(running)
        drain(master)
        waiter = pool.submit(master.lease, 30, 20)
        wait_until(lambda: server.command("ZCARD", keys.queue_key("guarded", "idle")), "the waiter to be idle")
        queue.enqueue(b"wakes it")
        found = waiter.result(10)
        assert found is not None
        assert found.data == b"wakes it"
        queue.close()  # type: ignore[attr-defined]
    assert_no_breach(server)


@BOTH_FACES
def test_a_worker_leases_and_settles_in_every_way(server: Server, master: Queue, face: type) -> None:
    with as_role(server, "worker") as app:
        queue = through(face, app.queue("guarded"))
        master.enqueue_many(RawJob(b"%d" % n, id=str(n), max_stalls=0 if n == 4 else 3) for n in range(8))
        server.command("LPUSH", keys.queue_key("guarded", "inbox"), b"by hand")
        first, second, third, fourth = queue.lease_many(4)
        assert master.enqueue(b"behind", id=first.id).status is Status.BLOCKED
        assert queue.extend(first, 60)
        assert queue.progress(first, 0.5)
        assert queue.complete(first)
        assert queue.release(second)
        assert queue.retry(third, delay=0.05, message="again")
        assert queue.fail(fourth, "for good")
        assert not queue.beat("someone", 30, register=True)
        assert queue.beat("someone", 30)
        (held,) = queue.lease_many(1, holder="someone")
        assert queue.extend(held, 30)
        assert queue.complete(held)
        lost = queue.lease_many(2, seconds=0.01)
        wait_until(lambda: queue.clean().recovered, "the leases to end")
        assert queue.complete_many(lost) == [False, False]
        assert master.counts().dead == 2
        assert queue.enqueue(b"a worker may enqueue", id="more").status is Status.ADDED
        assert queue.cancel("more")
        got = [lease for lease in (queue.lease(30, 20) for _ in range(6)) if lease]
        assert sorted(lease.data for lease in got) == [b"2", b"5", b"6", b"7", b"behind", b"by hand"]
        assert queue.cancel(got[0].id, running=True)
        assert all(queue.complete_many(got))
        assert queue.lease(30, 0.05) is None
        queue.close()  # type: ignore[attr-defined]
    assert_no_breach(server)


def test_a_worker_does_what_only_workers_do(server: Server, master: Queue) -> None:
    with as_role(server, "worker") as app:
        queue = app.queue("guarded")
        perform(queue, lambda layout: layout.beat("someone", 30, register=True, failure_handler=Limits()))
        job = handle_on(queue, "0")
        master.enqueue_many(RawJob(b"", id=str(n), max_stalls=0) for n in range(7))
        events = job.events(timeout=20)
        assert next(events).kind == "ready"
        first, *others = queue.lease_many(7)
        children = (HandOver("guarded", NewJob("here", b"")), HandOver("elsewhere", NewJob("there", b"")))
        assert (
            settle(
                queue,
                Completed(first, Kept(b"42", 60_000), children),
                Failed(others[0], "no", 60_000),
                Crashed(others[1], "killed", True),
                Crashed(others[2], "killed", False),
                Broken(others[3], "not JSON"),
                UnknownTask(others[4], "task"),
                Released(others[5]),
            )
            == (True,) * 7
        )
        assert [event.kind for event in events] == ["started", "completed"]
        assert job.result() == 42
        (parcel,) = perform(queue, lambda layout: layout.outbox(10))
        assert perform(app.queue("elsewhere"), lambda layout: layout.forward("guarded", [parcel])) == 1
        assert perform(queue, lambda layout: layout.outbox(10, [parcel.seq])) == []
        assert perform(queue, lambda layout: layout.unpark(["task"])) == 1
        assert queue.revive([others[3].id]) == [True]
        failures = [lease for lease in queue.lease_many(10) if lease.is_failure_job]
        assert settle(queue, NoFailureHandler(failures[0])) == (True,)
        assert app.queue("elsewhere").purge() == 1
    # It remembers for a while what came from another queue.
    assert 0 < server.command("PTTL", keys.queue_key("elsewhere", "state")) <= 86_400_000
    server.command("DEL", keys.queue_key("elsewhere", "state"), *(keys.result_key("guarded", id) for id in ("0", "1")))
    assert_no_breach(server)


@BOTH_FACES
def test_a_reader_looks_at_everything(server: Server, master: Queue, face: type) -> None:
    fill_every_key(
        master,
        lambda key, data: server.command("LPUSH", key, data),
        lambda key: server.command("ZADD", key, 1, "nobody"),
    )
    before = snapshot(server)
    with as_role(server, "reader") as app:
        queue = through(face, app.queue("guarded"))
        counts = queue.counts()
        assert (counts.ready, counts.scheduled, counts.blocked) == (1, 1, 1)
        assert (counts.running, counts.dead, counts.inbox) == (1, 1, 1)
        for id in ("ready", "noted", "runs", "grave", "broken"):
            assert queue.get(id) is not None
        assert perform(queue, lambda layout: layout.remains("ready")).result is None
        schedules = layout_of(queue).schedules
        assert schedules is not None
        assert len(perform_call(queue, schedules.page(None)).rows) == 1
        assert len(perform_call(queue, schedules.named(["nightly"])).rows) == 1
        assert queue.get("nosuch") is None
        for state in State:
            page = queue.jobs(state, limit=1)
            assert len(page.jobs) == 1
            if page.cursor:
                queue.jobs(state, cursor=page.cursor)
            assert len(list(queue.all_jobs(state))) == 1
        queue.close()  # type: ignore[attr-defined]
    assert snapshot(server) == before
    assert_no_breach(server)
    server.command("DEL", keys.queue_key("guarded", "idle"))


# -- what each may not do -------------------------------------------------------------------------

Verb = Callable[[Queue, Lease], object]
VERBS: dict[str, Verb] = {
    "enqueue": lambda queue, _: queue.enqueue(b"x", id="new"),
    "update": lambda queue, _: queue.update("ready", data=b"y"),
    "lease": lambda queue, _: queue.lease(),
    "complete": lambda queue, lease: queue.complete(lease),
    "release": lambda queue, lease: queue.release(lease),
    "retry": lambda queue, lease: queue.retry(lease),
    "fail": lambda queue, lease: queue.fail(lease),
    "extend": lambda queue, lease: queue.extend(lease, 5),
    "progress": lambda queue, lease: queue.progress(lease, 0.7),
    "beat": lambda queue, _: queue.beat("someone", register=True),
    "cancel": lambda queue, _: queue.cancel("ready"),
    "cancel running": lambda queue, lease: queue.cancel(lease.id, running=True),
    "pause": lambda queue, _: queue.pause(),
    "resume": lambda queue, _: queue.resume(),
    "clean": lambda queue, _: queue.clean(),
    "deep clean": lambda queue, _: queue.audit(repair=True),
    "purge": lambda queue, _: queue.purge(),
    "purge blocked": lambda queue, _: queue.purge(State.BLOCKED),
    "purge ready": lambda queue, _: queue.purge(State.READY),
    "counts": lambda queue, _: queue.counts(),
    "get": lambda queue, _: queue.get("ready"),
    "jobs": lambda queue, _: queue.jobs(State.BLOCKED),
    "revive": lambda queue, _: queue.revive("dead"),
    "crash": lambda queue, lease: settle(queue, Crashed(lease, "", True)),
    "unpark": lambda queue, _: perform(queue, lambda layout: layout.unpark(["task"])),
    "watch": lambda queue, _: perform(queue, lambda layout: layout.watch("ready", 60)),
    "outbox": lambda queue, _: perform(queue, lambda layout: layout.outbox(10, [1])),
    "result": lambda queue, _: perform(queue, lambda layout: layout.remains("ready")).result,
}
MAY = {
    "producer": {"enqueue", "update", "pause", "resume"},
    "worker": VERBS.keys(),
    "reader": {"counts", "get", "jobs", "result"},
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_allowed_or_refused_before_anything_is_written(
    server: Server, master: Queue, role: str, verb: str
) -> None:
    master.enqueue(b"ready", id="ready", priority=9)
    master.enqueue(b"dead", id="dead", priority=0)
    master.fail(leased(master))
    master.enqueue(b"runs", id="runs", priority=0)
    lease = leased(master, seconds=600)
    master.progress(lease, 0.5)
    master.enqueue(b"behind it", id=lease.id)
    master.enqueue(b"due", id="due", delay=0.01)
    wait_until(lambda: master.counts().scheduled == 0, "a job to be due, so that every turn has something to write")
    before = snapshot(server)
    server.command("ACL", "LOG", "RESET")
    with as_role(server, role) as app:
        if verb in MAY[role]:
            VERBS[verb](app.queue("guarded"), lease)
        else:
            with pytest.raises(errors.AccessDenied, match=r"docs/server\.md"):
                VERBS[verb](app.queue("guarded"), lease)
            assert snapshot(server) == before
    if verb in MAY[role]:
        assert_no_breach(server)


def test_a_producer_cannot_lease_by_a_script_of_its_own(server: Server, master: Queue) -> None:
    """The rights are on commands and keys, so they hold whatever script is run."""
    master.enqueue(b"x", id="x")
    with server.client() as client:
        client.execute_command("AUTH", "windlass-producer", "change-me")
        for script in (
            "return redis.call('ZPOPMIN', KEYS[1])",
            "return redis.call('HSET', KEYS[2], 'x', '')",
            "return redis.call('HGET', KEYS[3], 'x')",
        ):
            sha = client.script_load(script)
            names = [keys.queue_key("guarded", name) for name in ("ready", "leases", "data")]
            with pytest.raises(Exception, match=r"(?i)permission|can't run|can't access"):
                client.evalsha(sha, len(names), *names)
    assert drain(master) == [b"x"]


@pytest.mark.parametrize("role", ROLES)
def test_other_keys_and_the_server_itself_are_out_of_reach(server: Server, role: str) -> None:
    server.command("SET", "elsewhere", "x")
    with server.client() as client:
        client.execute_command("AUTH", f"windlass-{role}", "change-me")
        for command in ("GET elsewhere", "KEYS *", "FLUSHALL", "CONFIG GET dir", "ACL LIST", "CLIENT LIST", "SHUTDOWN"):
            with pytest.raises(Exception, match=r"(?i)permission"):
                client.execute_command(*command.split())
        sha = client.script_load("return redis.call('HGET', KEYS[1], 'x')")
        with pytest.raises(Exception, match=r"(?i)permission|can't access"):
            client.evalsha(sha, 1, "elsewhere")
    server.command("DEL", "elsewhere")


def test_rights_can_be_narrowed_to_one_queue(server: Server, master: Queue) -> None:
    """As docs/server.md says: another queue's keys are out of reach then."""
    narrow = rules("producer").replace("windlass:*", "windlass:{guarded}:*").replace("{*}", "{guarded}")
    if server.binary.name == "redis-server":
        narrow = without_what_is_too_new(narrow)
    server.command("ACL", "SETUSER", "narrow", *re.findall(r"\(.*?\)|\S+", narrow)[2:])
    with Windlass(f"unix://narrow:change-me@{server.socket_path}", retry_for=2) as app:
        app.queue("guarded").enqueue(b"x")
        assert_no_breach(server)
        with pytest.raises(errors.AccessDenied, match=r"docs/server\.md"):
            app.queue("other").enqueue(b"x")
    server.command("ACL", "DELUSER", "narrow")
    assert drain(master) == [b"x"]


def test_a_worker_has_every_command_of_every_script(server: Server) -> None:
    """A right that is missing half-way would leave a step half done; so none may be missing, however rare its use."""
    commands = {name.decode().upper() for name in server.command("COMMAND", "LIST")}
    granted = {name.upper() for name in re.findall(r"\+(\w+)", rules("worker"))}
    for script in scripts.ALL:
        used = commands.intersection(re.findall(r"'([A-Z]+)'", script.text))
        assert used <= granted, script.name


def test_a_worker_may_do_everything(server: Server, master: Queue) -> None:
    with as_role(server, "worker") as app:
        queue = app.queue("guarded")
        every_verb(queue)
        fill_every_key(
            queue,
            lambda key, data: server.command("LPUSH", key, data),
            lambda key: server.command("ZADD", key, 1, "nobody"),
        )
        for state in State:
            page = queue.jobs(state, limit=1)
            assert len(page.jobs) == 1
            if page.cursor:
                queue.jobs(state, cursor=page.cursor)
        assert queue.audit(repair=True).repaired == 1
    assert_no_breach(server)


def test_a_cluster_needs_two_commands_more(cluster: Cluster) -> None:
    words = rules("worker").split()[2:]
    for node in cluster.nodes:
        node.command("ACL", "SETUSER", "windlass-worker", *words, "+cluster|slots", "+asking")
        node.command("ACL", "LOG", "RESET")
    try:
        for name in ("a", "b", "c", "d"):
            with Windlass(f"redis://windlass-worker:change-me@127.0.0.1:{cluster.nodes[0].port}/0", retry_for=5) as app:
                queue = app.queue(name)
                queue.enqueue(b"x")
                assert drain(queue) == [b"x"]
                assert queue.lease(wait=0.05) is None
        for node in cluster.nodes:
            assert_no_breach(node)
    finally:
        for node in cluster.nodes:
            node.command("ACL", "DELUSER", "windlass-worker")
