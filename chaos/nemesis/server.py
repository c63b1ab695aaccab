"""What a server can do to its clients: die, stand still, forget its scripts or all its data, be full, or be put back
to an older state.
"""

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
BRIEFLY = 1.0  # seconds for what is repeated: its end must not wait for a server that another fault holds still
RECOVERS_WITHIN = 2.0  # seconds for a server to see that its disk is well again


def data_folder(server: Server) -> Path:
    """Where it keeps its data: in its own folder, unless it was told another one."""
    return Path(server.config.get("dir", server.dir))


def bring_back(server: Server) -> Detail:
    """See to it that a server runs and takes writes, after whatever happened to it; what had to be done."""
    try:
        wait_until(
            lambda: not server.alive or _can_persist(server),
            "its log to be well",
            timeout=RECOVERS_WITHIN,
            interval=0.05,
            ignoring=(redis.ConnectionError,),  # one that gives up for want of a disk may do so while it is asked
        )
    except TimeoutError:
        # Under `everysec` a failed fsync is remembered, and since no write is let in any more, none is tried again.
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
    summary = "SIGSTOP holds the server still with its connections open; SIGCONT lets it do what was sent meanwhile."

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
    """Takes requests and does not do them, as while something slow is under way. Who only reads is served."""

    name = "stall server"
    summary = "CLIENT PAUSE makes the server hold every request that may write until the end."

    def __init__(self, server: Server, at_most: float = 60.0) -> None:
        self.server = server
        self.at_most = at_most

    def begin(self) -> Detail:
        # Were all requests held, the one that ends it would be, too.
        self.server.command("CLIENT", "PAUSE", round(self.at_most * 1000), "WRITE")
        return {"at_most": self.at_most}

    def end(self) -> Detail:
        try:
            self.server.command("CLIENT", "UNPAUSE")
        except (redis.RedisError, RuntimeError):
            pass  # it is down: the next one knows nothing of a pause
        return {}


class FlushScripts(Repeated):
    """Scripts are gone again as soon as they are loaded."""

    name = "flush scripts"
    summary = "SCRIPT FLUSH makes the server forget every script, again and again."

    def __init__(self, server: Server, every: float = 0.1) -> None:
        super().__init__(every)
        self.server = server

    def once(self) -> None:
        self.server.command("SCRIPT", "FLUSH", timeout=BRIEFLY)


class RewriteLog(Repeated):
    """One fork after the other."""

    name = "rewrite log"
    summary = "BGREWRITEAOF makes the server fork and write its log anew, again and again."

    def __init__(self, server: Server, every: float = 0.5) -> None:
        super().__init__(every)
        self.server = server

    def once(self) -> None:
        self.server.command("BGREWRITEAOF", timeout=BRIEFLY)


class KillClients(Repeated):
    """Every connection is new again."""

    name = "kill clients"
    summary = "CLIENT KILL closes every connection that the server has, again and again."

    def __init__(self, server: Server, every: float = 1.0) -> None:
        super().__init__(every)
        self.server = server

    def once(self) -> None:
        for kind in ("normal", "pubsub"):
            self.server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes", timeout=BRIEFLY)


class FullMemory(Fault):
    """No room for anything new until the end."""

    name = "full memory"
    summary = "CONFIG SET maxmemory puts the limit below what is used already; at the end it is as it was."

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
                pass  # it is down: what it reads when it starts is the old limit
        return {}


class FlushAll(Fault):
    """One moment after which nothing is left. Not mended; jobs are lost by it, and have to be accounted for."""

    name = "flush all"
    summary = "FLUSHALL deletes all data."

    def __init__(self, server: Server) -> None:
        self.server = server

    def begin(self) -> Detail:
        keys = self.server.command("DBSIZE")
        self.server.command("FLUSHALL")
        return {"keys": keys}


class Backup:
    """A copy of a server's log at one moment, taken while it works."""

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
        """Copy the log. While it is being written anew its parts do not fit together, so nobody may do that now."""
        percentage = self.server.command("CONFIG", "GET", "auto-aof-rewrite-percentage")[1].decode()
        self.server.command("CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
        try:
            wait_until(self._is_settled, "no rewrite to be under way", timeout=60.0)
            shutil.rmtree(self.copy, ignore_errors=True)
            # The last request may be there in part only; that is how a log looks after a power cut, and it loads.
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
    """One moment after which it is as it was before. Not mended; whatever was done since has to be accounted for."""

    name = "restore backup"
    summary = "The server is killed, its log is replaced by the backup, and it is started again."

    def __init__(self, backup: Backup) -> None:
        self.backup = backup
        self._begun = False

    def begin(self) -> Detail:
        taken_at = self.backup.taken_at
        if taken_at is None:
            raise RuntimeError("there is no backup yet: take() one first")
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
