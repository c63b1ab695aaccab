"""Faults of a server: it dies, freezes, loses its scripts or all its data, is full, or returns to an older state."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

import redis
from tests.support.server import Server
from tests.support.waiting import wait_until

from chaos.nemesis.fault import Detail, Fault, Repeated

LOG_FOLDER = "appendonlydir"
REPEAT_TIMEOUT_S = 1.0  # seconds per repeated command: its end must not wait for a server that another fault has frozen
RECOVERY_S = 2.0  # seconds for a server to see that its disk works again


def data_folder(server: Server) -> Path:
    """The server's data folder: its own folder, unless configured otherwise."""
    return Path(server.config.get("dir", server.dir))


def bring_back(server: Server) -> Detail:
    """Make the server run and accept writes again, after any fault; returns the actions taken."""
    try:
        wait_until(
            lambda: not server.alive or _can_persist(server),
            "its log to be well",
            timeout=RECOVERY_S,
            interval=0.05,
            ignoring=(redis.ConnectionError,),  # a server without a disk may exit while it is asked
        )
    except TimeoutError:
        # Under `everysec` the server remembers a failed fsync; it refuses writes, so it never tries another.
        server.kill()
        server.start()
        return {"restarted": server.pid}
    if server.alive:
        return {}
    code = server.returncode
    server.start()
    return {"started": server.pid, "had_ended_with": code}


def _can_persist(server: Server) -> bool:
    return server.info("persistence").get("aof_last_write_status", "ok") == "ok"


class KillServer(Fault):
    """Dead from `begin` to `end`."""

    name = "kill server"
    summary = "SIGKILL ends the server; at the end it is started again on the same data."

    def __init__(self, server: Server) -> None:
        self.server = server

    def begin(self) -> Detail:
        if not self.server.alive:
            return {"pids": []}
        pid = self.server.pid
        self.server.kill()
        return {"pids": [pid]}

    def end(self) -> Detail:
        if self.server.alive:
            return {}
        began = time.monotonic()
        self.server.start()
        return {"pid": self.server.pid, "ready_after": round(time.monotonic() - began, 3)}


class FreezeServer(Fault):
    """Silent from `begin` to `end`, with all its connections open."""

    name = "freeze server"
    summary = "SIGSTOP freezes the server with its connections open; SIGCONT lets it execute the queued requests."

    def __init__(self, server: Server) -> None:
        self.server = server

    def begin(self) -> Detail:
        if not self.server.alive:
            return {"pids": []}
        self.server.pause()
        return {"pids": [self.server.pid]}

    def end(self) -> Detail:
        if self.server.alive:
            self.server.unpause()
        return {}


class StallServer(Fault):
    """Holds writes until the end, like a server during a slow operation. Reads are served."""

    name = "stall server"
    summary = "CLIENT PAUSE makes the server hold every write request until the end."

    def __init__(self, server: Server, at_most: float = 60.0) -> None:
        self.server = server
        self.at_most = at_most

    def begin(self) -> Detail:
        # Holding all requests would also hold the one that ends the pause.
        self.server.command("CLIENT", "PAUSE", round(self.at_most * 1000), "WRITE")
        return {"at_most": self.at_most}

    def end(self) -> Detail:
        try:
            self.server.command("CLIENT", "UNPAUSE")
        except (redis.RedisError, RuntimeError):
            pass  # the server is down: its successor is not paused
        return {}


class FlushScripts(Repeated):
    """Scripts are removed soon after they are loaded."""

    name = "flush scripts"
    summary = "SCRIPT FLUSH makes the server forget every script, repeatedly."

    def __init__(self, server: Server, every: float = 0.1) -> None:
        super().__init__(every)
        self.server = server

    def once(self) -> None:
        self.server.command("SCRIPT", "FLUSH", timeout=REPEAT_TIMEOUT_S)


