"""Starts the server process: writes its configuration, and passes on the lock.

Every path in the configuration is a bare name, and the server starts with the home as its working folder. So no path
needs quoting, and a home that is moved while its server runs keeps working.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from windlass.embedded import home as names
from windlass.embedded.home import Home
from windlass.embedded.lock import Lock

CONFIGURATION = f"""\
# Windlass rewrites this file at each start of the server: changes are lost.

# Only the owner can connect, and only through the socket.
port 0
unixsocket {names.SOCKET}
unixsocketperm 700

# Every write is fsynced before its reply. A machine crash may leave an incomplete last entry: it was never
# acknowledged, and the next start cuts it off.
dir .
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-use-rdb-preamble yes
aof-load-truncated yes
save ""

# When memory runs out, new jobs are refused. No job is ever evicted.
maxmemory-policy noeviction

# The server detaches from the program that starts it, so a program that kills all its children does not kill it.
daemonize yes
pidfile {names.PIDFILE}

# A file, never a pipe: a full pipe without a reader would block the server for good.
logfile {names.LOG}
loglevel notice
"""


def launch(home: Home, binary: Path, lock: Lock) -> subprocess.Popen[bytes]:
    """Start the server and pass it the lock. Returns its first process, which exits once the daemon runs or
    cannot start."""
    _remove_leftovers(home)
    _write_config(home)
    # Passed on stdin, never by name: a server expands `*` and `[` in the path, and if nothing matches, it silently
    # runs with its defaults: a TCP port open, and no data kept.
    config = os.open(home.config, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    # Errors before the server opens its log, such as a missing library, go there as well.
    log = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [binary, "-"],
            cwd=home.path,
            stdin=config,
            stdout=log,
            stderr=log,
            pass_fds=(lock.fd,),
            start_new_session=True,  # keeps Ctrl-C and terminal hang-ups away from it
            umask=0o077,
        )
    finally:
        os.close(config)
        os.close(log)


def _remove_leftovers(home: Home) -> None:
    # Files that a killed server was writing. None is in use: we hold the lock, and a server's child that still
    # rewrites the data would hold it too.
    for pattern in (f"{names.CONFIG}.new", "temp-*.aof", "temp-*.rdb"):
        for leftover in home.path.glob(pattern):
            leftover.unlink(missing_ok=True)


def _write_config(home: Home) -> None:
    fresh = home.path / f"{names.CONFIG}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(CONFIGURATION)
    os.replace(fresh, home.config)
