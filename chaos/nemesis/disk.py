"""A server's disk that stalls, fails or is full.

strace intercepts the server's system calls: it delays them or makes them fail. It can attach to a running server and
detach again; while attached it doubles the cost of every system call. A full disk needs no strace: a small file system
is mounted for the data and filled completely.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.support.server import Server
from tests.support.waiting import wait_until

from chaos.nemesis.fault import Detail, Fault, first, lacking, refused
from chaos.nemesis.server import LOG_FOLDER, bring_back, data_folder

_FSYNC = "fdatasync,fsync"


def lacking_strace() -> str | None:
    """Why strace cannot attach to a running server here."""
    return first(
        lambda: lacking("strace"),
        lambda: refused("strace", "-qq", "-o", "/dev/null", "true"),
        _lacking_attachment,
    )


def _lacking_attachment() -> str | None:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    return None if os.geteuid() == 0 or scope == "0" else "needs root, or ptrace_scope 0"


class Injection:
    """strace on a server, with one rule for some of its system calls."""

    def __init__(self, server: Server, calls: str, effect: str, *, only: list[Path] | None = None) -> None:
        self.server = server
        self.calls = calls
        self.effect = effect
        self._only = only or []
        self._strace: subprocess.Popen[bytes] | None = None

    def attach(self) -> None:
        """Attach; returns once every thread of the server is traced."""
        pid = self.server.pid
        paths = [word for path in self._only for word in ("-P", str(path))]
        rules = ["-e", f"trace={self.calls}", "-e", f"inject={self.calls}:{self.effect}"]
        self._strace = strace = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", "/dev/null", *rules, *paths, "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

        def traced() -> bool:
            if strace.poll() is not None:
                assert strace.stderr is not None
                raise OSError(f"strace exited: {strace.stderr.read().decode(errors='replace').strip()}")
            return all(tracer == strace.pid for tracer in tracers(pid))

        wait_until(traced, "strace to be attached", interval=0.002)

    def detach(self) -> None:
        """Detach. Harmless if not attached, or if the server has ended."""
        strace, self._strace = self._strace, None
        if strace is None:
            return
        strace.terminate()
        try:
            strace.wait(10.0)
        except subprocess.TimeoutExpired:
            strace.kill()
            strace.wait(5.0)
        if strace.stderr is not None:
            strace.stderr.close()


def tracers(pid: int) -> list[int]:
    """The tracer of each live thread of a process; 0 means none."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            told = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended: a failing write may end the server
        found.append(int(told.partition("TracerPid:")[2].split()[0]))
    return found


class _Injected(Fault):
    """One rule from `begin` to `end`; a server that died of it is restarted at the end."""

    calls: str
    only_log = False
    """Whether only writes to the log are hit. A log file created by a rewrite has another name and is not hit."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._injection: Injection | None = None

    @classmethod
    def available(cls) -> str | None:
        return lacking_strace()

    def effect(self) -> str:
        """The effect on the calls, in strace's syntax."""
        raise NotImplementedError

    def begin(self) -> Detail:
        if not self.server.alive:
            return {"pids": []}
        only = sorted((data_folder(self.server) / LOG_FOLDER).glob("*.aof")) if self.only_log else None
        self._injection = Injection(self.server, self.calls, self.effect(), only=only)
        self._injection.attach()
        return {"pids": [self.server.pid], "calls": self.calls, "effect": self.effect()}

    def end(self) -> Detail:
        injection, self._injection = self._injection, None
        if injection is None:
            return {}
        injection.detach()
        return bring_back(self.server)


class StalledFsync(_Injected):
    """Like a disk with a full queue."""

    name = "stalled fsync"
    summary = "Each fsync of the server is delayed by some seconds."
    calls = _FSYNC

    def __init__(self, server: Server, seconds: float) -> None:
        super().__init__(server)
        self.seconds = seconds

    def effect(self) -> str:
        return f"delay_enter={round(self.seconds * 1e6)}us"


class FailingFsync(_Injected):
    """Like a dying disk. Under `always` the server exits, under `everysec` it refuses writes."""

    name = "failing fsync"
    summary = "Each fsync of the server fails with EIO."
    calls = _FSYNC

    def effect(self) -> str:
        return "error=EIO"


class FailingWrite(_Injected):
    """Like a full disk. Under `always` the server exits, under `everysec` it refuses writes."""

    name = "failing write"
    summary = "Each write to the server's log fails with ENOSPC."
    calls = "write"
    only_log = True

    def effect(self) -> str:
        return "error=ENOSPC"


class SlowDisk(_Injected):
    """Like a disk shared with other programs."""

    name = "slow disk"
    summary = "Each write to the server's log, and each fsync of it, is delayed by some milliseconds."
    calls = "write,fdatasync,fsync"
    only_log = True

    def __init__(self, server: Server, milliseconds: float) -> None:
        super().__init__(server)
        self.milliseconds = milliseconds

    def effect(self) -> str:
        return f"delay_enter={round(self.milliseconds * 1000)}us"


class SmallDisk:
    """A file system of a few megabytes: pass its `path` to a server as `dir`. Closing it removes it with all data."""

    def __init__(self, megabytes: int = 16) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="wl-disk-"))
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "wl-disk", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            self.path.rmdir()
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def available() -> str | None:
        return first(
            lambda: lacking("mount", "umount", "unshare", root=True),
            lambda: refused("unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=1m", "wl-disk", "/tmp"),
        )

    def close(self) -> None:
        """Unmount lazily: a server that still runs keeps its files until it ends."""
        if self.path.exists():
            subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)
            self.path.rmdir()


class FullDisk(Fault):
    """No free byte until the end."""

    name = "full disk"
    summary = "A file fills the server's small disk completely; at the end the file is deleted."

    def __init__(self, server: Server, disk: SmallDisk) -> None:
        self.server = server
        self.disk = disk

    @classmethod
    def available(cls) -> str | None:
        return SmallDisk.available()

    def begin(self) -> Detail:
        size = 0
        with self._ballast.open("wb", buffering=0) as file:
            for piece in (bytes(1 << 16), bytes(1 << 12), b"\0"):
                try:
                    while True:
                        size += file.write(piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return {"bytes": size}

    def end(self) -> Detail:
        if not self._ballast.exists():
            return {}
        self._ballast.unlink()
        return bring_back(self.server)

    @property
    def _ballast(self) -> Path:
        return self.disk.path / "ballast"
