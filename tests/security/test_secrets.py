"""What a job carries and the server's password are in no log, no message, no repr and no error, whatever fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import Raw
from rich.pretty import pretty_repr

from tests.security import secretive_app
from tests.security.conftest import ROOT
from tests.security.secretive_app import QUEUE, RAW
from tests.support.server import HOST, Server
from tests.support.waiting import LIMIT_S, wait_until
from windlass import Job, JobRecord, Lease, RawJob, Windlass, errors
from windlass.cli import main
from windlass.storage.native import NativeLayout
from windlass.storage.port import Parcel
from windlass.tasks.envelope import read_envelope, write_envelope
from windlass.transport import Endpoint
from windlass.values.job import NewJob, Page, State
from windlass.values.job import Result as KeptResult
from windlass.values.outcome import Completed, HandOver, Kept
from windlass.values.schedule import Every, Schedule
from windlass.worker.attempt import plan

CANARY = "canary-7f3a-of-a-secret"
PASSWORD = "canary-91ce-of-a-password"

# -- a worker whose jobs fail ----------------------------------------------------------------------

FAILING = (
    "raise_on_the_loop", "raise_in_a_thread", "raise_in_a_process", "outlast", "outlast_on_the_loop", "crash", "leave",
    "come_again", "give_up", "fall_twice", "return_odd", "return_other", "hand_over",
)  # fmt: skip
_secret = json.dumps(CANARY)
BROKEN = {
    "a choice": b'{"task":"pick","args":{"colour":%s,"size":"s","shape":{"type":"Circle","radius":1},"number":1}}',
    "a literal": b'{"task":"pick","args":{"colour":"red","size":%s,"shape":{"type":"Circle","radius":1},"number":1}}',
    "a tag": b'{"task":"pick","args":{"colour":"red","size":"s","shape":{"type":%s},"number":1}}',
    "a number": b'{"task":"pick","args":{"colour":"red","size":"s","shape":{"type":"Circle","radius":1},"number":%s}}',
    "by place": b'{"task":"pick","args":["red",%s]}',
    "an unknown argument": b'{"task":"give_up","args":{"secret":"x","more":%s}}',
    "too many": b'{"task":"give_up","args":["x",%s]}',
    "args that are text": b'{"task":"give_up","args":%s}',
    "half a payload": b'{"task":"give_up","args":{"secret":%s',
    "two payloads": b'{"task":"give_up"} %s',
    "no payload": b"%s",
    "bad UTF-8": b'{"task":"give_up","args":{"secret":%s,"x":"\xff"}}',
    "a keep that is none": b'{"task":"give_up","keep":%s}',
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(tcp=True, config={"requirepass": PASSWORD}) as server:
        yield server


@pytest.fixture(scope="module")
def aftermath(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Windlass, str]]:
    """An app on the server after everything has failed, and all that the worker has printed meanwhile."""
    log = tmp_path_factory.mktemp("secrets") / "worker.log"
    with log.open("wb") as out, Windlass(server.url, retry_for=5) as app:
        worker = subprocess.Popen(
            [sys.executable, "-m", "windlass", "worker", "tests.security.secretive_app:app", "--processes", "2",
             "--log-level", "debug", "--log-format", "json", "--log-jobs", "--kill-grace", "200ms", "--grace", "5s"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            env=os.environ | {"WINDLASS_URL": server.url, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            yield app, _fail_in_every_way(app, worker, log)
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(10)


def _fail_in_every_way(app: Windlass, worker: subprocess.Popen[bytes], log: Path) -> str:
    queue, raw = app.queue(QUEUE), app.queue(RAW)
    for task in FAILING:
        queue.enqueue(write_envelope(task, b"[%s]" % _secret.encode()), id=task)
    queue.enqueue(write_envelope("return_odd", b"[%s]" % _secret.encode(), keep=60), id="kept-odd")
    queue.enqueue(write_envelope("return_other", b"[%s]" % _secret.encode(), keep=60), id="kept-other")
    for name, payload in BROKEN.items():
        queue.enqueue(payload % _secret.encode(), id=name)
    queue.enqueue(write_envelope("nobody_knows", b"[%s]" % _secret.encode()), id="unknown")
    raw.enqueue(CANARY.encode(), id="raw")
    cancelled = queue.enqueue(write_envelope("be_cancelled", b"[%s]" % _secret.encode()), id="cancelled").id
    wait_until(lambda: (job := queue.get(cancelled)) and job.state is State.RUNNING, "it to run")
    assert queue.cancel(cancelled, running=True)

    def done() -> bool:
        assert worker.poll() is None, log.read_text()
        counts = queue.counts()
        return not (counts.ready or counts.running or raw.counts().waiting or raw.counts().running)

    wait_until(lambda: done() and queue.counts().scheduled == queue.counts().parked, "all to have failed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    return log.read_text()


def records(app: Windlass) -> list[JobRecord]:
    return [job for name in (QUEUE, RAW) for state in State for job in app.queue(name).all_jobs(state)]


def test_everything_has_failed(aftermath: tuple[Windlass, str]) -> None:
    """What follows would prove nothing of jobs that were never run."""
    app, _ = aftermath
    by_state = {state: {job.id for job in app.queue(QUEUE).all_jobs(state)} for state in State}
    completed = {"return_odd", "return_other", "cancelled"}  # nobody wants their results
    # A failure handler that fails is dead in the place of its job, under a name of its own.
    (told_of,) = {id for id in by_state[State.DEAD] if id.startswith("failure-")}
    assert by_state[State.DEAD] - {told_of} == {*FAILING, "kept-odd", "kept-other"} - completed - {"fall_twice"}
    assert by_state[State.BROKEN] == BROKEN.keys()
    assert by_state[State.SCHEDULED] == {"unknown"}
    assert [job.id for job in app.queue(RAW).all_jobs(State.DEAD)] == ["raw"]


def test_no_log_of_a_worker_tells_what_a_job_carries(aftermath: tuple[Windlass, str]) -> None:
    _, log = aftermath
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"retried", "failed", "crashed", "broken", "unknown", "completed"} <= {line.get("outcome") for line in lines}
    for task in (*FAILING, "unknown", "raw"):
        assert task in log, "its failure is not in the log at all"
    assert CANARY not in log
    assert PASSWORD not in log


def test_no_message_and_no_error_tells_what_a_job_carries(aftermath: tuple[Windlass, str]) -> None:
    app, _ = aftermath
    found = records(app)
    assert len(found) > 25
    assert all(CANARY.encode() in job.data or job.failed for job in found)
    for job in found:
        said = f"{job.message} {job!r} {job.error()} {job.error()!r} {job.failed!r}"
        assert job.message or job.state is State.SCHEDULED
        assert CANARY not in said, said
    for id in ("kept-odd", "kept-other"):
        with pytest.raises(errors.JobFailed) as caught:
            app.job(QUEUE, id).result(timeout=LIMIT_S)
        assert "keep_result" in str(caught.value)
        assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["for people", "as JSON"])
def test_no_command_shows_a_payload_unless_it_is_told_to(
    server: Server, aftermath: tuple[Windlass, str], form: tuple[str, ...]
) -> None:
    commands = [
        ("jobs", QUEUE), ("jobs", QUEUE, "crash"), ("jobs", QUEUE, "a choice"), ("dead", "list"), ("status",),
        ("dead", "list", QUEUE, "--broken"), ("dead", "retry", QUEUE, "nosuch"), ("cancel", QUEUE, "nosuch"),
        ("queues",), ("workers",), ("schedules", "list", QUEUE),
    ]  # fmt: skip
    shown = ""
    for command in commands:
        result = invoke(server.url, *command, *form)
        assert result.exit_code in (0, 3), result.output
        shown += result.output
    assert "the second fall" in shown
    assert CANARY not in shown
    assert PASSWORD not in shown
    assert CANARY in invoke(server.url, "jobs", QUEUE, "crash", "--data", *form).output, "when it is asked for"


def invoke(url: str, *words: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
            patch.delenv(name)
        patch.setenv("WINDLASS_URL", url)
        return CliRunner().invoke(main, words)


# -- arguments that do not fit ---------------------------------------------------------------------

GOOD: dict[str, Any] = {"colour": "red", "size": "s", "shape": secretive_app.Circle(1.0), "number": 1}


@pytest.mark.parametrize(
    "wrong",
    [{"colour": CANARY}, {"size": CANARY}, {"shape": {"type": CANARY}}, {"shape": CANARY}, {"number": CANARY},
     {"number": object()}, {"shape": {"type": "Circle", "radius": CANARY}}],
    ids=["colour", "size", "kind of shape", "shape", "number", "no JSON", "radius"],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_told_by_their_names(wrong: dict[str, Any]) -> None:
    """Also to who sends them: an error of his ends in his own logs."""
    with pytest.raises(errors.InvalidArguments) as caught:
        secretive_app.pick.call(**GOOD | wrong)
    assert next(iter(wrong)) in str(caught.value)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def _read(payload: bytes) -> None:
    envelope = read_envelope(payload)
    task = secretive_app.app.find_task(envelope.task)
    assert task is not None
    task.decode(envelope.args)


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_a_payload_that_cannot_be_read_is_not_quoted(payload: bytes) -> None:
    with pytest.raises(errors.Undecodable) as caught:
        _read(payload % _secret.encode())
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_wrong_arguments_on_the_command_line_are_not_repeated(server: Server) -> None:
    for words in (
        ("enqueue", "pick", "secret=1", CANARY, "--queue", QUEUE),
        ("enqueue", "pick", f"colour={CANARY}", "--app", "tests.security.secretive_app:app"),
        ("enqueue", "pick", CANARY, CANARY, CANARY, CANARY, CANARY, "--app", "tests.security.secretive_app:app"),
        ("enqueue", "give_up", f"secret={CANARY}", f"secret={CANARY}"),
        ("enqueue", "--raw", "no such queue", CANARY),
        ("enqueue", "--raw", QUEUE, CANARY, CANARY),
    ):
        result = invoke(server.url, *words)
        assert result.exit_code == 2, result.output
        assert CANARY not in result.output


# -- reprs -----------------------------------------------------------------------------------------


def test_no_repr_shows_what_a_job_carries() -> None:
    """A repr ends in debuggers, error trackers and `logger.debug("%r", …)`; Rich's tracebacks show local variables."""
    data = CANARY.encode()
    lease = Lease("q", "a", data, 1)
    record = JobRecord("q", "a", State.READY, data)
    call = secretive_app.give_up.call(CANARY)
    shown = [lease, record, Page((record,), None), Job(lease), call, secretive_app.give_up.using(id="a"),
             secretive_app.give_up.decode(Raw(b"[%s]" % _secret.encode())), read_envelope(call.data),
             RawJob(data, id="a"), NewJob("a", data), HandOver("q", NewJob("a", data)), Completed(lease, Kept(data, 1)),
             KeptResult(True, data), Parcel(1, "q", "a", data, b""), NativeLayout("q").enqueue([NewJob("a", data)]),
             plan(secretive_app.app, Lease("q", "a", call.data, 1)), Windlass(f"redis://:{CANARY}@{HOST}:1").given,
             Schedule(name="s", queue="q", data=data, timing=Every(60_000))]  # fmt: skip
    assert [type(each).__name__ for each in shown if CANARY in repr(each)] == []
    assert [type(each).__name__ for each in shown if CANARY in pretty_repr(each)] == []


