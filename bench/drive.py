"""The processes of one driver: starts them, reads their reports, and ends them with all their children."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from bench.environments import ROOT, Environment

_PROC = Path("/proc")
PATIENCE = 60.0


class Broken(Exception):
    """A driver exited, or was silent for too long."""


class Drive:
    """A driver in a role. All its processes carry the path of its pipe in the environment, and are found by that."""

    def __init__(
        self, environment: Environment, role: str, orders: Any, folder: Path, variables: dict[str, str] | None = None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{role}-", dir=folder))
        self._pipe_path = self._folder / "pipe"
        os.mkfifo(self._pipe_path)
        self._pipe = os.open(
            self._pipe_path, os.O_RDWR | os.O_NONBLOCK
        )  # opened for read and write, so that reads never see end-of-file
        self._heard = b""
        self.spent = 0.0
        own = {"BENCH_REPORT": str(self._pipe_path), **environment.variables, **(variables or {})}
        with (self._folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*environment.command, role, json.dumps(orders)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **own},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.spent = self.cpu() or 0.0
        self.kill()
        os.close(self._pipe)
        assert self.process.stdin
        self.process.stdin.close()

    def expect(self, event: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """The next report; it must be this event."""
        until = time.monotonic() + timeout
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._pipe], [], [], 0.5)
            if ready:
                self._heard += os.read(self._pipe, 65536)
            elif self.process.poll() is not None:
                raise Broken(f"it ended with {self.process.returncode}: {self._last_words()}")
            elif time.monotonic() > until:
                raise Broken(f"no {event!r} within {timeout:.0f} s: {self._last_words()}")
        line, _, self._heard = self._heard.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if said["event"] != event:
            raise Broken(f"it reported {said['event']!r} instead of {event!r}")
        return said

    def go(self) -> None:
        """Let the driver continue."""
        assert self.process.stdin
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def cpu(self) -> float | None:
        """CPU seconds of the driver and its children so far; None if the system does not report it."""
        table = _processes()
        if table is None:
            return None
        wanted, total = {self.process.pid}, 0.0
        while wanted:
            total += sum(table[pid][1] for pid in wanted if pid in table)
            wanted = {pid for pid, (parent, _) in table.items() if parent in wanted}
        return total / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill all its processes; a clean exit is not needed."""
        for _ in range(100):
            left = self._alive()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not left:
                break
            time.sleep(0.005)
        self.process.wait(10)

    def _alive(self) -> list[int]:
        mark = f"BENCH_REPORT={self._pipe_path}".encode()
        if not _PROC.is_dir():
            return [self.process.pid] if self.process.poll() is None else []
        self.process.poll()
        found = []
        for path in _PROC.glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                pass
        return found

    def _last_words(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it said nothing"


def _processes() -> dict[int, tuple[int, int]] | None:
    """Parent and clock ticks of every process, including its ended children."""
    found = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        found[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return found or None
