"""The base class of faults: `begin` breaks something, `end` repairs it; in between the system under test must cope.

A fault touches only processes, connections, folders and interfaces that the run itself created. `available` tells why a
fault is impossible on this machine, so that a run can report the faults it skipped.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

Detail = dict[str, Any]
"""Details for the log of a run: pids, sizes, seconds."""


class Fault(ABC):
    """A fault. As a context manager it lasts for the block."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """The effect, in one sentence."""

    @classmethod
    def available(cls) -> str | None:
        """Why it is not available here; None if it is."""
        return None

    @abstractmethod
    def begin(self) -> Detail:
        """Start the fault; returns details for the log."""

    def end(self) -> Detail:
        """Repair the damage. Harmless if nothing is broken, or if the target is gone."""
        return {}

    def last(self, seconds: float) -> None:
        """Begin, wait, and end."""
        with self:
            time.sleep(seconds)

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Repeated(Fault):
    """An action repeated until the end, in a thread of its own."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.times = 0
        """How often the action was performed."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def once(self) -> None:
        """Perform the action. If it fails, the next turn tries again: other faults may be active."""

    def begin(self) -> Detail:
        self._ending.clear()
        self._thread = threading.Thread(target=self._repeat, name=self.name, daemon=True)
        self._thread.start()
        return {"every": self.every}

    def end(self) -> Detail:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(30.0)
        return {"times": self.times}

    def _repeat(self) -> None:
        while True:
            try:
                self.once()
                self.times += 1
            except Exception:  # another fault may have stopped or filled the server
                pass
            if self._ending.wait(self.every):
                return


# -- requirements of a machine -----------------------------------------------------------------------


def lacking(*tools: str, root: bool = False) -> str | None:
    """The missing programs and rights, in words; None if nothing is missing."""
    if root and os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed" if missing else None


@functools.cache
def refused(*command: str) -> str | None:
    """Why a harmless trial command fails here; containers may forbid operations that root usually can perform."""
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if tried.returncode == 0:
        return None
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return f"{command[0]} is not allowed here: {said}"


def first(*reasons: Callable[[], str | None]) -> str | None:
    """The first reason found; later checks are not run."""
    return next((said for reason in reasons if (said := reason()) is not None), None)
