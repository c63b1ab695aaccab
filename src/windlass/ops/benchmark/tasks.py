"""The app of the bench's worker: a job that does nothing, and one that tells when it ran."""

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
    """What is measured is all that is around it."""


@app.task(queue=spec.queue)
async def note(n: int) -> None:
    """Tell the bench the time, and how much CPU time this process has used."""
    at = time.monotonic()  # first: the rest takes time
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
        notes.sendto(NOTE.pack(n, at, time.process_time()), spec.notes)
