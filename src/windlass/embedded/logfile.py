"""The server's log: rotates it, and reads its last lines.

The server opens its log again for each line, so the file can be renamed at any time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

MAX_LOG_BYTES = 10 * 1024 * 1024  # with the previous log at most twice that


def rotate(log: Path) -> None:
    """Rename a log above 10 MB to `….1`, replacing the previous one."""
    try:
        with log.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= MAX_LOG_BYTES:
                return
            # Several programs may do this at once: the first one renames, the others then find a new file.
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(log)):
                log.replace(previous(log))
    except FileNotFoundError:
        pass


def previous(log: Path) -> Path:
    """The path of the rotated log."""
    return log.with_name(log.name + ".1")


def tail(log: Path, lines: int, since: int = 0) -> list[str]:
    """The last lines of the log, from byte `since` on."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            file.seek(since)
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError:
        return []


def follow(log: Path, lines: int, pause: float = 0.2) -> Iterator[str]:
    """The last lines of the log, then each new line, across rotations. It never ends."""
    file = log.open(encoding="utf-8", errors="replace")
    try:
        yield from (line.rstrip("\n") for line in deque(file, maxlen=lines))
        partial = ""
        while True:
            partial += file.readline()
            if partial.endswith("\n"):
                yield partial.rstrip("\n")
                partial = ""
            elif _was_replaced(file.fileno(), log):
                file.close()
                file = log.open(encoding="utf-8", errors="replace")
            else:
                time.sleep(pause)
    finally:
        file.close()


def _was_replaced(fd: int, log: Path) -> bool:
    try:
        return not os.path.samestat(os.fstat(fd), os.stat(log))
    except FileNotFoundError:
        return False  # just renamed; the server creates a new one with its next line
