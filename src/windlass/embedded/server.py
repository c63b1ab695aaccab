"""`EmbeddedServer`: finds, starts, inspects and stops the server of one data home."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from windlass.embedded import lock, logfile, probe
from windlass.embedded.binary import find_server_binary
from windlass.embedded.home import Home, default_home
from windlass.embedded.launch import launch
from windlass.embedded.probe import Answer
from windlass.errors import EmbeddedError, ServerBinaryMissing, ServerWillNotStart

State = Literal["running", "loading", "stopped", "unreachable"]

POLL_S = 0.02  # between two checks of a starting server, which takes about 0.1 s
ERROR_LOG_LINES = 12  # shown if the server does not come up: a failed start writes fewer


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a home's server. Facts that only a running server knows are `None` if none answers."""

    state: State
    """`unreachable`: a process holds the lock, but nothing answers at the socket."""
    home: Path
    socket: Path
    log: Path
    binary: Path | None
    """The binary of the running server, else the one that would be started."""
    pid: int | None = None
    version: str | None = None
    """Such as `Valkey 9.1.2`."""
    uptime: int | None = None
    """Seconds."""
    clients: int | None = None
    """Connections, without the one that asks."""
    used_memory: int | None = None
    """Bytes."""
    aof_size: int | None = None
    """Bytes of data on disk."""

    @property
    def running(self) -> bool:
        """Whether a server answers, even if it is still loading its data."""
        return self.state in ("running", "loading")


class EmbeddedServer:
    """The server of one data home. Any number of objects and processes may share a home.

    home: the folder for data, socket and log; by default WINDLASS_HOME, else the platform's user data folder.
    patience: how many seconds `ensure` waits for a silent server. It waits as long as it takes for a server that
    is loading its data.
    """

    def __init__(self, home: Path | None = None, *, patience: float = 30.0) -> None:
        self._home = Home(default_home() if home is None else Path(home))
        self._patience = patience
        self.first_start = False
        """Whether this object has started the first server of this home."""

    def __repr__(self) -> str:
        return f"EmbeddedServer({str(self.home)!r})"

    @property
    def home(self) -> Path:
        """The data folder."""
        return self._home.path

    @property
    def socket_path(self) -> Path:
        """The path that a client connects to, after `ensure`."""
        return self._home.socket

    @property
    def log_path(self) -> Path:
        """The server's log. The previous one has the suffix `.1`."""
        return self._home.log

    def ensure(self) -> str:
        """Start the server if none runs, and return its socket path. Quick if one runs."""
        self.start()
        return str(self.socket_path)

    def start(self) -> bool:
        """Start the server if none runs. True if this call started it."""
        with _disk_faults(self._home):
            return self._ensure()

    def restart(self, timeout: float = 30.0) -> str:
        """Stop the server if one runs, start one, and return its socket path."""
        self.stop(timeout)
        return self.ensure()

    def status(self) -> ServerStatus:
        """Return the server's status. Starts and stops nothing."""
        with _disk_faults(self._home):
            return self._status()

    def stop(self, timeout: float = 30.0) -> bool:
        """Shut the server down cleanly, and wait until its process is gone. False if none was running.

        It never kills: a server that does not end within `timeout` seconds is an `EmbeddedError`.
        """
        with _disk_faults(self._home):
            return self._stop(timeout)

    def _ensure(self) -> bool:
        self._home.prepare()
        self._home.link_socket()
        logfile.rotate(self.log_path)
        start: _Start | None = None
        deadline = time.monotonic() + self._patience
        while not ((answer := probe.ping(self.socket_path)) is Answer.READY and self._is_ours()):
            taken = lock.take(self._home.lock) if answer is Answer.SILENT else None
            if taken is not None:
                with taken:
                    if start is not None:  # our server had the lock, and has lost it
                        raise start.failure("ended while starting")
                    start = _Start(self._home, taken)
            elif answer is Answer.LOADING:
                deadline = time.monotonic() + self._patience
            elif time.monotonic() > deadline:
                raise start.failure("does not answer") if start else self._stuck()
            time.sleep(POLL_S)
        if start is None:
            return False
        start.succeeded()
        self.first_start = start.is_first
        if self.first_start:
            _print(f"jobs are stored in {self.home}")
        return True

    def _is_ours(self) -> bool:
        """Whether the server that has just answered is the one that holds the lock."""
        if lock.is_held(self._home.lock):
            return True
        taken = lock.take(self._home.lock)
        if taken is None:
            return True
        with taken:  # while we hold it, no server of ours can start: a server that answers now is foreign
            if probe.ping(self.socket_path) is Answer.SILENT:
                return False  # it ended since it answered
            raise EmbeddedError(
                f"A server answers at {self.socket_path} without holding the lock {self._home.lock}: "
                "Windlass did not start it, or the lock file was deleted. "
                "Stop it with `windlass server stop`, then try again."
            )

    def _status(self) -> ServerStatus:
        if not self._reach():
            return self._without_facts("stopped")
        facts = probe.info(self.socket_path)
        if facts is not None:
            return self._with_facts(facts)
        if not lock.is_held(self._home.lock):
            return self._without_facts("stopped")
        # During a long script, or with all connections in use, a server runs without answering INFO.
        busy = probe.ping(self.socket_path) is Answer.READY
        return self._without_facts("running" if busy else "unreachable", pid=_pid_of_holder(self._home))

    def _stop(self, timeout: float) -> bool:
        if not self._reach():
            return False
        facts = probe.info(self.socket_path)
        if facts is None and not lock.is_held(self._home.lock):
            return False
        _Stop(self._home, facts, timeout).wait()
        return True

    def _reach(self) -> bool:
        if not self._home.exists():
            return False
        self._home.verify()
        self._home.link_socket()
        return True

    def _stuck(self) -> EmbeddedError:
        return EmbeddedError(
            f"{_name_server(self._home)} holds the lock, but has not answered at {self.socket_path} for "
            f"{self._patience:g} seconds. It may be suspended or short of CPU time, or its socket file was deleted. "
            f"Read {self.log_path}, or run `windlass server restart`."
        )

    def _with_facts(self, facts: dict[str, Any]) -> ServerStatus:
        name = "Valkey" if "valkey_version" in facts else "Redis"
        return ServerStatus(
            state="loading" if facts.get("loading") else "running",
            home=self.home,
            socket=self.socket_path,
            log=self.log_path,
            binary=Path(str(facts["executable"])),
            pid=int(facts["process_id"]),
            version=f"{name} {facts.get('valkey_version') or facts['redis_version']}",
            uptime=int(facts["uptime_in_seconds"]),
            clients=max(0, int(facts["connected_clients"]) - 1),
            used_memory=int(facts["used_memory"]),
            aof_size=int(facts.get("aof_current_size", 0)),
        )

    def _without_facts(self, state: State, pid: int | None = None) -> ServerStatus:
        try:
            binary = find_server_binary()
        except ServerBinaryMissing:
            binary = None
        return ServerStatus(
            state=state, home=self.home, socket=self.socket_path, log=self.log_path, binary=binary, pid=pid
        )


