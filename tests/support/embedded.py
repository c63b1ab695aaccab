"""Inspects embedded servers from outside: their processes, and whether they are alive."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from windlass.embedded import EmbeddedServer

HAS_PROC = Path("/proc/self/fd").is_dir()
MakeHome = Callable[..., Path]


def servers_of(home: Path) -> list[int]:
    """The processes whose working folder is `home`: its servers."""
    if not HAS_PROC:
        listing = subprocess.run(["lsof", "-t", home / "windlass.lock"], capture_output=True, text=True)
        return [int(pid) for pid in listing.stdout.split() if int(pid) != os.getpid()]
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(home):
                found.append(int(entry.name))
        except OSError:
            pass  # the process has ended, or belongs to another user
    return found


def look_up(pid: int) -> tuple[str, int] | None:
    """The state and the parent of a process; None if there is no such process."""
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
    """Whether the process runs; a zombie does not."""
    found = look_up(pid)
    if found is None or not found[0].startswith("Z"):
        return found is not None
    # Its first thread has ended. Other threads may live a moment longer, and keep its files and its lock.
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
        assert time.monotonic() < deadline, "the condition did not become true in time"
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


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
