"""Reads facts about processes from /proc: memory, state, parents, open files.

Each function returns None if there is no /proc or no such process, so callers must work without it on other systems.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from windlass.embedded.home import LOCK

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
HAS_PROC = os.path.exists("/proc/self/stat")


class Process(NamedTuple):
    """One process, from its `stat` file. `started` is in clock ticks since boot; with the pid it is unique."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def is_zombie(self) -> bool:
        """Whether the process has ended and waits to be reaped."""
        return self.state in "ZX"


def find(pid: int) -> Process | None:
    """Return the process with this pid, if it exists."""
    text = _read(f"/proc/{pid}/stat")
    if text is None:
        return None
    # The program chooses its name, which may contain brackets and blanks. The name ends at the last bracket.
    front, _, back = text.decode(errors="replace").rpartition(") ")
    fields = back.split()
    name = front.partition(" (")[2]
    return Process(pid, name, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def state(pid: int) -> str | None:
    """Return the state: R running, S sleeping, D in the kernel, T stopped, Z zombie."""
    process = find(pid)
    return process.state if process else None


def is_alive(pid: int) -> bool | None:
    """Return whether the process still runs; a zombie does not."""
    if not HAS_PROC:
        return None
    process = find(pid)
    return process is not None and not process.is_zombie


def rss(pid: int) -> int | None:
    """Return the resident memory in bytes, including pages that a fork shares with its parent."""
    text = _read(f"/proc/{pid}/statm")
    return int(text.split()[1]) * _PAGE_BYTES if text else None


def children(pid: int) -> list[int] | None:
    """Return the direct children of a process, including zombies."""
    try:
        found = [_read(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return [] if HAS_PROC else None
    if None not in found:
        return [int(child) for part in found if part for child in part.split()]
    # This kernel has no `children` files.
    return [process.pid for process in all_processes() if process.parent == pid]


def environment(pid: int) -> list[bytes] | None:
    """Return the environment that the process started with, as NAME=value. Later changes do not show."""
    text = _read(f"/proc/{pid}/environ")
    return text.split(b"\0") if text is not None else None


def open_files(pid: int) -> dict[int, str] | None:
    """Return the target of each file descriptor of a process."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    found = {}
    for number in numbers:
        try:
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:  # closed meanwhile
            continue
    return found


def all_processes() -> Iterator[Process]:
    """Yield all visible processes."""
    for name in os.listdir("/proc") if HAS_PROC else ():
        process = find(int(name)) if name.isdigit() else None
        if process is not None:
            yield process


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None


def is_embedded_server(pid: int) -> bool:
    """Return whether the process is the embedded server, which outlives workers: only it has its home's lock open."""
    files = open_files(pid) or {}
    return any(Path(path.removesuffix(" (deleted)")).name == LOCK for path in files.values())
