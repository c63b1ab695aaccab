"""What a fault is: something goes wrong at `begin` and is mended at `end`; in between, whatever is tested has to cope.

A fault touches only processes, connections, folders and interfaces that the run itself made. `available` says why one
cannot be had on this machine, so that a run can name what it left out instead of passing it over.
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
"""What is worth a place in the log of a run: pids, sizes, seconds."""


class Fault(ABC):
    """One thing that can go wrong. As a context manager it goes wrong for the length of the block."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it does, in one sentence."""

    @classmethod
    def available(cls) -> str | None:
        """Why it cannot be had here; None if it can."""
        return None

    @abstractmethod
    def begin(self) -> Detail:
        """Make it go wrong; what was done, for the log."""

    def end(self) -> Detail:
        """Mend it. Harmless when nothing is wrong, and when what was hit is gone."""
        return {}

    def last(self, seconds: float) -> None:
        """Begin, stay so for a while, and end."""
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
    """Something that is done again and again until the end, in a thread of its own."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.times = 0
        """How often it was done."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def once(self) -> None:
        """Do it. What fails is tried again with the next turn: other faults may be under way."""

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
            except Exception:  # the server is down, or full, or silent: that is another fault's doing
                pass
            if self._ending.wait(self.every):
                return


# -- what a machine must have ------------------------------------------------------------------------


def lacking(*tools: str, root: bool = False) -> str | None:
    """What is missing of these programs and rights, in words; None when all is there."""
    if root and os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed" if missing else None


@functools.cache
def refused(*command: str) -> str | None:
    """Why a harmless trial of what a fault needs fails here; containers may forbid what root usually may."""
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if tried.returncode == 0:
        return None
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return f"{command[0]} is not allowed here: {said}"


def first(*reasons: Callable[[], str | None]) -> str | None:
    """The first reason that there is; later ones are not asked for."""
    return next((said for reason in reasons if (said := reason()) is not None), None)
