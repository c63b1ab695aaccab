"""The app of the benchmark's worker: a job that does nothing, and a job that sends a note."""

from __future__ import annotations

import os
import socket
import time

import msgspec

from windlass.app import Windlass
from windlass.ops.benchmark.spec import NOTE, VARIABLE, BenchSpec

spec = msgspec.json.decode(os.environ[VARIABLE], type=BenchSpec)
app = Windlass(**msgspec.structs.asdict(spec.app))


@app.task(queue=spec.queue)
async def nothing(n: int) -> None:
    """Empty, so that the benchmark measures only the overhead of a job."""


@app.task(queue=spec.queue)
async def note(n: int) -> None:
    """Send the time and the CPU time of this process to the benchmark."""
    at = time.monotonic()  # first, because the rest takes time
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
        notes.sendto(NOTE.pack(n, at, time.process_time()), spec.notes)
