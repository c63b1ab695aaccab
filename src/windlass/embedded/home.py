"""The data folder of an embedded server: its location, its permissions, and a short path to its socket.

Another user who can write into the folder could make Windlass run a server with a configuration of their own. So every
use begins with `verify`: only this user can write to the folder, and to the folders above it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from windlass.errors import EmbeddedError

# The size of sockaddr_un.sun_path without its final NUL.
MAX_SOCKET_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103

LOCK = "windlass.lock"
SOCKET = "windlass.sock"
CONFIG = "windlass.conf"
PIDFILE = "windlass.pid"
LOG = "windlass.log"
DATA = "appendonlydir"


def default_home() -> Path:
    """`WINDLASS_HOME`, else the platform's folder for user data."""
    named = os.environ.get("WINDLASS_HOME")
    return Path(named) if named else Path(platformdirs.user_data_dir("windlass", appauthor=False))


class Home:
    """One data home. Nothing is written to disk before `prepare`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path.expanduser()))
        self.lock = self.path / LOCK
        self.config = self.path / CONFIG
        self.pidfile = self.path / PIDFILE
        self.log = self.path / LOG
        self.data = self.path / DATA

    def exists(self) -> bool:
        """Whether anything exists at the path, usable or not."""
        return os.path.lexists(self.path)

    def prepare(self) -> None:
        """Create the folder if it is missing, and verify that only this user can use it."""
        try:
            # Missing parents are created as private folders too, as XDG requires for its data folder.
            self._make_parents()
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise EmbeddedError(
                f"The data home {self.path} cannot be created: {error}. Set WINDLASS_HOME to a folder of your own."
            ) from error
        self.verify()

    def _make_parents(self) -> None:
        for folder in reversed(self.path.parents):
            try:
                os.mkdir(folder, 0o700)
            except OSError:
                if not folder.is_dir():
                    raise

    def verify(self) -> None:
        """Refuse the folder if another user can write into it or replace it."""
        refuse_unless_private(self.path)
        if self._is_readable_by_others():
            self._make_private()

    def _is_readable_by_others(self) -> bool:
        return bool(self.path.stat().st_mode & 0o055)

    def _make_private(self) -> None:
        # Only in a folder of our own: WINDLASS_HOME=$HOME must not change who can read the user's home.
        if any(self.path.iterdir()) and not self.lock.exists():
            raise _refusal(
                self.path, "can be read by other users and contains other files; if it is yours, run chmod 700"
            )
        self.path.chmod(0o700)
        if self._is_readable_by_others():
            raise _refusal(self.path, "is on a file system that ignores permissions, so other users can read it")

    @property
    def socket(self) -> Path:
        """The path that a client connects to: the socket, or a shorter path through a link.

        The server binds the socket by its bare name, so the home's path may have any length. A client needs a
        full path, which the operating system limits to about a hundred bytes. For a longer one there is a link
        in a private folder of this user.
        """
        direct = self.path / SOCKET
        if _fits(direct):
            return direct
        for folder in _private_folders():
            short = folder / hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16] / SOCKET
            if _fits(short):
                return short
        raise EmbeddedError(
            f"The socket path {direct} is longer than the system's limit of {MAX_SOCKET_PATH_BYTES} bytes, "
            "and this user has no private folder with a short path for a link. "
            "Set WINDLASS_HOME to a shorter path."
        )

    def link_socket(self) -> None:
        """Create the link for `socket`, if it needs one.

        Programs may use links in different folders. If a link is deleted, as in XDG_RUNTIME_DIR at logout, the
        next `ensure` creates it again.
        """
        link = self.socket.parent
        if link == self.path or _link_target(link) == str(self.path):
            return
        link.parent.mkdir(mode=0o700, exist_ok=True)
        refuse_unless_private(link.parent)
        fresh = link.with_name(f"{link.name}.{os.getpid()}.{os.urandom(4).hex()}")
        fresh.symlink_to(self.path, target_is_directory=True)
        os.replace(fresh, link)


def refuse_unless_private(folder: Path) -> None:
    """Raise unless the folder belongs to this user and no other user can write into it or replace it."""
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        raise _refusal(folder, f"is a link to {os.path.realpath(folder)}; use that folder's own path")
    if not stat.S_ISDIR(found.st_mode):
        raise _refusal(folder, "is not a folder")
    if found.st_uid != os.geteuid():
        raise _refusal(folder, f"belongs to another user (uid {found.st_uid}; this is uid {os.geteuid()})")
    if found.st_mode & 0o022:
        raise _refusal(folder, "can be written by other users; if all files in it are yours, run chmod 700 on it")
    _refuse_replaceable(folder)


def _refuse_replaceable(folder: Path) -> None:
    # A user who may rename one of the parent folders can replace ours. A sticky bit, as on /tmp, forbids that.
    # The owner of / counts as root: in a user namespace root may have another uid.
    trusted = {0, os.geteuid(), os.stat("/").st_uid}
    for above in folder.resolve().parents:
        found = above.stat()
        if found.st_uid not in trusted:
            raise _refusal(folder, f"is inside {above}, which belongs to another user (uid {found.st_uid})")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise _refusal(folder, f"is inside {above}, where any user can rename folders")


def _refusal(folder: Path, why: str) -> EmbeddedError:
    return EmbeddedError(
        f"The folder {folder} is not safe for an embedded server: it {why}. Set WINDLASS_HOME to a folder of your own."
    )


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES


def _link_target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _private_folders() -> Iterator[Path]:
    """Folders for links. Each is inside a folder that only this user can write to, never directly in /tmp."""
    named = (
        os.environ.get("XDG_RUNTIME_DIR"),
        platformdirs.user_cache_dir(),
        tempfile.gettempdir(),  # private to each user on macOS
    )
    for parent in (Path(name) for name in named if name):
        if parent.is_absolute() and _is_private(parent):
            yield parent / "windlass"


def _is_private(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
