"""Shared code of the drivers: orders come from the command line and the environment, reports go to a named pipe.

A driver runs in its peer's own environment, so this uses only the standard library. Reports do not go to stdout: some
peers log there, and some run their jobs in child processes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

URL = os.environ.get("BENCH_URL", "")
POOL_URL = (
    f"{URL}?max_connections=2000"  # for peers that keep redis-py's default of 100, and fail with 100 concurrent jobs
)
NAP = 0.01
STEP = 0.1  # seconds between two reports of a worker
AWAITS = 100
WARM_UP = AWAITS  # opens a connection per await
BATCH = 5000  # jobs per bulk call; the best size from 500 to 10,000 for ArdiQ, the closest peer


def report(**what: Any) -> None:
    """Send one line to the benchmark, with one write."""
    pipe = os.open(os.environ["BENCH_REPORT"], os.O_WRONLY)
    try:
        os.write(pipe, json.dumps(what).encode() + b"\n")
    finally:
        os.close(pipe)


# -- counters that jobs call ---------------------------------------------------------------------


def _moment() -> dict[str, float]:
    return {"at": time.monotonic(), "cpu": time.process_time()}


class _Steps:
    """Reports the count from time to time, so that the benchmark need not wait for all jobs.

    Not at once: the thread or process with the first job may not have reported it yet.
    """

    def __init__(self) -> None:
        self._next: float | None = None

    def reached(self, count: int, *, last: bool) -> None:
        now = time.monotonic()
        self._next = self._next or now + STEP
        if now >= self._next or last:
            self._next = now + STEP
            report(event="step", count=count, last=last, **_moment())


class _Count:
    """Counts the jobs of this process, across threads."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._numbers = itertools.count(1)  # its next() is atomic
        self._beginnings = itertools.count()
        self._has_begun = False
        self._steps = _Steps()

    def began(self) -> None:
        """A job begins. Only for jobs that take time; others use `handled` alone."""
        if not self._has_begun and next(self._beginnings) == 0:
            report(event="first", **_moment())
            self._has_begun = True

    def handled(self, _: int) -> None:
        """A job is done."""
        count = next(self._numbers)
        if count == 1:
            self.began()
        if count & 15 == 0 or count == self._jobs:
            self._steps.reached(count, last=count == self._jobs)


class _SharedCount:
    """Counts the jobs of many processes: each appends a byte to one file, and the file position is the count."""

    def __init__(self, jobs: int, path: str) -> None:
        self._jobs = jobs
        self._path = path
        self._file: tuple[int, int] = (0, -1)
        self._steps = _Steps()

    def began(self) -> None:
        """Nothing to do: the first finished job counts as the beginning."""

    def handled(self, _: int) -> None:
        """A job is done."""
        pid, file = self._file
        if pid != os.getpid():  # a file opened before a fork shares its position
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._file = (os.getpid(), file)
        os.write(file, b".")
        count = os.lseek(file, 0, os.SEEK_CUR)
        if count == 1:
            report(event="first", **_moment())
        elif count & 15 == 0 or count == self._jobs:
            self._steps.reached(count, last=count == self._jobs)


class _Each:
    """Reports when each job began."""

    def began(self) -> None:
        """Nothing to do: such jobs take no time."""

    def handled(self, number: int) -> None:
        """A job begins."""
        now = time.monotonic()
        report(event="picked", number=number, at=now)


def _counting() -> _Count | _SharedCount | _Each:
    jobs = int(os.environ.get("BENCH_JOBS", "0"))
    path = os.environ.get("BENCH_SHARED")
    if not jobs:
        return _Each()
    return _SharedCount(jobs, path) if path else _Count(jobs)


_counter = _counting()
began: Callable[[], None] = _counter.began
handled: Callable[[int], None] = _counter.handled


# -- producers -----------------------------------------------------------------------------------


