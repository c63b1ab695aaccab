"""The jobs: they run for a while on each executor, and log a pulse for as long as they really run.

Starts and ends alone cannot show that two attempts at a job overlapped, because a killed attempt logs no end. So each
attempt appends its fence and the time to a file of its process, every few milliseconds. A job that was paused reports
progress as soon as it notices: if its lease is stale, the report must be refused.
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
PULSE_S = 0.02  # seconds
LONG_GAP_S = 0.5  # seconds without a pulse after which a job assumes that it was paused
CALL_TIMEOUT_S = 2.0  # seconds that a call may take: longer than a lease, short enough for a test
RECORD = struct.Struct("<QQ")  # fence, CLOCK_MONOTONIC in nanoseconds
MAX_STALLS = 1000

app = Windlass(call_timeout=CALL_TIMEOUT_S, retry_for=CALL_TIMEOUT_S)


class _Pulse:
    """The pulse file of this process; a forked process opens another."""

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
    """Yields at each pulse whether the job was paused since the last one.

    A `by_clock` job ends as soon as it is resumed, and settles. Any other job still has its remaining work to do, and
    runs on until it is stopped.
    """
    began = last = time.monotonic()
    done = 0
    while (last - began if by_clock else done * PULSE_S) < seconds:
        _pulse.write(job.fence)
        yield time.monotonic() - last > LONG_GAP_S
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


@app.task(queue=LOOP, max_stalls=MAX_STALLS)
async def on_loop(seconds: float, by_clock: bool, job: Job = current()) -> None:
    """Runs on the event loop of the runner."""
    with _noted(job):
        for held_up in _beats(job, seconds, by_clock):
            if held_up:
                await job.aprogress(0.5)
            await asyncio.sleep(PULSE_S)


@app.task(queue=THREAD, max_stalls=MAX_STALLS)
def in_thread(seconds: float, by_clock: bool, job: Job = current()) -> None:
    """Runs in a thread of the runner."""
    with _noted(job):
        for held_up in _beats(job, seconds, by_clock):
            if held_up:
                job.progress(0.5)
            time.sleep(PULSE_S)


@app.task(queue=PROCESS, run="process", max_stalls=MAX_STALLS)
def in_process(seconds: float, by_clock: bool, job: Job = current()) -> None:
    """Runs in a child process."""
    with _noted(job):
        for held_up in _beats(job, seconds, by_clock):
            if held_up:
                job.progress(0.5)
            time.sleep(PULSE_S)


def call(queue: str, seconds: float, by_clock: bool) -> TaskCall:
    """A job for one of the queues."""
    if queue == LOOP:
        return on_loop.call(seconds, by_clock)
    return (in_thread if queue == THREAD else in_process).call(seconds, by_clock)
