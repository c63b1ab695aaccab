"""What the bench and its worker tell each other: an spec on the way there, notes on the way back."""

from __future__ import annotations

import struct

from msgspec import Struct

from windlass.app import AppConfig

APP = "windlass.ops.benchmark.tasks:app"
VARIABLE = "WINDLASS_BENCHING"  # in the environment, not among the arguments: a URL may hold a password
# Which note it is; the time, by a clock that all processes of a machine share; and the runner's CPU time.
NOTE = struct.Struct("=qdd")


class BenchSpec(Struct, frozen=True):
    """An app like that of the bench, the queue to work on, and the path of the socket for notes."""

    app: AppConfig
    queue: str
    notes: str
