"""How the service begins and ends: its name, its input's end, a closed output, signals, a server that is away."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios

import pytest
import redis
from click.testing import CliRunner

from tests.stdio.conftest import Start, conforms, moment
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Windlass
from windlass.cli import main


def run(server: Server, *options: str, **settings: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "windlass", "stdio", "--url", server.url, *options]
    return subprocess.run(command, capture_output=True, timeout=20, check=False, **settings)  # type: ignore[call-overload, no-any-return]


@pytest.mark.speaks("processor", "P1")
def test_when_its_input_ends_it_ends_with_all_done(start: Start, client: redis.Redis, app: Windlass) -> None:
    service = start("--tick", "off")
    for n in range(500):
        service.write(
            json.dumps(
                {"topic": "default/job_queue/add_job", "payload": {"uuid": str(n), "queue_name": "ffmpeg"}}
            ).encode()
        )
    service.idle("w")
    service.stdin.write(b'{"topic": "default/job_queue/list_job_queue", "payload": {"queue_name": "ffmpeg"}}')
    assert service.end() == 0, "the last line needs no line end"
    assert service.assigned() == ("w", "0")
    assert service.hear()["payload"]["total"] == 499
    assert app.queue("ffmpeg", layout="processor").counts().ready == 499
    assert service.log()["log_message"] == "the service ends: end of standard input"
    assert not client.exists("workers_idle:ffmpeg", "workers_busy:ffmpeg", "workers_last_seen:ffmpeg")


def test_input_from_a_file_and_from_nowhere(server: Server, client: redis.Redis, tmp_path: object) -> None:
    with open(os.path.join(str(tmp_path), "lines"), "w+b") as lines:
        lines.write(b'{"topic": "default/job_queue/list_worker_queue", "payload": {"queue_name": "ffmpeg"}}\n')
        lines.seek(0)
        done = run(server, stdin=lines)
    assert done.returncode == 0
    conforms(json.loads(done.stdout), "out")
    assert run(server, stdin=subprocess.DEVNULL).stdout == b""


@pytest.mark.speaks("processor", "P1")
@pytest.mark.parametrize("layout", ["processor", "native"])
def test_a_closed_output_ends_it_with_a_line_in_the_log(server: Server, app: Windlass, layout: str) -> None:
    queue = app.queue("ffmpeg", layout=layout)
    queue.enqueue(b"{}", id="a")
    read, write = os.pipe()
    os.close(read)
    said = {"topic": "default/job_queue/worker_idle", "service_uuid": "w", "created_at": moment(-60)}
    with subprocess.Popen(
        [sys.executable, "-m", "windlass", "stdio", "--url", server.url, "--layout", layout, "--tick", "off"],
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(write)
        assert process.stdin
        assert process.stderr
        process.stdin.write(json.dumps(said | {"payload": {"queue_name": "ffmpeg"}}).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(15) == 1
        _, ended = map(json.loads, process.stderr.read().splitlines())
    assert (ended["log_level"], ended["log_message"].split(":")[0]) == ("error", "the reader closed standard output")
    left = (queue.counts().ready, queue.counts().running)
    assert left == ((0, 1) if layout == "processor" else (1, 0)), "it comes back in 9 s, or at once"
    queue.purge()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_all_that_was_read_is_done(start: Start, number: int) -> None:
    service = start("--tick", "off")
    service.add("a")
    assert service.is_silent()
    service.process.send_signal(number)
    assert service.wait() == 0
    assert service.log()["log_message"].startswith("stopping after")
    assert service.log()["log_message"] == "the service ends: stopped by a signal"


def test_a_reader_that_does_not_read_makes_it_wait_and_a_second_signal_ends_it(server: Server) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "windlass", "stdio", "--url", server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stderr
        process.stderr.readline()
        request = b'{"topic": "default/job_queue/list_worker_queue", "payload": {"queue_name": "ffmpeg"}}\n'
        process.stdin.write(request * 500)
        process.stdin.flush()
        wait_until(lambda: _unread(process) >= 60_000, "its output to be full")
        process.send_signal(signal.SIGTERM)
        assert b"stopping after" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 1
        assert b"stopped by a second signal" in process.stderr.read()


def _unread(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout
    size = array.array("i", [0])
    fcntl.ioctl(process.stdout.fileno(), termios.FIONREAD, size)
    return size[0]


def test_its_name_and_namespaces_come_from_the_environment(start: Start) -> None:
    service = start(
        "--tick",
        "off",
        SERVICE_NAME="dispatcher",
        SERVICE_UUID="d-1",
        SERVICE_HOST="here",
        NAMESPACE_LISTENER="in",
        NAMESPACE_PUBLISHER="out",
    )
    service.write(b'{"topic":"in/job_queue/list_job_queue","service_uuid":"me","payload":{"queue_name":"ffmpeg"}}')
    message = service.hear()
    assert message["topic"] == "out/job_queue/list_job_queue/answer"
    assert [message[f"service_{part}"] for part in ("name", "uuid", "host")] == ["dispatcher", "d-1", "here"]
    assert message["payload"] == {"queue_name": "ffmpeg", "total": 0, "jobs": [], "requested_by": "me"}


def test_a_server_that_cannot_be_reached_is_told_in_the_log() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "stdio", "--url", "redis://127.0.0.1:1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, b"")
    (line,) = done.stderr.splitlines()
    conforms(json.loads(line), "log")
    assert "127.0.0.1:1" in json.loads(line)["log_message"]


def test_a_server_that_goes_away_for_a_while_loses_no_message(start: Start, client: redis.Redis) -> None:
    service = start("--tick", "100ms")
    service.add("a")
    assert service.is_silent()
    client.client_kill_filter(skipme=True)
    client.client_pause(300)
    service.add("b")
    client.client_kill_filter(skipme=True)
    assert {job["uuid"] for job in service.listed("job")["jobs"]} == {"a", "b"}


def test_wrong_options_are_wrong_usage() -> None:
    for options in (["--layout", "worqr"], ["--tick", "often"], ["--tick", "0"], ["--tick", "2h"]):
        assert CliRunner().invoke(main, ["stdio", *options]).exit_code == 2


def test_the_help_teaches_the_protocol() -> None:
    shown = CliRunner().invoke(main, ["stdio", "--help"]).stdout
    for word in (
        "add_job",
        "worker_idle",
        "job_finished",
        "NAMESPACE_LISTENER",
        "WINDLASS_STDIO_TICK",
        "docs/stdio.md",
    ):
        assert word in shown


def test_a_service_that_ends_leaves_no_key_of_windlass(start: Start, client: redis.Redis) -> None:
    service = start("--tick", "off")
    service.idle("w")
    service.add("a")
    assert service.assigned() == ("w", "a")
    service.job("job_accepted", "w", "a")
    service.job("job_finished", "w", "a")
    service.idle("v")
    assert service.is_silent()
    assert service.end() == 0
    assert client.keys("windlass:*") == []
    assert client.exists("workers_idle:ffmpeg", "workers_busy:ffmpeg", "workers_last_seen:ffmpeg") == 0