# -- bad lines -------------------------------------------------------------------------------------


def test_a_bad_line_is_not_quoted_in_the_log_of_the_service(server: Server) -> None:
    lines = [
        CANARY, f'{{"topic": "default/job_queue/add_job", "payload": {{"secret": "{CANARY}"}}}}',
        f'{{"topic": "default/job_queue/add_job", "payload": {{"uuid": 7, "secret": "{CANARY}"}}}}',
        f'{{"topic": "default/job_queue/add_job", "payload": {{"uuid": "a", "queue_name": "a b", "x": "{CANARY}"}}}}',
        f'{{"topic": "default/tick", "payload": "{CANARY}"}}', f'{{"topic": "default/tick", "x": "{CANARY}',
        f'{{"topic": "default/job_queue/worker_idle", "payload": {{"queue_name": "q"}}, "x": "{CANARY}"}}',
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "stdio", "--url", server.url],
        input="\n".join(lines).encode() + b'\n{"topic":"default/\xff","secret":"%s"}\n' % CANARY.encode(),
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(b'"log_level":"error"', done.stderr)) == len(lines) + 1, done.stderr
    assert b"job_queue/add_job" in done.stderr, "which message it was is told"
    assert CANARY.encode() not in done.stderr + done.stdout


# -- the password ----------------------------------------------------------------------------------

