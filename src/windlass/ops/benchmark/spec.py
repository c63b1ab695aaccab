"""What the benchmark and its worker exchange: a spec for the worker, notes from its jobs."""

from __future__ import annotations

import struct

from msgspec import Struct

from windlass.app import AppConfig

APP = "windlass.ops.benchmark.tasks:app"
VARIABLE = "WINDLASS_BENCHING"  # an environment variable, not an argument: a URL may contain a password
# The number of the note; the time, by the clock that all processes share; the CPU time of the runner.
NOTE = struct.Struct("=qdd")


class BenchSpec(Struct, frozen=True):
    """The settings of the app, the queue, and the path of the socket for notes."""

    app: AppConfig
    queue: str
    notes: str
