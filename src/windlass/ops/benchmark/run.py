"""One run of the bench: step after step on a queue of its own, which is purged in the end however the run ends."""

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

BATCH = 1000  # jobs in one call
AWAITS = 100  # at the same time
LEASE = 60  # seconds
PAYLOAD = write_envelope("nothing", b'{"n":1}')
BULK = [PAYLOAD] * BATCH
WORKER_START = 30.0  # seconds within which a worker must have begun
NOTE_WAIT = 10.0  # seconds for one job of an idle worker
PARTS = 16  # of the time, over which the steps spread
# More than this is done by others than a few idle workers do: commands a second, parts of a core, part of all cores.
BUSY_COMMANDS, BUSY_SHARE, BUSY_CORES = 200, 0.05, 0.25


class Options(Struct, frozen=True):
    """How much is done: jobs in any one step, and seconds for all steps together, without the worker's start."""

    jobs: int = 50_000
    seconds: float = 13.0


class BenchRun:
    """`with BenchRun(app, options) as run:` read `run.figures()` to its end."""

    def __init__(self, app: Windlass, options: Options) -> None:
        self._app = app
        self._options = options
        self.name = f"windlass-bench-{random_id()}"
        self._queue = app.queue(self.name)
        if self._queue.layout != "native":  # of others, some keep no order, and some keep what is done
            raise UnsupportedByLayout(
                f"bench measures the native layout, and here all queues have {self._queue.layout!r}: "
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
        """Whether it was told to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End soon, with KeyboardInterrupt. No call is cut short: the queue would have to remember it for a while."""
        self._stop.set()

    def figures(self) -> Iterator[Figure]:
        """Each step's figure, as soon as it is there."""
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
        """The share of a step: so many parts of the time, and so many jobs at most."""
        return Bound(self._options.jobs if jobs is None else jobs, self._options.seconds * weight / PARTS, self._stop)

    # -- without a worker ------------------------------------------------------------------------

    def _round_trip(self) -> Figure:
        """A call that reads some numbers: next to nothing for the server."""
        self._queue.counts()  # connects
        span = Span(self._app)
        times = _timed(self._queue.counts, self._bound(1, 2000))
        return figure("round trip", len(times), span.end(), times=times)

    def _one_by_one(self) -> Figure:
        self._queue.enqueue(PAYLOAD)
        span = Span(self._app)
        times = _timed(lambda: self._queue.enqueue(PAYLOAD), self._bound(2))
        return self._emptied(figure("enqueue, one by one", len(times), span.end(), times=times))

    def _concurrently(self) -> Figure:
        return self._emptied(asyncio.run(self._await_many()))

    async def _await_many(self) -> Figure:
        async def produce(bound: Bound) -> None:
            while bound.take(1):
                await self._queue.aenqueue(PAYLOAD)

        async def all_produce(bound: Bound) -> int:
            await asyncio.gather(*(produce(bound) for _ in range(AWAITS)))
            return bound.taken

        await all_produce(self._bound(1, AWAITS))  # connects
        span = Span(self._app)
        done = await all_produce(self._bound(2))
        return figure(f"enqueue, {AWAITS} awaits", done, span.end())

    def _in_bulk(self) -> Figure:
        span = Span(self._app)
        done = self._fill(self._bound(2))
        return self._emptied(figure(f"enqueue, {BATCH} a call", done, span.end()))

    def _lease_and_settle(self) -> Figure:
        left = self._fill(self._bound(1))
        bound = self._bound(2)
        done = 0
        span = Span(self._app)
        while done < left and bound.take(1):
            leases = self._queue.lease_many(BATCH, LEASE)
            done += sum(self._queue.complete_many(leases))
        return self._emptied(figure(f"lease and settle, {BATCH} a call", done, span.end()))

    def _fill(self, bound: Bound, batch: Sequence[bytes] = BULK) -> int:
        """Put batches of jobs on the queue until the bound is reached; how many jobs."""
        while size := bound.take(len(batch)):
            self._queue.enqueue_many(batch[:size])
        return bound.taken

    def _emptied(self, figure: Figure) -> Figure:
        self._queue.purge()
        return figure

    # -- with a worker ---------------------------------------------------------------------------

    def _drain(self) -> Figure:
        """Jobs wait when the worker starts. Notes among them tell how far it is: no call of ours disturbs it."""
        stretch = min(BATCH, self._options.jobs // 10)
        stretches = self._fill(self._bound(1), [_note(0)] + [PAYLOAD] * (stretch - 1)) // stretch
        self._queue.enqueue(_note(0))  # the end of the last
        span = Span(self._app)
        self._worker_process.start()
        first = last = self._worker_process.hear(WORKER_START)
        bound = self._bound(3, stretches)
        while bound.take(1):
            last = self._worker_process.hear(NOTE_WAIT)
        # Before the first note the server had next to nothing to do.
        spent = span.end(program_cpu=last.cpu - first.cpu, seconds=last.at - first.at)
        return self._emptied(figure("drain by a worker", bound.taken * stretch, spent, program="worker"))

    def _pick_up(self) -> Figure:
        """From before the enqueue to the first line of the job, in a worker that has nothing to do."""
        first = last = self._await_note(1)
        bound = self._bound(2)
        times: list[float] = []
        span = Span(self._app)
        while bound.take(1):
            sleep(random.uniform(0.005, 0.015))  # until the worker has settled the last one and waits again
            began = monotonic()
            last = self._await_note(1 + bound.taken)
            times.append(last.at - began)
        spent = span.end(program_cpu=last.cpu - first.cpu)
        return figure("pick-up by an idle worker", len(times), spent, program="worker", times=times, hurried=False)

    def _await_note(self, n: int) -> Note:
        """Enqueue a job that tells of itself, and hear it. Others may come from a drain that was not waited for."""
        self._queue.enqueue(_note(n))
        while (note := self._worker_process.hear(NOTE_WAIT)).n != n:
            pass
        return note

    # -- what else is to be told -----------------------------------------------------------------

    def servers(self) -> dict[str, str | None]:
        """Make and version of each server, as far as it tells."""
        return {address: use.version if use else None for address, use in meter.look(self._app).items()}

    def warnings(self) -> list[str]:
        """What would spoil the figures."""
        others = meter.watch_others(self._app)
        found: list[str] = []
        if (others.commands or 0) > BUSY_COMMANDS or (others.server_share or 0) > BUSY_SHARE:
            found.append(
                f"the server has other work ({others.commands:,.0f} commands/s, {others.server_share:.0%} of a core), "
                "which the bench slows down, and the figures mean little: measure when it is quiet"
            )
        if others.cores is not None and others.cores > BUSY_CORES * (os.cpu_count() or 1):
            found.append(
                f"{others.cores:.1f} of the {os.cpu_count()} cores of this machine are busy with other work, and the "
                "figures mean little: measure when it is quiet"
            )
        return found


class Bound:
    """So many jobs, and so many seconds from now, whichever comes first; but once it can be taken from."""

    def __init__(self, jobs: int, seconds: float, stop: threading.Event) -> None:
        self._left = jobs
        self._until = monotonic() + seconds
        self._stop = stop
        self.taken = 0

    def take(self, most: int) -> int:
        """How many of these may still be done; they count as done."""
        is_over = self.taken > 0 and (monotonic() >= self._until or self._stop.is_set())
        size = 0 if is_over else min(most, self._left)
        self._left -= size
        self.taken += size
        return size


def _note(n: int) -> bytes:
    return write_envelope("note", b'{"n":%d}' % n)


def _timed(call: Callable[[], object], bound: Bound) -> list[float]:
    """How long each call took, one after the other."""
    times: list[float] = []
    while bound.take(1):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return times