Refusal = Callable[[Server], str]
WRONG_URLS: dict[str, Refusal] = {
    "unreachable": lambda server: f"redis://:{PASSWORD}@{HOST}:1/0",
    "wrong password": lambda server: f"redis://:{PASSWORD}x@{HOST}:{server.port}/0",
    "wrong user": lambda server: f"redis://nobody:{PASSWORD}@{HOST}:{server.port}/0",
    "no such database": lambda server: f"redis://:{PASSWORD}@{HOST}:{server.port}/99",
    "no such socket": lambda server: f"unix://:{PASSWORD}@/nowhere/at/all.sock",
    "no TLS there": lambda server: f"rediss://:{PASSWORD}@{HOST}:{server.port}/0",
    "no sentinel": lambda server: f"redis+sentinel://:{PASSWORD}@{HOST}:1/main/0?sentinel_password={PASSWORD}",
    "a server as a sentinel": lambda server: (
        f"redis+sentinel://:{PASSWORD}@{HOST}:{server.port}/main/0?sentinel_password={PASSWORD}"
    ),
    "a wrong sentinel password": lambda server: (
        f"redis+sentinel://:{PASSWORD}@{HOST}:{server.port}/main/0?sentinel_password={PASSWORD}x"
    ),
    "a slash in it": lambda server: f"redis://:{PASSWORD}/x@{HOST}:{server.port}/0",
    "a wrong port": lambda server: f"redis://:{PASSWORD}@{HOST}:port/0",
    "an unknown scheme": lambda server: f"http://:{PASSWORD}@{HOST}/0",
}


