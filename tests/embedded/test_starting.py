"""However many begin at once, one server is started and all others adopt it; what it runs with, and what it says."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.embedded import MakeHome, connect, kill, line_of, pid_of, servers_of, wait_until
from windlass.embedded import EmbeddedServer, find_server_binary


def test_a_server_is_started_once_and_then_adopted(home: Path) -> None:
    first, second = EmbeddedServer(home), EmbeddedServer(home)
    assert first.start() is True
    assert second.start() is False
    assert first.ensure() == second.ensure() == str(home / "windlass.sock")
    with connect(first.ensure()) as client:
        client.set("k", "v")
    with connect(second.ensure()) as client:
        assert client.get("k") == "v"
    assert servers_of(home) == [pid_of(second)]


def test_what_it_runs_with(home: Path) -> None:
    with connect(EmbeddedServer(home).ensure()) as client:
        config = client.config_get("*")
    wanted = {
        "port": "0",
        "unixsocketperm": "700",
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "aof-use-rdb-preamble": "yes",
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        "logfile": "windlass.log",
    }
    assert {name: config[name] for name in wanted} == wanted


RACER = """
import sys
from pathlib import Path
import redis
from windlass.embedded import EmbeddedServer
print("ready", flush=True)
for line in sys.stdin:
    with redis.Redis(unix_socket_path=EmbeddedServer(Path(sys.argv[1])).ensure()) as client:
        client.incr("arrivals")
        print(client.info("server")["process_id"], flush=True)
"""


def test_ten_processes_at_once_start_one_server(home: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(10)
    ]
    try:
        assert [line_of(racer) for racer in racers] == ["ready"] * 10
        for round in range(1, 7):
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
                racer.stdin.flush()
            met = {line_of(racer) for racer in racers}
            assert met == {str(pid) for pid in servers_of(home)}
            assert len(met) == 1
            with connect(home / "windlass.sock") as client:
                assert client.get("arrivals") == str(10 * round)
            # Between rounds it is now stopped, now killed: the next race finds the home in either state.
            if round % 2:
                EmbeddedServer(home).stop()
            else:
                kill(int(met.pop()))
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_many_threads_at_once_start_one_server(home: Path) -> None:
    starts: list[bool] = []
    threads = [threading.Thread(target=lambda: starts.append(EmbeddedServer(home).start())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(starts) == [False] * 15 + [True]
    assert len(servers_of(home)) == 1


def test_two_homes_are_two_servers(make_home: MakeHome) -> None:
    one, other = EmbeddedServer(make_home("one")), EmbeddedServer(make_home("other"))
    with connect(one.ensure()) as client:
        client.set("k", "in one")
    with connect(other.ensure()) as client:
        assert client.get("k") is None
    assert pid_of(one) != pid_of(other)
    one.stop()
    assert other.status().running


def test_the_environment_names_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    assert EmbeddedServer().home == home
    monkeypatch.delenv("WINDLASS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    if sys.platform.startswith("linux"):
        assert EmbeddedServer().home == home / "windlass"


def test_only_the_first_start_says_where_the_data_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = EmbeddedServer(home)
    server.ensure()
    assert server.first_start
    assert capsys.readouterr().err == f"windlass: jobs are stored in {home}\n"
    again = EmbeddedServer(home)
    again.ensure()
    again.restart()
    assert not again.first_start
    assert capsys.readouterr() == ("", "")


def test_the_first_start_can_be_silent(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WINDLASS_QUIET", "1")
    server = EmbeddedServer(home)
    server.ensure()
    assert server.first_start
    assert capsys.readouterr() == ("", "")


def test_a_server_that_is_loading_is_waited_for(
    home: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(home)
    with connect(server.ensure()) as client:
        client.mset({f"key-{n}": "x" * 100 for n in range(600)})
        client.bgrewriteaof()
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    server.stop()

    slow = make_home("slow-server")
    options = "--key-load-delay 4000 --loading-process-events-interval-bytes 1024"
    slow.write_text(f'#!/bin/sh\nexec "{find_server_binary()}" "$@" {options}\n')
    slow.chmod(0o700)
    monkeypatch.setenv("WINDLASS_SERVER_BIN", str(slow))
    began = time.monotonic()
    impatient = EmbeddedServer(home, patience=1.0)
    starter = threading.Thread(target=impatient.start)
    starter.start()
    wait_until(lambda: impatient.status().state == "loading")
    with connect(EmbeddedServer(home, patience=1.0).ensure()) as client:
        assert client.dbsize() == 600
    starter.join()
    assert time.monotonic() - began > 2.0, "it has loaded too fast to test anything"
