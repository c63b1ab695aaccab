"""The event log of a simulated run in the format of real processes (chaos/log.py), for their checker.

It uses the taps of a real run, with virtual time and one file per simulated program. The simulation's book knows
everything, the checker only what processes received; the checker must not report a violation that the book does not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

import chaos.tap as tap
from chaos.log import Began, Ended, Fault, Healed, Inspected, Left, Record, digest
from chaos.simulation.book import Book
from chaos.simulation.jobs import name_of
from chaos.simulation.world import BASE_NS, Program, World
from windlass.storage.native.layout import NativeLayout
from windlass.transport.session import Session

_LENGTH = struct.Struct("<I")
_TAPPED = ("enqueue", "turn", "extend", "beat", "progress", "cancel", "forward")
_DRIVER = 1

_encode = msgspec.msgpack.Encoder().encode


class Notes:
    """A folder of log files; each program writes into its own."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._calls: dict[str, int] = {}
        self._pids: dict[str, int] = {}

    # -- the interface of the taps' pen --------------------------------------------------------------

    def next_call(self) -> int:
        """A call number of the current program."""
        name = self._world.current.name
        self._calls[name] = self._calls.get(name, 0) + 1
        return self._calls[name]

    def write(self, record: Record, holder: str = "") -> None:
        """Write a record of the current program."""
        name = self._world.current.name
        role = "producer" if name.startswith("producer") else "runner"
        self._put(name, role, holder, record)

    # -- records of the driver ---------------------------------------------------------------------

    def fault(self, name: str, programs: list[Program] | None, seconds: float | None = None) -> None:
        """Log a fault on these programs, or on the server; for some seconds, or momentary."""
        pids = (0,) if programs is None else tuple(self.pid(program.name) for program in programs)
        self._driver(Fault(self._t, name, True, pids))
        if seconds is not None:
            self._world.after(seconds, lambda: self._driver(Fault(self._t, name, False, pids)))

    def weather(self, begins: bool) -> None:
        """Log that the network turns bad or good for all programs."""
        self._driver(Fault(self._t, "bad network", begins))

    def ended(self, program: Program, how: str) -> None:
        """Log the end of a program."""
        self._driver(Ended(self._t, self.pid(program.name), how))

    def healed(self) -> None:
        """Log that all faults have ended."""
        self._driver(Healed(self._t))

    def left(self, book: Book, drained_after: float) -> None:
        """Log the jobs left on the server at the end."""
        for state, jobs in (("dead", book.dead), ("broken", book.broken)):
            for job in jobs.values():
                check = digest(name_of(job.data))
                self._driver(Left(self._t, book.queue, job.id, state, job.failures, job.stalls, job.reason, check))
        counts = {"dead": len(book.dead), "broken": len(book.broken)}
        self._driver(Inspected(self._t, book.queue, True, drained_after, 0, 0, counts))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def pid(self, program: str) -> int:
        """A number for each program."""
        return self._pids.setdefault(program, _DRIVER + 1 + len(self._pids))

    @property
    def _t(self) -> int:
        return now_ns(self._world)

    def _driver(self, record: Record) -> None:
        self._put("driver", "driver", "", record)

    def _put(self, name: str, role: str, holder: str, record: Record) -> None:
        file = self._files.get(name)
        if file is None:
            pid = _DRIVER if name == "driver" else self.pid(name)
            file = self._files[name] = (self._folder / f"{role}-{pid}-{name}.log").open("wb")
            _append(file, Began(self._t, pid, role, holder, (BASE_NS + self._world.now) // 1_000_000))
        _append(file, record)


def now_ns(world: World) -> int:
    """The time of all records: it never goes back, and is never 0."""
    return world.now + 10**9


def _append(file: BinaryIO, record: Record) -> None:
    body = _encode(record)
    file.write(_LENGTH.pack(len(body)) + body)


@contextmanager
def noted(world: World, notes: Notes | None) -> Iterator[None]:
    """Log all requests and answers of the programs for the length of the block."""
    if notes is None:
        yield
        return
    module: Any = tap
    layout: dict[str, Any] = {name: getattr(NativeLayout, name) for name in _TAPPED}
    carry_out = Session._execute
    before = (module._pen, module.monotonic_ns, module.SINGLETON)
    module._pen, module.monotonic_ns = notes, lambda: now_ns(world)
    module._wrap_layout()
    module._wrap_session()
    try:
        yield
    finally:
        module._pen, module.monotonic_ns, module.SINGLETON = before
        setattr(Session, "_execute", carry_out)  # noqa: B010
        for name, original in layout.items():
            setattr(NativeLayout, name, original)
        notes.close()
