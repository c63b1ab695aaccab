"""A server for the benchmark, in a temporary folder, and its resource usage."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import RedisError
from redis.retry import Retry

# The server's working folder is this folder and all paths are relative: a socket path is limited to about 100 bytes.
_CONFIGURATION = """\
bind 127.0.0.1
port {port}
unixsocket server.sock
logfile server.log
save ""
appendonly {appendonly}
appendfsync always
auto-aof-rewrite-percentage 0
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(frozen=True, slots=True)
class Usage:
    """A server's usage at one moment: CPU seconds, and calls and microseconds of each command."""

    cpu: float
    commands: dict[str, tuple[int, int]]

    def since(self, earlier: Usage) -> Usage:
        """The usage since an earlier moment, without the INFO calls themselves."""
        spent = {}
        for name, (calls, microseconds) in self.commands.items():
            before = earlier.commands.get(name, (0, 0))
            if calls > before[0] and name != "info":
                spent[name] = (calls - before[0], microseconds - before[1])
        return Usage(self.cpu - earlier.cpu, spent)


class BenchServer:
    """One server process on a unix socket, and on loopback if `tcp`; stopped, and its folder removed, on exit."""

    def __init__(self, binary: Path, folder: Path | None, *, fsync: bool, tcp: bool = False) -> None:
        self.binary = binary
        self.fsync = fsync
        self.port = _free_port() if tcp else 0
        self.folder = Path(tempfile.mkdtemp(prefix="wl-bench-", dir=folder))
        self.socket = self.folder / "server.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None

    def __enter__(self) -> Self:
        config = _CONFIGURATION.format(appendonly="yes" if self.fsync else "no", port=self.port)
        try:
            (self.folder / "server.conf").write_text(config)
            with (self.folder / "server.conf").open() as given, (self.folder / "server.log").open("w") as log:
                self._process = subprocess.Popen(
                    [self.binary, "-"], cwd=self.folder, stdin=given, stdout=log, stderr=log, start_new_session=True
                )
            self._connection = self._await()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # a clean exit is not needed
            self._process.wait(15)
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str | bytes | int) -> Any:
        """Send one command over a connection that is not measured."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def info(self, *sections: str) -> dict[str, str]:
        """Sections of INFO."""
        lines = (line.partition(":") for line in self.command("INFO", *sections).decode().splitlines())
        return {name: value for name, colon, value in lines if colon}

    def usage(self) -> Usage:
        """The usage so far. Commands inside scripts are counted like those of clients."""
        info = self.info("cpu", "commandstats")
        commands = {}
        for name, text in info.items():
            if name.startswith("cmdstat_"):
                fields = dict(field.split("=") for field in text.split(","))
                commands[name.removeprefix("cmdstat_")] = (int(fields["calls"]), int(fields["usec"]))
        return Usage(float(info["used_cpu_user"]) + float(info["used_cpu_sys"]), commands)

    def memory(self) -> int:
        """Allocated bytes, without those of the Lua interpreter."""
        return int(self.info("memory")["used_memory"])

    def wait_alone(self) -> None:
        """Wait until the server has dropped all other clients, whose buffers count as memory."""
        until = time.monotonic() + 10
        while int(self.info("clients")["connected_clients"]) > 1:
            if time.monotonic() > until:
                raise RuntimeError("another client is connected to the benchmark's server")
            time.sleep(0.002)

    def describe(self) -> dict[str, str]:
        """Name, version and allocator."""
        info = self.info("server", "memory")
        name = info.get("server_name", "redis")
        return {"server": f"{name} {info[f'{name}_version']}", "allocator": info["mem_allocator"]}

    def fsync_seconds(self, times: int = 10) -> float:
        """The median time of a small write with fsync in the server's folder."""
        path = self.folder / "probe"
        taken = []
        with path.open("wb", buffering=0) as file:
            for _ in range(times):
                began = time.perf_counter()
                file.write(b"x" * 4096)
                os.fsync(file.fileno())
                taken.append(time.perf_counter() - began)
        path.unlink()
        return sorted(taken)[times // 2]

    def _await(self) -> Any:
        kind: Any = UnixDomainSocketConnection
        connection = kind(path=str(self.socket), retry=Retry(NoBackoff(), 0), protocol=2)
        deadline = time.monotonic() + 15
        while True:
            try:
                connection.connect()
                return connection
            except (RedisError, OSError):
                assert self._process
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = self.folder / "server.log"
                    said = log.read_text(errors="replace")[-500:] if log.exists() else "it said nothing"
                    raise RuntimeError(f"{self.binary} does not answer: {said}") from None
                time.sleep(0.02)
