"""A separate wall clock for one server: it can jump, freeze or run, while all other processes keep the real time.

A small library (clock_shim.c, built on first use) is preloaded into the server and reads the time from a shared page.
The next clock read sees a change; no restart is needed, and the clock survives a restart. Monotonic clocks stay real,
so the server's timers go on.

    clock = ServerClock()
    with Server(valkey_binary(), env=clock.environment()):
        clock.jump(-3600)
"""

from __future__ import annotations

import atexit
import functools
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).parent / "clock_shim.c"

_SECOND = 1_000_000_000

# Indexes into the shared page; see clock_shim.c.
_MODE, _OFFSET, _VALUE = range(3)
_RUNNING, _FROZEN = range(2)


@functools.cache
def shim() -> Path | None:
    """The library, built for this process and removed at exit; None if it cannot be built here."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        return None
    folder = _own_folder("wl-clock-shim-")
    library = folder / "clock_shim.so"
    command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if built.returncode != 0:
        raise RuntimeError(f"could not build {SOURCE.name}:\n{built.stderr}")
    return library


class ServerClock:
    """The wall clock that one server sees. It starts at the real time and runs."""

    def __init__(self) -> None:
        library = shim()
        if library is None:
            raise RuntimeError("a server's clock can only be moved on Linux, with a C compiler (cc) on PATH")
        self._library = library
        self._path = _own_folder("wl-clock-") / "clock"
        self._path.write_bytes(bytes(mmap.PAGESIZE))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._page = memoryview(self._map).cast("q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """Environment variables that give a new server process this clock."""
        others = os.environ.get("LD_PRELOAD")
        preload = f"{self._library}:{others}" if others else str(self._library)
        return {"LD_PRELOAD": preload, "WINDLASS_SERVER_CLOCK": str(self._path)}

    @property
    def frozen(self) -> bool:
        return self._page[_MODE] == _FROZEN

    @property
    def now_ns(self) -> int:
        """The server's current time, in nanoseconds since 1970."""
        return self._page[_VALUE] if self.frozen else time.time_ns() + self._page[_OFFSET]

    def jump(self, seconds: float) -> None:
        """Move the clock forward, or back if negative. A running clock keeps running, a frozen one stays frozen."""
        self._shift(round(seconds * _SECOND))

    def freeze(self, at_seconds: float | None = None) -> None:
        """Freeze the clock, at this second since 1970 or at its current time."""
        self.freeze_ns(self.now_ns if at_seconds is None else round(at_seconds * _SECOND))

    def freeze_ns(self, at_ns: int) -> None:
        """Freeze the clock at this nanosecond since 1970."""
        self._page[_VALUE] = at_ns
        self._page[_MODE] = _FROZEN

    def advance(self, seconds: float) -> None:
        """Move a frozen clock forward."""
        if not self.frozen or seconds < 0:
            raise ValueError("advance() needs a frozen clock and seconds >= 0; use jump() otherwise")
        self._shift(round(seconds * _SECOND))

    def run(self) -> None:
        """Let a frozen clock run on from its current time."""
        if self.frozen:
            self._page[_OFFSET] = self._page[_VALUE] - time.time_ns()
            self._page[_MODE] = _RUNNING

    def reset(self) -> None:
        """Return to the real time."""
        self._page[_OFFSET] = 0
        self._page[_MODE] = _RUNNING

    def close(self) -> None:
        """Unmap the page. A server that still runs keeps its mapping and its time."""
        self._page.release()
        self._map.close()
        shutil.rmtree(self._path.parent, ignore_errors=True)

    def _shift(self, ns: int) -> None:
        self._page[_VALUE if self.frozen else _OFFSET] += ns


def _own_folder(prefix: str) -> Path:
    """A folder that only this user can write to, removed when this process ends."""
    folder, owner = Path(tempfile.mkdtemp(prefix=prefix)), os.getpid()
    # A forked child inherits the exit handler, but must not remove the parent's folder.
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder
