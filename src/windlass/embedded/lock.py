"""The lock that lives as long as the server: an exclusive flock on a file descriptor.

A flock belongs to the open file, not to a process: every copy of the descriptor keeps it. So the lock is never
unlocked here, only closed: the server keeps it through its own copy.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from types import TracebackType

from windlass.errors import EmbeddedError

# The lock files that this process has open now; see `_close_in_forked_child`.
_open_now: set[int] = set()


class Lock:
    """An exclusive lock that this process holds. Leaving the `with` closes this copy of it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self.fd)


def take(path: Path) -> Lock | None:
    """Take the lock; `None` if another process holds it."""
    while True:
        fd = _open(path, os.O_CREAT)
        try:
            if not _flock(fd, fcntl.LOCK_EX, path):
                _close(fd)
                return None
            if _is_still_at(fd, path):
                return Lock(fd)
        except BaseException:
            _close(fd)
            raise
        _close(fd)  # the file was replaced in between: a lock on the old one guards nothing


def is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that two programs that only check do not see each other.
        return not _flock(fd, fcntl.LOCK_SH, path)
    finally:
        _close(fd)


def has_open(pid: int, path: Path) -> bool:
    """Whether the process has the lock file open: proves that a pid is our server before we signal it."""
    if not Path("/proc/self/fd").is_dir():
        return pid in _openers_by_lsof(path)
    try:
        wanted = os.stat(path)
        return any(_is_file(entry, wanted) for entry in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _is_file(entry: os.DirEntry[str], wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(entry), wanted)
    except OSError:  # closed in the meantime; check the others
        return False


def _openers_by_lsof(path: Path) -> set[int]:
    try:
        listing = subprocess.run(
            ["lsof", "-t", "--", str(path)], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return {int(line) for line in listing.stdout.split() if line.isdigit()}


def _flock(fd: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise EmbeddedError(
            f"{path} cannot be locked ({error}): its file system does not support file locks, so two servers "
            "could destroy each other's data. Set WINDLASS_HOME to a folder on a local disk."
        ) from error
    return True


def _is_still_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _open(path: Path, flags: int = 0) -> int:
    fd = os.open(path, flags | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    _open_now.add(fd)
    return fd


def _close(fd: int) -> None:
    _open_now.discard(fd)
    os.close(fd)


def _close_in_forked_child() -> None:
    # If another thread forks while this process holds a lock, the child inherits the descriptor, and would keep
    # the lock even after the server's death.
    for fd in _open_now:
        os.close(fd)
    _open_now.clear()


os.register_at_fork(after_in_child=_close_in_forked_child)