class Numbers:
    """The numbers of the jobs to enqueue, until all are used or time is up; with a pause, also the time of each."""

    def __init__(self, jobs: int | None, seconds: float | None, pause: float) -> None:
        self._most = jobs if jobs is not None else sys.maxsize
        self._until = time.monotonic() + seconds if seconds is not None else float("inf")
        self._pause = pause
        self.given = 0
        self.sent: list[float] = []

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._pause and self.given:
            time.sleep(self._pause)
        now = time.monotonic()
        if self.given >= self._most or now >= self._until:
            raise StopIteration
        if self._pause:
            self.sent.append(now)
        self.given += 1
        return self.given - 1

    def batches(self, size: int = BATCH) -> Iterator[range]:
        """The same numbers in batches."""
        while self.given < self._most and time.monotonic() < self._until:
            first = self.given
            self.given = min(first + size, self._most)
            yield range(first, self.given)


class Driver:
    """One peer. A mode that it lacks is not implemented here, and is missing from its `modes`."""

    task = "noop"

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """Wraps all awaited modes."""
        yield

    def blocking(self, numbers: Numbers) -> None:
        """One after the other, each answered before the next."""
        raise NotImplementedError

    async def awaited(self, numbers: Numbers) -> None:
        """The same, awaited."""
        raise NotImplementedError

    def bulk(self, numbers: Numbers) -> Any:
        """Many at a time; a coroutine if the peer's call is one."""
        raise NotImplementedError

    def work(self, concurrency: int) -> None:
        """Run a worker until it is killed."""
        raise NotImplementedError

    async def idle(self, workers: int) -> None:
        """Run `workers` idle workers in one process; report `ready` when all are up."""
        raise NotImplementedError


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, if the peer's environment has it."""
    try:
        import uvloop  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(coroutine: Any) -> None:
    """`asyncio.run` on the fastest available loop."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(coroutine)


def main(driver: Driver) -> None:
    """Execute the orders: `enqueue` a list of orders in turn, `work`, or `idle`."""
    role, orders = sys.argv[1], json.loads(sys.argv[2])
    if role == "work":
        driver.task = orders["task"]
        driver.work(orders["concurrency"])
        return
    if role == "idle":
        run(driver.idle(orders["workers"]))
        return
    for order in orders:
        driver.task = order["task"]
        if asyncio.iscoroutinefunction(_call(driver, order)):
            run(_aproduce(driver, order))
        else:
            _produce(driver, order)


def _call(driver: Driver, order: dict[str, Any]) -> Callable[[Numbers], Any]:
    call: Callable[[Numbers], Any] = getattr(driver, "awaited" if order["mode"] == "concurrent" else order["mode"])
    return call


def _numbers(order: dict[str, Any]) -> Numbers:
    return Numbers(order["jobs"], order["seconds"], order["pause"])


def _wait_for_go() -> None:
    report(event="ready")
    sys.stdin.readline()


def _report_done(numbers: Numbers, before: dict[str, float]) -> None:
    now = _moment()
    report(
        event="done",
        jobs=numbers.given,
        seconds=now["at"] - before["at"],
        cpu=now["cpu"] - before["cpu"],
        sent=numbers.sent,
    )
    sys.stdin.readline()  # stays connected until the benchmark has measured the server


def _produce(driver: Driver, order: dict[str, Any]) -> None:
    call = _call(driver, order)
    call(Numbers(WARM_UP, None, 0))
    _wait_for_go()
    before, numbers = _moment(), _numbers(order)
    call(numbers)
    _report_done(numbers, before)


async def _aproduce(driver: Driver, order: dict[str, Any]) -> None:
    call = _call(driver, order)
    at_once = AWAITS if order["mode"] == "concurrent" else 1
    async with driver.session():
        warm_up = Numbers(WARM_UP, None, 0)
        await asyncio.gather(*(call(warm_up) for _ in range(at_once)))
        _wait_for_go()
        before, numbers = _moment(), _numbers(order)
        await asyncio.gather(*(call(numbers) for _ in range(at_once)))
        _report_done(numbers, before)
