"""What /proc tells about processes: memory, state, and who belongs to whom.
Everything is None where there is no /proc or no such process, so callers must do without it on other systems.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from windlass.embedded.home import LOCK

_PAGE = os.sysconf("SC_PAGE_SIZE")
HAS_PROC = os.path.exists("/proc/self/stat")


class Process(NamedTuple):
    """One process, as its `stat` has it. `started` is in clock ticks since boot: with it a pid is unique."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in "ZX"


def look(pid: int) -> Process | None:
    """A process, if there is one of that pid."""
    text = _read(f"/proc/{pid}/stat")
    if text is None:
        return None
    # The name is whatever the program chose, brackets and blanks included; it ends at the last bracket.
    front, _, back = text.decode(errors="replace").rpartition(") ")
    fields = back.split()
    name = front.partition(" (")[2]
    return Process(pid, name, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def state(pid: int) -> str | None:
    """One letter: R running, S sleeping, D in the kernel, T stopped, Z zombie."""
    process = look(pid)
    return process.state if process else None


def is_alive(pid: int) -> bool | None:
    """Whether it still runs; a zombie does not. None where there is no /proc."""
    if not HAS_PROC:
        return None
    process = look(pid)
    return process is not None and not process.is_zombie


def rss(pid: int) -> int | None:
    """Resident memory in bytes; what a fork still shares with its parent counts."""
    text = _read(f"/proc/{pid}/statm")
    return int(text.split()[1]) * _PAGE if text else None


def in_session(session: int) -> list[int] | None:
    """The processes of a session, zombies left out."""
    return _select(lambda process: process.session == session)


def in_group(group: int) -> list[int] | None:
    """The processes of a process group, zombies left out."""
    return _select(lambda process: process.group == group)


def children(pid: int) -> list[int] | None:
    """The direct children of a process, zombies included."""
    try:
        found = [_read(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return [] if HAS_PROC else None
    if None not in found:
        return [int(child) for part in found if part for child in part.split()]
    # A kernel without those lists: look at everybody.
    return [process.pid for process in everybody() if process.parent == pid]


def environment(pid: int) -> list[bytes] | None:
    """What the process was started with, as NAME=value; what a fork changed in its copy is not seen."""
    text = _read(f"/proc/{pid}/environ")
    return text.split(b"\0") if text is not None else None


def open_files(pid: int) -> dict[int, str] | None:
    """What each descriptor of a process leads to."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    found = {}
    for number in numbers:
        try:
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:  # closed while we looked
            continue
    return found


def everybody() -> Iterator[Process]:
    """All processes that can be seen."""
    for name in os.listdir("/proc") if HAS_PROC else ():
        process = look(int(name)) if name.isdigit() else None
        if process is not None:
            yield process


def _select(wanted: Callable[[Process], bool]) -> list[int] | None:
    if not HAS_PROC:
        return None
    return [process.pid for process in everybody() if wanted(process) and not process.is_zombie]


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None


def is_embedded_server(pid: int) -> bool:
    """Whether it is a server of our own that is meant to stay: only such a one has its home's lock open."""
    files = open_files(pid) or {}
    return any(Path(path.removesuffix(" (deleted)")).name == LOCK for path in files.values())
