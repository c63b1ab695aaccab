"""One lock says whether a home has a server: never two on one home, and no signal for a process that is not it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.embedded import connect, is_alive, kill, pid_of, servers_of, wait_until
from windlass.embedded import EmbeddedServer, find_server_binary, lock, probe
from windlass.errors import EmbeddedError


def test_the_lock_is_held_for_exactly_as_long_as_the_server_lives(home: Path) -> None:
    server = EmbeddedServer(home)
    server.ensure()
    with (home / "windlass.lock").open("r+") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        server.stop()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_lock_is_freed_by_kill_dash_nine(home: Path) -> None:
    server = EmbeddedServer(home)
    server.ensure()
    assert lock.is_held(home / "windlass.lock")
    kill(pid_of(server))
    wait_until(lambda: not lock.is_held(home / "windlass.lock"))


def test_a_fork_while_the_lock_is_taken_does_not_keep_it(home: Path) -> None:
    home.mkdir(mode=0o700)
    path = home / "windlass.lock"
    wait_here, let_go = os.pipe()
    taken = lock.take(path)
    assert taken is not None
    with taken:
        child = os.fork()
        if child == 0:
            os.close(let_go)
            os.read(wait_here, 1)
            os._exit(0)
        assert lock.is_held(path)
    try:
        wait_until(lambda: not lock.is_held(path))
    finally:
        os.close(let_go)
        os.close(wait_here)
        os.waitpid(child, 0)


def test_a_server_without_the_lock_is_not_joined(home: Path) -> None:
    home.mkdir(mode=0o700)
    options = ["--port", "0", "--unixsocket", "windlass.sock", "--save", "", "--logfile", "stranger.log"]
    stranger = subprocess.Popen([find_server_binary(), *options], cwd=home)
    try:
        wait_until(lambda: probe.ping(home / "windlass.sock") is probe.Answer.READY)
        with pytest.raises(EmbeddedError, match="without holding the lock"):
            EmbeddedServer(home).ensure()
        assert servers_of(home) == [stranger.pid]
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_whose_socket_was_deleted_is_named_and_can_be_stopped(home: Path) -> None:
    server = EmbeddedServer(home, patience=0.3)
    with connect(server.ensure()) as client:
        client.set("k", "v")
    pid = pid_of(server)
    (home / "windlass.sock").unlink()
    with pytest.raises(EmbeddedError, match=f"process {pid}.*windlass server restart"):
        server.ensure()
    assert (server.status().state, server.status().pid) == ("unreachable", pid)
    assert servers_of(home) == [pid], "a second server on one home would destroy its data"
    assert server.stop(timeout=4) is True
    wait_until(lambda: not is_alive(pid))
    with connect(EmbeddedServer(home).ensure()) as client:
        assert client.get("k") == "v"


def test_no_signal_goes_to_a_process_that_is_not_the_server(home: Path) -> None:
    home.mkdir(mode=0o700)
    innocent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (home / "windlass.pid").write_text(str(innocent.pid))
    taken = lock.take(home / "windlass.lock")
    assert taken is not None
    with taken, pytest.raises(EmbeddedError, match="has not ended in time"):
        EmbeddedServer(home).stop(timeout=0.5)
    assert innocent.poll() is None
    innocent.communicate(b"\n")
    assert innocent.returncode == 0
