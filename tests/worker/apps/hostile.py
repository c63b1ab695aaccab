"""Jobs that do not behave."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


# -- holding the GIL -----------------------------------------------------------------------------


def _hold_the_gil(seconds: float) -> None:
    """One call into C that lets nobody else run: a regular expression that goes back and forth.

    Each further letter doubles the time. How long a short one takes is measured by the processor's clock, for others
    may want the processor, too.
    """
    letters = 18
    took = min(_match(letters) for _ in range(3))
    while took < seconds:
        letters += 1
        took *= 2
    _match(letters)


def _match(letters: int) -> float:
    began = time.thread_time()
    re.match(r"(a+)+$", "a" * letters + "b")
    return time.thread_time() - began


@app.task(queue="gil")
async def loop_hold(seconds: float, job: Job = current()) -> None:
    note("start", job)
    _hold_the_gil(seconds)
    note("end", job)


@app.task(queue="gil")
def thread_hold(seconds: float, job: Job = current()) -> None:
    note("start", job)
    _hold_the_gil(seconds)
    note("end", job)


@app.task(queue="gil", run="process")
def process_hold(seconds: float, job: Job = current()) -> None:
    note("start", job)
    _hold_the_gil(seconds)
    note("end", job)


# -- not stopping --------------------------------------------------------------------------------


@app.task(queue="stubborn", timeout=0.3)
async def ignore_cancellation(job: Job = current()) -> None:
    note("start", job)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            note("ignored", job)


@app.task(queue="stubborn", timeout=0.3, max_failures=0)
async def ignore_it_once(job: Job = current()) -> None:
    await ignore_cancellation(job)


@app.task(queue="stubborn", timeout=0.3)
async def block_the_loop(job: Job = current()) -> None:
    note("start", job)
    time.sleep(30)  # noqa: ASYNC251


@app.task(queue="stubborn", timeout=0.3)
async def time_out(job: Job = current()) -> None:
    note("start", job)
    await asyncio.sleep(30)


@app.task(queue="calm")
async def loop_calm(seconds: float, job: Job = current()) -> None:
    note("start", job)
    await asyncio.sleep(seconds)
    note("end", job)


@app.task(queue="calm-threads")
def thread_calm(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds)
    note("end", job)


@app.task(queue="calm-processes", run="process")
def process_calm(seconds: float, job: Job = current()) -> None:
    note("start", job)
    time.sleep(seconds)
    note("end", job)


@app.task(queue="stubborn-processes", run="process", timeout=0.2, max_failures=0)
def ignore_sigterm(job: Job = current()) -> None:
    """Ignores the polite signal, and has a child of its own that left its session."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen(["setsid", "sleep", "999"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    note("start", job, grandchild=grandchild.pid)
    time.sleep(999)


# -- talking too much ----------------------------------------------------------------------------


def _flood(lines: int) -> None:
    for number in range(lines):
        print("x" * 500, number)
        print("y" * 500, number, file=sys.stderr)


@app.task(queue="floods")
async def loop_flood(lines: int, job: Job = current()) -> None:
    note("start", job)
    _flood(lines)
    note("end", job)


@app.task(queue="floods")
def thread_flood(lines: int, job: Job = current()) -> None:
    note("start", job)
    _flood(lines)
    note("end", job)


@app.task(queue="floods", run="process")
def process_flood(lines: int, job: Job = current()) -> None:
    note("start", job)
    _flood(lines)
    note("end", job)


# -- forking -------------------------------------------------------------------------------------


def _fork(job: Job, comes_back: bool) -> None:
    note("start", job)
    if os.fork() == 0:
        note("copy", job)
        if not comes_back:
            os._exit(0)
        return
    note("end", job)


@app.task(queue="forks")
async def loop_fork(comes_back: bool, job: Job = current()) -> None:
    _fork(job, comes_back)


@app.task(queue="forks")
def thread_fork(comes_back: bool, job: Job = current()) -> None:
    _fork(job, comes_back)


@app.task(queue="forks", run="process")
def process_fork(comes_back: bool, job: Job = current()) -> None:
    _fork(job, comes_back)


# -- poison --------------------------------------------------------------------------------------


@app.task(queue="processes", run="process", min_backoff=0)
def process_work(poison: bool, job: Job = current()) -> None:
    note("start", job)
    if poison:
        os.kill(os.getpid(), signal.SIGSEGV)
    note("end", job)


@app.task(queue="loops", min_backoff=0)
async def loop_work(poison: bool, job: Job = current()) -> None:
    note("start", job)
    await asyncio.sleep(0.02)
    if poison:
        os.kill(os.getpid(), signal.SIGSEGV)
    note("end", job)
