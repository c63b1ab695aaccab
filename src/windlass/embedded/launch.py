"""Starting the server process: its configuration, and what it inherits.

Every path in the configuration is a bare name, and the server starts with the home as its working folder.
So nothing has to be quoted, whatever letters the home's path is made of and however long it is, and a home
that is moved while its server runs goes on working.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from windlass.embedded import home as names
from windlass.embedded.home import Home
from windlass.embedded.lock import Lock

CONFIGURATION = f"""\
# Written by Windlass at each start of the server: changes made here are lost.

# Reached through the socket alone, by its owner alone.
port 0
unixsocket {names.SOCKET}
unixsocketperm 700

# What was acknowledged is on disk: every write is fsynced before its answer. A torn end, as a crash of the
# machine leaves it, holds nothing that was acknowledged, and is cut off at the next start.
dir .
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-use-rdb-preamble yes
aof-load-truncated yes
save ""

# When memory runs out a new job is refused; an old one is never thrown away.
maxmemory-policy noeviction

# The server leaves its starter at once: it is nobody's child, so no program has to wait for it, and none that
# ends its children by mistake ends it too.
daemonize yes
pidfile {names.PIDFILE}

# Never a pipe: one that nobody reads stops the server for good once it is full.
logfile {names.LOG}
loglevel notice
"""


def launch(home: Home, binary: Path, lock: Lock) -> subprocess.Popen[bytes]:
    """Start the server and give it the lock. What comes back is its first process, which ends when the server
    proper is on its way, or fails if the server cannot begin at all."""
    _remove_leftovers(home)
    _write_config(home)
    # Read from its input, never by name: a server takes the full path for a pattern, and where a `*` or `[` in it
    # matches nothing it runs without a word on its defaults, with a TCP port open and no data kept.
    config = os.open(home.config, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    # What is said before the server opens its log, such as that a library is missing, goes there as well.
    log = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [binary, "-"],
            cwd=home.path,
            stdin=config,
            stdout=log,
            stderr=log,
            pass_fds=(lock.fd,),
            start_new_session=True,  # Ctrl-C and the end of a terminal are not meant for it
            umask=0o077,
        )
    finally:
        os.close(config)
        os.close(log)


def _remove_leftovers(home: Home) -> None:
    # What a server or a starter was writing when it was killed. Nobody is at it now: we hold the lock, and a
    # server's child that still rewrites the data would be holding it as well.
    for pattern in (f"{names.CONFIG}.new", "temp-*.aof", "temp-*.rdb"):
        for leftover in home.path.glob(pattern):
            leftover.unlink(missing_ok=True)


def _write_config(home: Home) -> None:
    fresh = home.path / f"{names.CONFIG}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(CONFIGURATION)
    os.replace(fresh, home.config)
