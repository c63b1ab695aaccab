"""One run of the benchmark: its steps, on a queue of its own. The run always purges that queue at the end."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, perf_counter, sleep
from types import TracebackType
from typing import Self

from msgspec import Struct

from windlass.app import Windlass
from windlass.errors import UnsupportedByLayout
from windlass.ops.benchmark import meter
from windlass.ops.benchmark.figure import Figure, figure
from windlass.ops.benchmark.meter import Span
from windlass.ops.benchmark.worker_process import Note, WorkerProcess
from windlass.tasks.envelope import write_envelope
from windlass.values.ids import random_id

BATCH = 1000  # jobs per call
CONCURRENT_CALLS = 100
LEASE_S = 60
PAYLOAD = write_envelope("nothing", b'{"n":1}')
BULK = [PAYLOAD] * BATCH
WORKER_START_TIMEOUT_S = 30.0  # for a slow machine; a worker usually starts in less than 1 s
NOTE_TIMEOUT_S = 10.0  # for one job of an idle worker
TIME_PARTS = 16  # the sum of the weights of all steps
# More load than a few idle workers cause: commands per second, share of a core, share of all cores.
BUSY_COMMANDS, BUSY_SHARE, BUSY_CORES = 200, 0.05, 0.25


class Options(Struct, frozen=True):
    """Limits: jobs per step, and seconds for all steps together, without the start of the worker."""

    jobs: int = 50_000
    seconds: float = 13.0


class BenchRun:
    """`with BenchRun(app, options) as run:` read `run.figures()` to its end."""

    def __init__(self, app: Windlass, options: Options) -> None:
        self._app = app
        self._options = options
        self.name = f"windlass-bench-{random_id()}"
        self._queue = app.queue(self.name)
        if self._queue.layout != "native":  # other layouts may keep no order, or keep finished jobs
            raise UnsupportedByLayout(
                f"bench measures the layout native, but all queues here have the layout {self._queue.layout!r}: "
                "add --layout native"
            )
        self._stop = threading.Event()
        self._worker_process = WorkerProcess(app.given, self.name, self._stop)

    def __enter__(self) -> Self:
        self._worker_process.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._worker_process.__exit__(kind, error, trace)
        finally:
            self._queue.purge()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End soon with KeyboardInterrupt, after the current call: its outcome would be unknown otherwise."""
        self._stop.set()

    def figures(self) -> Iterator[Figure]:
        """Run the steps. Yields the figure of each step when it ends."""
        for step in (
            self._round_trip,
            self._one_by_one,
            self._concurrently,
            self._in_bulk,
            self._lease_and_settle,
            self._drain,
            self._pick_up,
        ):
            measured = step()
            if self.is_stopped:
                raise KeyboardInterrupt
            yield measured

    def _bound(self, weight: int, jobs: int | None = None) -> Bound:
        """The limits of a step: its share of the time by its weight, and a number of jobs."""
        return Bound(
            self._options.jobs if jobs is None else jobs, self._options.seconds * weight / TIME_PARTS, self._stop
        )

    # -- without a worker ------------------------------------------------------------------------

    def _round_trip(self) -> Figure:
        """A call that costs the server almost nothing."""
        self._queue.counts()  # connects
        span = Span(self._app)
        times = _timed(self._queue.counts, self._bound(1, 2000))
        return figure("round trip", len(times), span.end(), times=times)

    def _one_by_one(self) -> Figure:
        self._queue.enqueue(PAYLOAD)
        span = Span(self._app)
        times = _timed(lambda: self._queue.enqueue(PAYLOAD), self._bound(2))
        return self._purged(figure("enqueue, one by one", len(times), span.end(), times=times))

    def _concurrently(self) -> Figure:
        return self._purged(asyncio.run(self._await_many()))

    async def _await_many(self) -> Figure:
        async def produce(bound: Bound) -> None:
            while bound.take(1):
                await self._queue.aenqueue(PAYLOAD)

        async def all_produce(bound: Bound) -> int:
            await asyncio.gather(*(produce(bound) for _ in range(CONCURRENT_CALLS)))
            return bound.taken

        await all_produce(self._bound(1, CONCURRENT_CALLS))  # connects
        span = Span(self._app)
        done = await all_produce(self._bound(2))
        return figure(f"enqueue, {CONCURRENT_CALLS} awaits", done, span.end())

    def _in_bulk(self) -> Figure:
        span = Span(self._app)
        done = self._fill(self._bound(2))
        return self._purged(figure(f"enqueue, {BATCH} a call", done, span.end()))

    def _lease_and_settle(self) -> Figure:
        left = self._fill(self._bound(1))
        bound = self._bound(2)
        done = 0
        span = Span(self._app)
        while done < left and bound.take(1):
            leases = self._queue.lease_many(BATCH, LEASE_S)
            done += sum(self._queue.complete_many(leases))
        return self._purged(figure(f"lease and settle, {BATCH} a call", done, span.end()))

    def _fill(self, bound: Bound, batch: Sequence[bytes] = BULK) -> int:
        """Enqueue batches of jobs until the bound is reached. Returns the number of jobs."""
        while size := bound.take(len(batch)):
            self._queue.enqueue_many(batch[:size])
        return bound.taken

    def _purged(self, figure: Figure) -> Figure:
        self._queue.purge()
        return figure

    # -- with a worker ---------------------------------------------------------------------------

    def _drain(self) -> Figure:
        """The jobs wait before the worker starts. Notes among them report its progress without a server call."""
        stretch = min(BATCH, self._options.jobs // 10)
        stretches = self._fill(self._bound(1), [_note(0)] + [PAYLOAD] * (stretch - 1)) // stretch
        self._queue.enqueue(_note(0))  # marks the end of the last stretch
        span = Span(self._app)
        self._worker_process.start()
        first = last = self._worker_process.next_note(WORKER_START_TIMEOUT_S)
        bound = self._bound(3, stretches)
        while bound.take(1):
            last = self._worker_process.next_note(NOTE_TIMEOUT_S)
        # Before the first note, the server was almost idle, so its CPU time needs no correction.
        spent = span.end(program_cpu=last.cpu - first.cpu, seconds=last.at - first.at)
        return self._purged(figure("drain by a worker", bound.taken * stretch, spent, program="worker"))

    def _pick_up(self) -> Figure:
        """The time from the enqueue to the first line of the job, with an idle worker."""
        first = last = self._await_note(1)
        bound = self._bound(2)
        times: list[float] = []
        span = Span(self._app)
        while bound.take(1):
            sleep(random.uniform(0.005, 0.015))  # until the worker has settled the last job and is idle again
            began = monotonic()
            last = self._await_note(1 + bound.taken)
            times.append(last.at - began)
        spent = span.end(program_cpu=last.cpu - first.cpu)
        return figure("pick-up by an idle worker", len(times), spent, program="worker", times=times, full_speed=False)

    def _await_note(self, n: int) -> Note:
        """Enqueue a note job, and wait for its note. Skips late notes of the drain."""
        self._queue.enqueue(_note(n))
        while (note := self._worker_process.next_note(NOTE_TIMEOUT_S)).n != n:
            pass
        return note

    # -- the server ------------------------------------------------------------------------------

    def servers(self) -> dict[str, str | None]:
        """The product and version of each server, by address. None if the server does not report it."""
        return {address: use.version if use else None for address, use in meter.server_use(self._app).items()}

    def warnings(self) -> list[str]:
        """Load of other programs, which distorts the figures."""
        others = meter.other_load(self._app)
        found: list[str] = []
        if (others.commands or 0) > BUSY_COMMANDS or (others.server_share or 0) > BUSY_SHARE:
            found.append(
                f"the server has other work ({others.commands:,.0f} commands/s, {others.server_share:.0%} of a core), "
                "which distorts the figures and which the bench slows down: measure when the server is idle"
            )
        if others.cores is not None and others.cores > BUSY_CORES * (os.cpu_count() or 1):
            found.append(
                f"{others.cores:.1f} of the {os.cpu_count()} cores of this machine have other work, which distorts "
                "the figures: measure when the machine is idle"
            )
        return found


class Bound:
    """A limit of jobs and of seconds from now. The first `take` always succeeds."""

    def __init__(self, jobs: int, seconds: float, stop: threading.Event) -> None:
        self._left = jobs
        self._until = monotonic() + seconds
        self._stop = stop
        self.taken = 0

    def take(self, most: int) -> int:
        """Take up to `most` jobs from the limit. Returns how many; 0 when the limit is reached."""
        is_over = self.taken > 0 and (monotonic() >= self._until or self._stop.is_set())
        size = 0 if is_over else min(most, self._left)
        self._left -= size
        self.taken += size
        return size


def _note(n: int) -> bytes:
    return write_envelope("note", b'{"n":%d}' % n)


def _timed(call: Callable[[], object], bound: Bound) -> list[float]:
    """The time of each call, in seconds."""
    times: list[float] = []
    while bound.take(1):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return times