class RewriteLog(Repeated):
    """One fork after another."""

    name = "rewrite log"
    summary = "BGREWRITEAOF makes the server fork and rewrite its log, repeatedly."

    def __init__(self, server: Server, every: float = 0.5) -> None:
        super().__init__(every)
        self.server = server

    def once(self) -> None:
        self.server.command("BGREWRITEAOF", timeout=REPEAT_TIMEOUT_S)


class KillClients(Repeated):
    """Every client must reconnect."""

    name = "kill clients"
    summary = "CLIENT KILL closes every connection of the server, repeatedly."

    def __init__(self, server: Server, every: float = 1.0) -> None:
        super().__init__(every)
        self.server = server

    def once(self) -> None:
        for kind in ("normal", "pubsub"):
            self.server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes", timeout=REPEAT_TIMEOUT_S)


class FullMemory(Fault):
    """No memory for new data until the end."""

    name = "full memory"
    summary = "CONFIG SET maxmemory sets the limit below the memory in use; at the end the old limit returns."

    def __init__(self, server: Server) -> None:
        self.server = server
        self._before: str | None = None

    def begin(self) -> Detail:
        used = int(self.server.info("memory")["used_memory"])
        self._before = self.server.command("CONFIG", "GET", "maxmemory")[1].decode()
        limit = max(1, used // 2)
        self.server.command("CONFIG", "SET", "maxmemory", limit)
        return {"used": used, "limit": limit}

    def end(self) -> Detail:
        before, self._before = self._before, None
        if before is not None:
            try:
                self.server.command("CONFIG", "SET", "maxmemory", before)
            except (redis.RedisError, RuntimeError):
                pass  # the server is down: it restarts with the old limit
        return {}


class FlushAll(Fault):
    """Deletes all data at once. Not repaired: the lost jobs must be accounted for."""

    name = "flush all"
    summary = "FLUSHALL deletes all data."

    def __init__(self, server: Server) -> None:
        self.server = server

    def begin(self) -> Detail:
        keys = self.server.command("DBSIZE")
        self.server.command("FLUSHALL")
        return {"keys": keys}


class Backup:
    """A copy of a server's log at one moment, taken while the server runs."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.taken_at: float | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="wl-backup-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def copy(self) -> Path:
        return self._folder / LOG_FOLDER

    def take(self) -> Detail:
        """Copy the log. During a rewrite its parts do not fit together, so rewrites are disabled meanwhile."""
        percentage = self.server.command("CONFIG", "GET", "auto-aof-rewrite-percentage")[1].decode()
        self.server.command("CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
        try:
            wait_until(self._is_settled, "no rewrite to be under way", timeout=60.0)
            shutil.rmtree(self.copy, ignore_errors=True)
            # The last request may be incomplete, as after a power cut; such a log loads.
            shutil.copytree(data_folder(self.server) / LOG_FOLDER, self.copy)
        finally:
            self.server.command("CONFIG", "SET", "auto-aof-rewrite-percentage", percentage)
        self.taken_at = time.monotonic()
        return {"bytes": sum(file.stat().st_size for file in self.copy.iterdir())}

    def _is_settled(self) -> bool:
        told = self.server.info("persistence")
        return told["aof_rewrite_in_progress"] == "0" and told["aof_rewrite_scheduled"] == "0"

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class RestoreBackup(Fault):
    """Returns to an older state at once. Not repaired: steps made since then must be accounted for."""

    name = "restore backup"
    summary = "The server is killed, its log is replaced by the backup, and it is started again."

    def __init__(self, backup: Backup) -> None:
        self.backup = backup
        self._begun = False

    def begin(self) -> Detail:
        taken_at = self.backup.taken_at
        if taken_at is None:
            raise RuntimeError("no backup yet: call take() first")
        self._begun = True
        server = self.backup.server
        if server.alive:
            server.kill()
        log = data_folder(server) / LOG_FOLDER
        shutil.rmtree(log, ignore_errors=True)
        shutil.copytree(self.backup.copy, log)
        server.start()
        return {"pid": server.pid, "age": round(time.monotonic() - taken_at, 3)}

    def end(self) -> Detail:
        begun, self._begun = self._begun, False
        return bring_back(self.backup.server) if begun else {}
