"""Every public verb, every command and the service, as a user of each role: done without a breach, or refused."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.security.conftest import ROOT
from tests.security.roles import ROLES, breaches, guarded_server, url_as
from tests.stdio.conftest import moment
from tests.support.bad_input import Dump, dump
from tests.support.internals import perform_call
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Lease, Queue, RawJob, State, TaskCall, Windlass, errors
from windlass.cli import SUMMARIES, main
from windlass.handle import JobHandle
from windlass.schedules import Schedules
from windlass.tasks.envelope import write_envelope
from windlass.transport import presence
from windlass.values.job import Status
from windlass.values.worker_record import WorkerRecord

REMEDY = "docs/server.md"
NAME = "guarded"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with guarded_server() as server:
        yield server


class Scene:
    """A queue with a job in every state, and who may use it."""

    def __init__(self, server: Server, role: str) -> None:
        self.server = server
        self.app = Windlass(url_as(server, role), retry_for=1)
        self.queue = self.app.queue(NAME)
        with Windlass(server.url) as master:
            queue = master.queue(NAME)
            queue.enqueue(b"dead", id="dead", priority=0)
            queue.fail(_leased(queue))
            queue.enqueue(b"done", id="done", priority=0)
            queue.enqueue_many([RawJob(b"runs", id="runs", priority=0), RawJob(b"ready", id="ready", priority=9)])
            self.done = _leased(queue)
            self.lease = _leased(queue)
            queue.progress(self.lease, 0.5)
            queue.enqueue(b"behind", id="runs")
            queue.enqueue(b"later", id="later", delay=600)
            master.schedules.add("nightly", (NAME, b"x"), every="1h")
            perform_call(master, presence.beat(WorkerRecord(name="somebody")))
            master.close()
        server.command("ACL", "LOG", "RESET")

    def stored(self) -> Dump:
        with self.server.client() as client:
            return {key: value for key, value in dump(client).items() if not key.endswith(b":idle")}

    def close(self) -> None:
        self.app.close()
        self.server.command("FLUSHALL")


def _leased(queue: Queue) -> Lease:
    lease = queue.lease(600)
    assert lease is not None
    return lease


@pytest.fixture
def scene(server: Server, request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(server, request.getfixturevalue("role"))
    yield scene
    scene.close()


# -- verbs -----------------------------------------------------------------------------------------

Verb = Callable[[Scene], object]
PRODUCES, READS, WORKS = ("producer", "worker"), ("worker", "reader"), ("worker",)
# What each verb does, and who may do it.
QUEUE_VERBS: dict[str, tuple[Verb, tuple[str, ...]]] = {
    "enqueue": (lambda s: s.queue.enqueue(b"x", id="new"), PRODUCES),
    "enqueue_json": (lambda s: s.queue.enqueue_json([1]), PRODUCES),
    "enqueue_many": (lambda s: s.queue.enqueue_many([b"a", RawJob(b"b", priority=1)]), PRODUCES),
    "update": (lambda s: s.queue.update("ready", data=b"y"), PRODUCES),
    "pause": (lambda s: s.queue.pause(), PRODUCES),
    "resume": (lambda s: s.queue.resume(), PRODUCES),
    "lease": (lambda s: s.queue.lease(wait=0.01), WORKS),
    "lease_many": (lambda s: s.queue.lease_many(2), WORKS),
    "complete": (lambda s: s.queue.complete(s.done), WORKS),
    "complete_many": (lambda s: s.queue.complete_many([s.done]), WORKS),
    "release": (lambda s: s.queue.release(s.done), WORKS),
    "retry": (lambda s: s.queue.retry(s.done), WORKS),
    "fail": (lambda s: s.queue.fail(s.done), WORKS),
    "extend": (lambda s: s.queue.extend(s.lease, 5), WORKS),
    "progress": (lambda s: s.queue.progress(s.lease, 0.7), WORKS),
    "beat": (lambda s: s.queue.beat("someone", register=True), WORKS),
    "cancel": (lambda s: s.queue.cancel("ready"), WORKS),
    "revive": (lambda s: s.queue.revive("dead"), WORKS),
    "purge": (lambda s: s.queue.purge(), WORKS),
    "clean": (lambda s: s.queue.audit(repair=True), WORKS),
    "audit": (lambda s: s.queue.audit(), READS),
    "counts": (lambda s: s.queue.counts(), READS),
    "get": (lambda s: s.queue.get("ready"), READS),
    "jobs": (lambda s: [s.queue.jobs(state) for state in State], READS),
    "tags": (lambda s: s.queue.tags(), READS),
    "all_jobs": (lambda s: list(s.queue.all_jobs(State.DEAD)), READS),
}
SCHEDULE_VERBS: dict[str, tuple[Verb, tuple[str, ...]]] = {
    "add": (lambda s: s.app.schedules.add("new", (NAME, b"x"), every="1h"), WORKS),
    "pause": (lambda s: s.app.schedules.pause(NAME, "nightly"), WORKS),
    "resume": (lambda s: s.app.schedules.resume(NAME, "nightly"), READS),  # it is not paused, so nothing is written
    "run_now": (lambda s: s.app.schedules.run_now(NAME, "nightly"), WORKS),
    "delete": (lambda s: s.app.schedules.delete(NAME, "nightly"), WORKS),
    "get": (lambda s: s.app.schedules.get(NAME, "nightly"), READS),
    "list": (lambda s: s.app.schedules.list(NAME), READS),
}
HANDLE_VERBS: dict[str, tuple[Verb, tuple[str, ...]]] = {
    "result": (lambda s: _result(s), WORKS),
    "events": (lambda s: next(s.app.job(NAME, "ready").events(timeout=5)), WORKS),
    "ending": (lambda s: _ending(s), WORKS),
    "state": (lambda s: s.app.job(NAME, "ready").state(), READS),
    "record": (lambda s: s.app.job(NAME, "ready").record(), READS),
    "cancel": (lambda s: s.app.job(NAME, "ready").cancel(), WORKS),
}
APP_VERBS: dict[str, tuple[Verb, tuple[str, ...]]] = {
    "enqueue_many": (lambda s: s.app.enqueue_many([TaskCall("t", NAME, write_envelope("t"), {})]), PRODUCES),
    "queues": (lambda s: s.app.queues(), READS),
    "workers": (lambda s: s.app.workers(), READS),
}
TABLES = {"queue": QUEUE_VERBS, "schedules": SCHEDULE_VERBS, "handle": HANDLE_VERBS, "app": APP_VERBS}
TYPES = {"queue": Queue, "schedules": Schedules, "handle": JobHandle, "app": Windlass}


def _result(scene: Scene) -> None:
    """Somebody waits for a result that does not come in time."""
    with pytest.raises(TimeoutError):
        scene.app.job(NAME, "later").result(timeout=0.05)


def _ending(scene: Scene) -> None:
    with pytest.raises(TimeoutError):
        scene.app.job(NAME, "later").ending(timeout=0.05)


@pytest.mark.parametrize("table", TABLES)
def test_the_table_has_every_public_verb(table: str) -> None:
    """A verb that has an awaitable twin speaks to the server, so somebody must say who may use it."""
    kind = TYPES[table]
    verbs = {name for name, _ in inspect.getmembers(kind, callable) if name[0] != "_" and hasattr(kind, f"a{name}")}
    assert verbs - {"close"} == TABLES[table].keys()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("table", "verb"), [(table, verb) for table in TABLES for verb in TABLES[table]])
def test_a_verb_is_done_without_a_breach_or_refused_before_anything_is_written(
    scene: Scene, role: str, table: str, verb: str
) -> None:
    do, allowed = TABLES[table][verb]
    if role in allowed:
        do(scene)
        scene.app.close()  # it unregisters as well
        assert breaches(scene.server) == []
        return
    before = scene.stored()
    with pytest.raises(errors.AccessDenied, match=REMEDY):
        do(scene)
    assert scene.stored() == before
    assert {who for who, *_ in breaches(scene.server)} == {f"windlass-{role}".encode()}


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_who_enqueues_learns_how_safe_it_is_where_it_may_see_the_settings(role: str, scene: Scene) -> None:
    queue = scene.app.queue(NAME)
    assert queue.enqueue(b"x", durability="memory").status is Status.ADDED
    assert breaches(scene.server) == []
    scene.server.command("CONFIG", "SET", "appendonly", "yes", "appendfsync", "always")
    try:
        with pytest.raises(errors.NotDurable, match=r"allow \+config\|get"):
            queue.enqueue(b"x", durability="fsync")
        scene.server.command("ACL", "LOG", "RESET")
        scene.server.command("ACL", "SETUSER", f"windlass-{role}", "+config|get")
        assert queue.enqueue(b"x", durability="fsync").durability == "fsync"
        assert breaches(scene.server) == []
    finally:
        scene.server.command("ACL", "SETUSER", f"windlass-{role}", "-config|get")
        scene.server.command("CONFIG", "SET", "appendonly", "no")


# -- commands --------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "enqueue": (("--raw", NAME, "x"), ("welcome", "42", "--queue", NAME)),
    "pause": ((NAME,),),
    "resume": ((NAME,),),
    "status": ((), (NAME,)),
    "queues": ((),),
    "workers": ((),),
    "audit": ((NAME,), ()),
    "jobs": ((NAME,), (NAME, "ready")),
    "dead": (("list", NAME), ("list",)),
    "dead retry": ((NAME, "dead"),),
    "dead purge": ((NAME, "--yes"),),
    "schedules": (("list", NAME), ("list",)),
    "schedules pause": ((NAME, "nightly"),),
    "schedules run": ((NAME, "nightly"),),
    "schedules delete": ((NAME, "nightly", "--yes"),),
    "cancel": ((NAME, "ready"),),
    "purge": ((NAME, "--yes"),),
}
MAY_COMMAND = {
    "producer": {"enqueue", "pause", "resume"},
    "worker": COMMANDS.keys(),
    "reader": {"status", "queues", "workers", "audit", "jobs", "dead", "schedules"},
}
ELSEWHERE = {
    "demo",
    "worker",
    "tasks",
    "layouts",
    "stdio",
    "server",
    "doctor",
    "bench",
}  # no server, or tests of their own


def test_the_table_has_every_command() -> None:
    assert SUMMARIES.keys() - ELSEWHERE == {command.split()[0] for command in COMMANDS}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["for people", "as JSON"])
@pytest.mark.parametrize("role", ROLES)
def test_a_command_is_done_without_a_breach_or_refused_in_one_line(
    server: Server, role: str, scene: Scene, form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_URL", url_as(server, role))
    for command, calls in COMMANDS.items():
        for call in calls:
            server.command("ACL", "LOG", "RESET")
            result = CliRunner().invoke(main, [*command.split(), *call, *form])
            words = " ".join((command, *call))
            if command in MAY_COMMAND[role]:
                assert result.exit_code == 0, f"{words}: {result.output}"
                # They look first whether the queue is in use; a producer may not look, and they go on without.
                looks_in_vain = role == "producer" and command in ("pause", "resume")
                assert breaches(server) == [] or looks_in_vain, words
            else:
                assert result.exit_code == 1, f"{words}: {result.output}"
                assert REMEDY in result.stderr, words
                assert result.stderr.startswith("windlass: "), words


# -- what stays ------------------------------------------------------------------------------------


def _speak(url: str, *messages: dict[str, Any]) -> tuple[int, list[Any], list[Any]]:
    """What `windlass stdio` on native queues returns, says and logs."""
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "stdio", "--layout", "native", "--tick", "off", "--url", url],
        input="".join(json.dumps(message) + "\n" for message in messages), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    out, logged = ([json.loads(line) for line in text.splitlines()] for text in (done.stdout, done.stderr))
    return done.returncode, out, [line["log_message"] for line in logged if line["log_level"] == "error"]


def _messages() -> list[dict[str, Any]]:
    def worker(word: str, **payload: Any) -> dict[str, Any]:
        topic = f"default/job_queue/workers/w/{word}"
        return {
            "topic": topic,
            "service_uuid": "w",
            "created_at": moment(),
            "payload": {"queue_name": "pipe"} | payload,
        }

    lists = ("job", "leased", "progress", "worker")
    return [
        {"topic": "default/job_queue/add_job", "payload": {"uuid": "a", "queue_name": "pipe"}},
        worker("worker_idle"),
        worker("job_accepted", uuid="a"),
        worker("worker_progress", uuid="a", progress=0.5),
        *({"topic": f"default/job_queue/list_{what}_queue", "payload": {"queue_name": "pipe"}} for what in lists),
        {"topic": "default/tick"},
        worker("job_finished", uuid="a"),
    ]


def test_the_service_on_a_pipe_needs_the_rights_of_a_worker(server: Server) -> None:
    server.command("ACL", "LOG", "RESET")
    code, said, complaints = _speak(url_as(server, "worker"), *_messages())
    assert (code, complaints) == (0, [])
    assert [message["topic"].rpartition("/")[2] for message in said] == ["job_assignment", *["answer"] * 4]
    assert breaches(server) == []
    server.command("FLUSHALL")
    code, said, complaints = _speak(url_as(server, "producer"), *_messages())
    assert (code, said, len(complaints)) == (1, [], 1)
    assert REMEDY in complaints[0]
    code, said, complaints = _speak(url_as(server, "reader"), *_messages())
    assert code == 0
    assert len(said) == 4, "a reader may list"
    refused = [complaint for complaint in complaints if "message failed" in complaint]
    assert len(refused) == 3, "what would write: the job, who is idle, and the tick"
    assert all(REMEDY in complaint for complaint in refused), refused
    assert server.command("KEYS", "*") == []


def _run_worker(server: Server, role: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "windlass", "worker", "tests.security.guarded_app:app", "--log-format", "text",
             "--processes", "1", "--log-level", "debug"],
            cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"WINDLASS_URL": url_as(server, role), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def test_a_worker_does_all_its_work_with_the_rights_of_a_worker(server: Server, tmp_path: Path) -> None:
    """Jobs of every way of running, a failure handler, hand-over, schedules, progress, results, cancels, the fleet."""
    server.command("ACL", "LOG", "RESET")
    log = tmp_path / "worker.log"
    worker = _run_worker(server, "worker", log)
    try:
        with Windlass(server.url, retry_for=5) as app:
            queue = app.queue("guarded-tasks")
            ids = [
                queue.enqueue(write_envelope(task, keep=60)).id
                for task in ("on_the_loop", "in_a_thread", "in_a_process", "hand_on")
            ]
            assert [app.job(queue.name, id).result(timeout=30) for id in ids] == ["loop", "thread", "process", "parent"]
            queue.enqueue(write_envelope("fall"), id="fall")
            queue.enqueue(write_envelope("nobody_knows"), id="unknown")
            queue.enqueue(b"not a task", id="broken")
            held = queue.enqueue(write_envelope("hold"), id="held").id
            wait_until(lambda: (job := queue.get(held)) and job.progress, "it to run")
            queue.cancel(held, running=True)
            app.schedules.add(
                "often", TaskCall("on_the_loop", queue.name, write_envelope("on_the_loop"), {}), every="1s"
            )

            def done() -> bool:
                counts = queue.counts()
                record = app.schedules.get(queue.name, "often")
                ticked = record is not None and record.fired > 0
                return ticked and (counts.running, counts.broken, counts.parked, counts.outbox) == (0, 1, 1, 0)

            wait_until(done, "all to be done")
            assert [found.queues for found in app.workers()] == [{"guarded-tasks": 1}]
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0, log.read_text()
            assert app.workers() == []
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(10)
    assert breaches(server) == [], log.read_text()
    server.command("FLUSHALL")


def test_a_worker_without_its_rights_says_so_and_ends(server: Server, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    worker = _run_worker(server, "producer", log)
    try:
        assert worker.wait(20) == 1, log.read_text()
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(10)
    assert REMEDY in log.read_text()
    assert "Traceback" not in log.read_text()
