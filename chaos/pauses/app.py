"""The jobs: they run for a while, in each way that there is, and leave a pulse for as long as they really do.

Whether two attempts at a job overlapped cannot be told from beginnings and ends alone, for one that is killed writes no
end. So each attempt appends its fence and the time to a file of its process, every few milliseconds. A job that finds
that it was not let run for a while tells its progress at once: were it stale, that must be refused.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos import tap
from windlass import Job, TaskCall, Windlass, current

tap.install("worker")

LOOP, THREAD, PROCESS = QUEUES = ("loops", "threads", "processes")
PULSE = 0.02  # seconds
LONG_GAP = 0.5  # seconds without a pulse after which a job must think that it was held up
PATIENCE = 2.0  # seconds for a call: longer than a lease here, and no longer than a test likes to wait
RECORD = struct.Struct("<QQ")  # fence, CLOCK_MONOTONIC in nanoseconds
MOST_STALLS = 1000

app = Windlass(call_timeout=PATIENCE, retry_for=PATIENCE)


class _Pulse:
    """The file of this process; another one after a fork."""

    def __init__(self) -> None:
        self._pid = 0
        self._fd = -1

    def write(self, fence: int) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            path = Path(os.environ[tap.FOLDER]) / f"{self._pid}-{time.monotonic_ns()}.pulse"
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._fd, RECORD.pack(fence, time.monotonic_ns()))


_pulse = _Pulse()


def _beats(job: Job, seconds: float, by_clock: bool) -> Iterator[bool]:
    """One for each pulse: whether the job was held up since the last one.

    A job that goes by the clock is at its end as soon as it is woken, and settles. One that does not has all its work
    still before it, and goes on until it is stopped.
    """
    began = last = time.monotonic()
    done = 0
    while (last - began if by_clock else done * PULSE) < seconds:
        _pulse.write(job.fence)
        yield time.monotonic() - last > LONG_GAP
        done += 1
        last = time.monotonic()
    _pulse.write(job.fence)


@contextmanager
def _noted(job: Job) -> Iterator[None]:
    tap.note_started(job)
    how = "stopped"
    try:
        yield
        how = "ok"
    finally:
        tap.note_finished(job, how)


@app.task(queue=LOOP, max_stalls=MOST_STALLS)
async def on_loop(seconds: float, by_clock: bool, job: Job = current()) -> None:
    """On the event loop of the runner."""
    with _noted(job):
        for held_up in _beats(job, seconds, by_clock):
            if held_up:
                await job.aprogress(0.5)
            await asyncio.sleep(PULSE)


@app.task(queue=THREAD, max_stalls=MOST_STALLS)
def in_thread(seconds: float, by_clock: bool, job: Job = current()) -> None:
    """In a thread of the runner."""
    with _noted(job):
        for held_up in _beats(job, seconds, by_clock):
            if held_up:
                job.progress(0.5)
            time.sleep(PULSE)


@app.task(queue=PROCESS, run="process", max_stalls=MOST_STALLS)
def in_process(seconds: float, by_clock: bool, job: Job = current()) -> None:
    """In a child."""
    with _noted(job):
        for held_up in _beats(job, seconds, by_clock):
            if held_up:
                job.progress(0.5)
            time.sleep(PULSE)


def call(queue: str, seconds: float, by_clock: bool) -> TaskCall:
    """A job for one of the queues."""
    if queue == LOOP:
        return on_loop.call(seconds, by_clock)
    return (in_thread if queue == THREAD else in_process).call(seconds, by_clock)
