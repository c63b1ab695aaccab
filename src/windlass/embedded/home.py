"""The folder that holds an embedded server: where it is, that nobody else can reach into it, and a way
to its socket that the operating system accepts.

Whoever can write into the folder can make us run a server with a configuration of theirs, so every
use begins with `verify`: the folder is ours alone, and so is the way that leads to it.
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

# What fits into sockaddr_un.sun_path besides its final NUL.
LONGEST_SOCKET_PATH = 107 if sys.platform.startswith("linux") else 103

LOCK = "windlass.lock"
SOCKET = "windlass.sock"
CONFIG = "windlass.conf"
PIDFILE = "windlass.pid"
LOG = "windlass.log"
DATA = "appendonlydir"


def default_home() -> Path:
    """`WINDLASS_HOME`, else this platform's folder for user data."""
    named = os.environ.get("WINDLASS_HOME")
    return Path(named) if named else Path(platformdirs.user_data_dir("windlass", appauthor=False))


class Home:
    """One data home. Nothing is touched on disk before `prepare`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path.expanduser()))
        self.lock = self.path / LOCK
        self.config = self.path / CONFIG
        self.pidfile = self.path / PIDFILE
        self.log = self.path / LOG
        self.data = self.path / DATA

    def exists(self) -> bool:
        """Whether there is anything at the path, fit or not."""
        return os.path.lexists(self.path)

    def prepare(self) -> None:
        """Make the folder if it is missing, and see that it is ours alone."""
        try:
            # The folders above are made private as well, as XDG asks for its data folder.
            self._make_parents()
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise EmbeddedError(
                f"The data home {self.path} cannot be made: {error}. Set WINDLASS_HOME to a folder of your own."
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
        """Refuse the folder if anybody else could have put something into it, or could replace it."""
        refuse_unless_ours(self.path)
        if self._is_readable_by_others():
            self._close()

    def _is_readable_by_others(self) -> bool:
        return bool(self.path.stat().st_mode & 0o055)

    def _close(self) -> None:
        # A folder full of other things is not ours to close: WINDLASS_HOME=$HOME must not change who may
        # read the user's home.
        if any(self.path.iterdir()) and not self.lock.exists():
            raise _refusal(self.path, "can be read by other users and holds other files, so it is not ours to close")
        self.path.chmod(0o700)
        if self._is_readable_by_others():
            raise _refusal(self.path, "lies on a file system that cannot keep other users from reading it")

    @property
    def socket(self) -> Path:
        """The path that a client connects to: the socket itself, or a short way to it.

        The server binds the socket by its bare name, so the home may lie as deep as it likes. A client has
        to spell out a path, and the operating system caps that at about a hundred bytes; past that the path
        leads through a link, kept in a private folder of this user.
        """
        direct = self.path / SOCKET
        if _fits(direct):
            return direct
        for folder in _private_folders():
            short = folder / hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16] / SOCKET
            if _fits(short):
                return short
        raise EmbeddedError(
            f"The path {direct} is longer than the {LONGEST_SOCKET_PATH} bytes a socket's path may have, "
            "and this user has no private folder with a short path to link it from. "
            "Set WINDLASS_HOME to a shorter path."
        )

    def open_way_to_socket(self) -> None:
        """Make the link that `socket` leads through, where there is one.

        It is only a second name. Programs may link from different folders, and a link that is deleted, as
        XDG_RUNTIME_DIR is at logout, is made again by the next `ensure`.
        """
        link = self.socket.parent
        if link == self.path or _link_target(link) == str(self.path):
            return
        link.parent.mkdir(mode=0o700, exist_ok=True)
        refuse_unless_ours(link.parent)
        fresh = link.with_name(f"{link.name}.{os.getpid()}.{os.urandom(4).hex()}")
        fresh.symlink_to(self.path, target_is_directory=True)
        os.replace(fresh, link)


def refuse_unless_ours(folder: Path) -> None:
    """Raise unless the folder belongs to this user, and nobody else can write into it or replace it."""
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        raise _refusal(folder, f"is a link to {os.path.realpath(folder)}; name that folder itself")
    if not stat.S_ISDIR(found.st_mode):
        raise _refusal(folder, "is not a folder")
    if found.st_uid != os.geteuid():
        raise _refusal(folder, f"belongs to another user (uid {found.st_uid}; this is uid {os.geteuid()})")
    if found.st_mode & 0o022:
        raise _refusal(folder, "can be written by other users; if all in it is yours, close it with chmod 700")
    _refuse_open_way(folder)


def _refuse_open_way(folder: Path) -> None:
    # Whoever may rename one of the folders above can put one of theirs in the place of ours. A sticky bit, as
    # on /tmp, forbids that. The owner of / stands for root where root has another number.
    trusted = {0, os.geteuid(), os.stat("/").st_uid}
    for above in folder.resolve().parents:
        found = above.stat()
        if found.st_uid not in trusted:
            raise _refusal(folder, f"lies under {above}, which belongs to another user (uid {found.st_uid})")
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise _refusal(folder, f"lies under {above}, in which anybody can rename folders")


def _refusal(folder: Path, why: str) -> EmbeddedError:
    return EmbeddedError(
        f"The folder {folder} is not safe for an embedded server: it {why}. Set WINDLASS_HOME to a folder of your own."
    )


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST_SOCKET_PATH


def _link_target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _private_folders() -> Iterator[Path]:
    """Folders for links. Each lies in one that belongs to this user: never straight in a shared /tmp."""
    named = (
        os.environ.get("XDG_RUNTIME_DIR"),
        platformdirs.user_cache_dir(),
        tempfile.gettempdir(),  # on macOS each user has one of their own
    )
    for parent in (Path(name) for name in named if name):
        if parent.is_absolute() and _only_ours_to_write(parent):
            yield parent / "windlass"


def _only_ours_to_write(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
