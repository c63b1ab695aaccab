"""The server's log: kept bounded, and read from its end.

The server opens its log anew for each line, so the file can be renamed under it at any time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

LARGEST = 10 * 1024 * 1024


def rotate(log: Path) -> None:
    """Rename a log above 10 MB to `….1`, in place of the one before."""
    try:
        with log.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= LARGEST:
                return
            # Several programs may come to this at once: one renames, and the others find another file there.
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(log)):
                log.replace(previous(log))
    except FileNotFoundError:
        pass


def previous(log: Path) -> Path:
    """Where `rotate` puts the full log."""
    return log.with_name(log.name + ".1")


def tail(log: Path, lines: int, since: int = 0) -> list[str]:
    """The last lines of the log, none of them from before byte `since`."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            file.seek(since)
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError:
        return []


def follow(log: Path, lines: int, pause: float = 0.2) -> Iterator[str]:
    """The last lines of the log, then each line as it is added, over rotations; it never ends by itself."""
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
        return False  # renamed a moment ago; the server makes a new one with its next line
