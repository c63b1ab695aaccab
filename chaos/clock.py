"""A wall clock of its own for one server: it jumps, stands still, or goes on, while every other process keeps the time.

A small library is loaded before the server's own (clock_shim.c, built when it is first asked for) and reads from a
shared page what time it is. The change is seen by the next reading of the clock; the server needs no restart, and
after one it still has this clock. Clocks that only run stay real, so the server's timers go on.

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

# Where the page holds what; see clock_shim.c.
_MODE, _OFFSET, _VALUE = range(3)
_RUNNING, _FROZEN = range(2)


@functools.cache
def shim() -> Path | None:
    """The library, built for this process and removed when it ends; None where it cannot be had."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        return None
    folder = _own_folder("wl-clock-shim-")
    library = folder / "clock_shim.so"
    command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if built.returncode != 0:
        raise RuntimeError(f"{SOURCE.name} does not build:\n{built.stderr}")
    return library


class ServerClock:
    """What time one server believes it is. It runs with the real time at first."""

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
        """What a server must be started with to have this clock."""
        others = os.environ.get("LD_PRELOAD")
        preload = f"{self._library}:{others}" if others else str(self._library)
        return {"LD_PRELOAD": preload, "WINDLASS_SERVER_CLOCK": str(self._path)}

    @property
    def frozen(self) -> bool:
        return self._page[_MODE] == _FROZEN

    @property
    def now_ns(self) -> int:
        """What the server would read just now, in nanoseconds since 1970."""
        return self._page[_VALUE] if self.frozen else time.time_ns() + self._page[_OFFSET]

    def jump(self, seconds: float) -> None:
        """Puts the clock forward, or back where negative; it runs on, or stands still, as before."""
        self._shift(round(seconds * _SECOND))

    def freeze(self, at_seconds: float | None = None) -> None:
        """Stops the clock, at this second since 1970 or where it is."""
        self.freeze_ns(self.now_ns if at_seconds is None else round(at_seconds * _SECOND))

    def freeze_ns(self, at_ns: int) -> None:
        """Stops the clock at this nanosecond since 1970."""
        self._page[_VALUE] = at_ns
        self._page[_MODE] = _FROZEN

    def advance(self, seconds: float) -> None:
        """Lets time pass for a clock that stands still."""
        if not self.frozen or seconds < 0:
            raise ValueError("only a frozen clock is advanced, and only forward; jump() moves any clock anywhere")
        self._shift(round(seconds * _SECOND))

    def run(self) -> None:
        """Lets a frozen clock run on from where it stands."""
        if self.frozen:
            self._page[_OFFSET] = self._page[_VALUE] - time.time_ns()
            self._page[_MODE] = _RUNNING

    def reset(self) -> None:
        """Shows the real time again."""
        self._page[_OFFSET] = 0
        self._page[_MODE] = _RUNNING

    def close(self) -> None:
        """Gives the page back; a server that still runs keeps its mapping and its time."""
        self._page.release()
        self._map.close()
        shutil.rmtree(self._path.parent, ignore_errors=True)

    def _shift(self, ns: int) -> None:
        self._page[_VALUE if self.frozen else _OFFSET] += ns


def _own_folder(prefix: str) -> Path:
    """A folder only this user can write, gone when this process ends."""
    folder, owner = Path(tempfile.mkdtemp(prefix=prefix)), os.getpid()
    # A forked child inherits the exit handlers, not the folder.
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder
