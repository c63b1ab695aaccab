"""The server outlives the program that started it; stopped or killed, it comes back with all it acknowledged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from tests.support.embedded import connect, is_alive, kill, line_of, look_up, pid_of, servers_of, wait_until
from windlass.embedded import EmbeddedServer, find_server_binary

ORPHAN = """
import sys, time
from pathlib import Path
from windlass.embedded import EmbeddedServer
print(EmbeddedServer(Path(sys.argv[1])).ensure(), flush=True)
time.sleep(600)
"""


def test_it_survives_the_program_that_started_it(home: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, home], stdout=subprocess.PIPE, text=True)
    with connect(line_of(parent)) as client:
        client.set("k", "v")
    [pid] = servers_of(home)
    parent.kill()
    parent.communicate()
    server = EmbeddedServer(home)
    assert server.start() is False
    assert pid_of(server) == pid
    with connect(server.ensure()) as client:
        assert client.get("k") == "v"


def test_it_is_nobodys_child_and_in_no_ones_session(home: Path) -> None:
    server = EmbeddedServer(home)
    server.ensure()
    pid = pid_of(server)
    found = look_up(pid)
    assert found is not None
    assert found[1] != os.getpid()
    assert os.getsid(pid) != os.getsid(0)


def test_a_killed_server_is_started_again_with_all_it_acknowledged(home: Path) -> None:
    server = EmbeddedServer(home)
    for life in range(3):
        with connect(server.ensure()) as client:
            assert client.llen("acknowledged") == life * 100
            for n in range(100):
                client.rpush("acknowledged", n)
            kill(pid_of(server))
    wait_until(lambda: server.status().state == "stopped")
    with connect(server.ensure()) as client:
        assert client.lrange("acknowledged", 0, -1) == [str(n) for n in range(100)] * 3


def test_a_torn_end_of_the_data_is_cut_off(home: Path) -> None:
    server = EmbeddedServer(home)
    with connect(server.ensure()) as client:
        client.set("k", "v")
    kill(pid_of(server))
    [log] = (home / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nto")
    with connect(server.ensure()) as client:
        assert client.get("k") == "v"


def test_what_a_killed_rewrite_leaves_is_removed(home: Path) -> None:
    home.mkdir(mode=0o700)
    for name in ("temp-rewriteaof-bg-123.aof", "windlass.conf.new"):
        (home / name).write_text("half")
    EmbeddedServer(home).ensure()
    assert not list(home.glob("temp-*"))
    assert not (home / "windlass.conf.new").exists()


def test_stop_is_clean_and_keeps_everything(home: Path) -> None:
    server = EmbeddedServer(home)
    with connect(server.ensure()) as client:
        client.set("k", "v")
    pid = pid_of(server)
    assert server.stop() is True
    wait_until(lambda: not is_alive(pid))
    assert not (home / "windlass.sock").exists()
    assert not (home / "windlass.pid").exists()
    assert server.stop() is False
    with connect(server.ensure()) as client:
        assert client.get("k") == "v"


def test_restart_is_another_process_with_the_same_data(home: Path) -> None:
    server = EmbeddedServer(home)
    with connect(server.ensure()) as client:
        client.set("k", "v")
    before = pid_of(server)
    with connect(server.restart()) as client:
        assert client.get("k") == "v"
    assert pid_of(server) != before


def test_stop_and_status_make_nothing(home: Path) -> None:
    server = EmbeddedServer(home)
    assert server.stop() is False
    assert server.status().state == "stopped"
    assert not home.exists()


def test_status_tells_what_the_server_is(home: Path) -> None:
    server = EmbeddedServer(home)
    with connect(server.ensure()) as client:
        client.set("k", "x" * 1000)
        status = server.status()
    assert status.running
    assert status.state == "running"
    assert (status.home, status.socket, status.log) == (home, home / "windlass.sock", home / "windlass.log")
    assert [status.pid] == servers_of(home)
    assert status.binary == find_server_binary()
    assert status.version is not None
    assert status.version.split()[0] in ("Valkey", "Redis")
    assert status.clients == 1
    assert (status.aof_size or 0) > 1000
    assert (status.used_memory or 0) > 1000
    assert (status.uptime or 0) < 60


def test_a_server_in_the_midst_of_a_long_script_is_adopted(home: Path) -> None:
    server = EmbeddedServer(home, patience=5.0)
    with connect(server.ensure()) as client:
        pid = pid_of(server)
        client.config_set("busy-reply-threshold", 1)
        endless = threading.Thread(target=run_until_killed, args=(server.socket_path,))
        endless.start()
        wait_until(lambda: is_busy(client))
        assert server.start() is False
        assert (server.status().state, server.status().pid) == ("running", pid)
        client.script_kill()
        endless.join()


def run_until_killed(socket: Path) -> None:
    with connect(socket) as client, pytest.raises(redis.RedisError):
        client.eval("while true do end", 0)


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False