FOR_COMMANDS = ("wrong password", "wrong user", "no such database", "a slash in it", "a wrong port")  # the quick ones


@pytest.mark.parametrize("wrong", WRONG_URLS)
def test_no_error_log_or_command_shows_the_password(
    server: Server, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = WRONG_URLS[wrong](server)
    seen: list[str] = []
    try:
        endpoint = Endpoint.parse(url)
        seen += [repr(endpoint), str(endpoint)]
        with Windlass(url, retry_for=0, call_timeout=0.3) as app:
            seen += [repr(app), repr(vars(app)), repr(app.given), repr(app.queue("q")), repr(vars(app.queue("q")))]
            for use in (
                lambda: app.queue("q").enqueue(b"x"),
                lambda: asyncio.run(app.queue("q").aenqueue(b"x")),
                lambda: app.queues(),
                lambda: app.workers(),
                lambda: app.schedules.list("q"),
            ):
                with pytest.raises(errors.WindlassError) as caught:
                    use()
                seen += traceback.format_exception(caught.value)
    except errors.InvalidOption as error:
        seen += traceback.format_exception(error)
    if wrong in FOR_COMMANDS:
        for words in (("status",), ("status", "--json"), ("enqueue", "--raw", "q", "x")):
            result = invoke(url, *words)
            assert result.exit_code in (1, 2, 4), result.output
            assert result.output
            seen.append(result.output)
            seen += traceback.format_exception(result.exception) if result.exception else []
    seen.append(caplog.text)
    assert [text for text in seen if PASSWORD in text] == []


@pytest.mark.parametrize(("command", "wrong"), [("worker", "a wrong sentinel password"), ("stdio", "wrong password")])
def test_what_stays_does_not_show_the_password_either(server: Server, command: str, wrong: str) -> None:
    words = ["worker", "tests.security.secretive_app:app", "--log-level", "debug"] if command == "worker" else ["stdio"]
    url = WRONG_URLS[wrong](server)
    done = subprocess.run(
        [sys.executable, "-m", "windlass", *words], cwd=ROOT, capture_output=True, text=True, timeout=40,
        env=os.environ | {"WINDLASS_URL": url, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode in (1, 4), done
    assert done.stderr
    assert PASSWORD not in done.stdout + done.stderr