class _Start:
    """One start of a server, by the process that holds the lock."""

    def __init__(self, home: Home, taken: lock.Lock) -> None:
        self._home = home
        self._binary = find_server_binary()
        self.is_first = not home.data.exists()
        self._log_began = home.log.stat().st_size if home.log.exists() else 0
        try:
            self._process = launch(home, self._binary, taken)
        except OSError as error:
            raise ServerWillNotStart(
                f"The server {self._binary} cannot be started in {home.path}: {error}. "
                "Check the binary and the folder, or set WINDLASS_SERVER_BIN to another binary."
            ) from error

    def succeeded(self) -> None:
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            pass  # a wrapper script that keeps running

    def failure(self, how: str) -> ServerWillNotStart:
        if self._process.poll() is None:
            self._process.terminate()
        lines = logfile.tail(self._home.log, ERROR_LOG_LINES, since=self._log_began)
        log = "\n".join(f"    {line}" for line in lines) or "    (nothing)"
        return ServerWillNotStart(
            f"The embedded server {how}. "
            f"Its binary is {self._binary}, its data is in {self._home.path}, and its log says:\n{log}\n"
            f"The whole log is {self._home.log}. If its data is damaged, copy the folder before any repair. "
            "To use another binary set WINDLASS_SERVER_BIN; to use another folder set WINDLASS_HOME."
        )


class _Stop:
    """One shutdown. The server is gone once its lock is free, or another server has replaced it."""

    def __init__(self, home: Home, facts: dict[str, Any] | None, timeout: float) -> None:
        self._home = home
        self._run_id: str | None = facts["run_id"] if facts else None
        self._deadline = time.monotonic() + timeout
        self._signal_after = time.monotonic() + min(5.0, timeout / 2)
        self._refusal: str | None = None

    def wait(self) -> None:
        while lock.is_held(self._home.lock) or probe.ping(self._home.socket) is not Answer.SILENT:
            facts = probe.info(self._home.socket)
            if facts is not None:
                self._run_id = self._run_id or facts["run_id"]
                if facts["run_id"] != self._run_id:
                    return
                self._refusal = probe.shutdown(self._home.socket, facts["run_id"]) or self._refusal
            elif self._run_id is None and time.monotonic() > self._signal_after:
                self._signal()
            if time.monotonic() > self._deadline:
                raise self._failure()
            time.sleep(POLL_S)

    def _signal(self) -> None:
        """Stop a server that has lost its socket file. SIGTERM ends it just as cleanly."""
        self._signal_after = self._deadline
        pid = _pid_of_holder(self._home)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)

    def _failure(self) -> EmbeddedError:
        answer = f"; it answers: {self._refusal}" if self._refusal else ""
        return EmbeddedError(
            f"{_name_server(self._home)} has not ended in time{answer}. "
            f"It may still be writing its data: read {self._home.log}, and try again with a longer timeout."
        )


def _pid_of_holder(home: Home) -> int | None:
    """The pid in the pidfile, if that process really holds the lock."""
    try:
        pid = int(home.pidfile.read_text())
    except (OSError, ValueError):
        return None
    return pid if lock.has_open(pid, home.lock) else None


@contextmanager
def _disk_faults(home: Home) -> Iterator[None]:
    """Turn an OSError (full disk, read-only or deleted folder) into an `EmbeddedError` that names the folder."""
    try:
        yield
    except OSError as error:
        raise EmbeddedError(
            f"The data home {home.path} cannot be used: {error}. Fix this, or set WINDLASS_HOME to another folder."
        ) from error


def _name_server(home: Home) -> str:
    pid = _pid_of_holder(home)
    return f"The embedded server of {home.path}" + (f" (process {pid})" if pid else "")


def _print(line: str) -> None:
    if os.environ.get("WINDLASS_QUIET", "0") in ("", "0") and sys.stderr is not None:
        print(f"windlass: {line}", file=sys.stderr)
