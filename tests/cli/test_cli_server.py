"""`windlass server …`, each command against a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from tests.support.waiting import LIMIT_S
from windlass.cli import main
from windlass.embedded import EmbeddedServer


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path for a home; a server that is left in it is stopped."""
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_QUIET", "1")
    base = Path(tempfile.mkdtemp(prefix="wl-")).resolve()
    yield base / "home"
    EmbeddedServer(base / "home").stop()
    shutil.rmtree(base)


def run(*arguments: str | Path, home: Path, answer: str | None = None) -> Result:
    words = [str(word) for word in arguments]
    return CliRunner().invoke(main, ["server", words[0], "--home", str(home), *words[1:]], input=answer)


def complaint(result: Result) -> str:
    """The error message, out of the box that is drawn around it."""
    return " ".join(result.stderr.replace("│", " ").split())


def test_status_of_a_server_that_runs(home: Path) -> None:
    EmbeddedServer(home).ensure()
    result = run("status", home=home)
    assert result.exit_code == 0
    told = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert told["state"] == "running"
    assert told["data"] == str(home)
    assert told["process"] == str(EmbeddedServer(home).status().pid)


def test_status_as_json(home: Path) -> None:
    EmbeddedServer(home).ensure()
    result = run("status", "--json", home=home)
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["running"] is True
    assert facts["state"] == "running"
    assert facts["socket"] == str(home / "windlass.sock")
    assert facts["clients"] == 0
    assert facts["pid"] == EmbeddedServer(home).status().pid


def test_status_where_nothing_runs(home: Path) -> None:
    result = run("status", "--json", home=home)
    assert result.exit_code == 3
    facts = json.loads(result.stdout)
    assert (facts["running"], facts["state"], facts["pid"]) == (False, "stopped", None)
    assert run("status", home=home).exit_code == 3
    assert not home.exists()


def test_a_server_that_cannot_be_reached(home: Path) -> None:
    EmbeddedServer(home).ensure()
    (home / "windlass.sock").unlink()
    result = run("status", home=home)
    assert result.exit_code == 4
    assert "unreachable" in result.stdout
    assert run("stop", "--timeout", "4", home=home).exit_code == 0
    assert run("status", home=home).exit_code == 3


def test_start_says_whether_it_started(home: Path) -> None:
    first, second = run("start", home=home), run("start", home=home)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == f"Started: {home / 'windlass.sock'}\n"
    assert second.stdout == f"Already running: {home / 'windlass.sock'}\n"


def test_start_that_fails(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SERVER_BIN", "/nowhere/valkey-server")
    result = run("start", home=home)
    assert result.exit_code == 1
    assert "WINDLASS_SERVER_BIN" in complaint(result)
    assert result.stdout == ""


def test_stop(home: Path) -> None:
    EmbeddedServer(home).ensure()
    result = run("stop", home=home)
    assert result.exit_code == 0
    assert str(home) in result.stdout
    assert not EmbeddedServer(home).status().running
    again = run("stop", home=home)
    assert again.exit_code == 3
    assert "No server runs" in complaint(again)


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_it_asks_before_it_cuts_a_connection(home: Path, verb: str) -> None:
    with redis.Redis(unix_socket_path=EmbeddedServer(home).ensure()) as client:
        client.ping()
        before = EmbeddedServer(home).status().pid
        refused = run(verb, home=home, answer="n\n")
        assert refused.exit_code == 1
        assert "1 connection is open" in complaint(refused)
        assert run(verb, home=home, answer="").exit_code == 1, "nobody is there to answer"
        assert EmbeddedServer(home).status().pid == before
        assert run(verb, home=home, answer="y\n").exit_code == 0
    assert EmbeddedServer(home).status().pid != before


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_yes_does_not_ask(home: Path, verb: str) -> None:
    with redis.Redis(unix_socket_path=EmbeddedServer(home).ensure()) as client:
        client.ping()
        result = run(verb, "--yes", home=home)
    assert result.exit_code == 0
    assert result.stderr == ""


def test_restart_starts_what_does_not_run(home: Path) -> None:
    result = run("restart", home=home)
    assert result.exit_code == 0
    assert EmbeddedServer(home).status().running


def test_logs(home: Path) -> None:
    EmbeddedServer(home).ensure()
    result = run("logs", "--lines", "2", home=home)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == EmbeddedServer(home).log_path.read_text().splitlines()[-2:]


def test_logs_where_there_are_none(home: Path) -> None:
    result = run("logs", home=home)
    assert result.exit_code == 3
    assert "no server has run there" in complaint(result)


def test_logs_follow_until_interrupted(home: Path) -> None:
    EmbeddedServer(home).ensure()
    script = "from windlass.cli.server import server; server()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "logs", "--home", str(home), "--lines", "0", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    seen = threading.Event()
    thread = threading.Thread(target=say_until, args=(home, seen))
    thread.start()
    try:
        assert "something new" in process.stdout.readline()
    finally:
        seen.set()
        thread.join()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (0, "")


def say_until(home: Path, seen: threading.Event) -> None:
    """Write lines into the server's log until one was seen: only those after the reader's start count."""
    with redis.Redis(unix_socket_path=str(home / "windlass.sock")) as client:
        while not seen.wait(0.05):
            client.eval("redis.log(redis.LOG_WARNING, 'something new')", 0)


def test_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("path", home=home).stdout == f"{home}\n"
    assert run("path", "--socket", home=home).stdout == f"{home / 'windlass.sock'}\n"
    assert not home.exists()
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    assert CliRunner().invoke(main, ["server", "path"]).stdout == f"{home}\n"


def test_wrong_usage(home: Path) -> None:
    assert run("logs", "--lines", "-1", home=home).exit_code == 2
    assert run("stop", "--timeout", "0", home=home).exit_code == 2
    assert CliRunner().invoke(main, ["server", "explode"]).exit_code == 2


def test_an_unsafe_home_is_a_failure(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    for verb in ("status", "start", "stop", "restart"):
        result = run(verb, home=home)
        assert result.exit_code == 1
        assert "chmod 700" in complaint(result)
    home.chmod(0o700)


@pytest.mark.parametrize("verb", ["status", "start", "stop", "restart", "logs", "path"])
def test_each_command_explains_itself(verb: str) -> None:
    result = CliRunner().invoke(main, ["server", verb, "--help"])
    assert result.exit_code == 0
    assert "WINDLASS_HOME" in result.stdout
