"""One run of the demo: a server, the shop and its orders, a worker, three kills, and the account at the end.

A run is a context manager: on exit it stops all that it started.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec

from windlass.app import Windlass
from windlass.embedded import EmbeddedServer
from windlass.errors import Undecodable, WindlassError
from windlass.ops.demo import kills, ledger
from windlass.ops.demo.account import CRASHES, ServerView, build_account
from windlass.ops.demo.frame import PLACES, WATCHERS, Event, Frame, ProcessView
from windlass.ops.demo.kills import Kill, Killer
from windlass.ops.demo.ledger import JobKind
from windlass.ops.demo.result import Killed, Result, Timing
from windlass.ops.demo.shop_loader import FILE, MEDIA, ORDERS, SCHEDULE, Shop, shop_folder
from windlass.ops.demo.tally import STEPS, Tally
from windlass.ops.demo.worker_process import LEASE_S, WorkerProcess
from windlass.tasks.envelope import read_envelope
from windlass.transport import Endpoint
from windlass.values.job import JobRecord, State

READ_INTERVAL_S = 0.01  # between two reads of the ledger
FRAME_INTERVAL_S = 0.1
PROBE_TIMEOUT_S = 2.0  # short: a wrong address must fail at once
STALL_TIMEOUT_S = 20.0  # without progress, after which the run gives up
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. Without a home or a URL, the run deletes its server at the end."""

    orders: int = 400
    url: str | None = None
    home: Path | None = None
    keep: bool = False


class DemoRun:
    """`with DemoRun(options) as run:` read `run.frames()` to its end, then `run.result`."""

    def __init__(self, options: Options) -> None:
        self.result: Result | None = None
        self._options = options
        self._began = time.monotonic()
        self._cleanup = ExitStack()
        self._events: list[Event] = []
        self._label = ""
        self._server_seconds = self._place_seconds = self._drain_seconds = 0.0
        self._placed = 0
        self._recovered: set[str] = set()  # kills whose recovery was announced
        self._places = _Places()
        self._poison_is_dead = False

    def frames(self) -> Iterator[Frame]:
        """Run the demo. Yields a frame every FRAME_INTERVAL_S."""
        url = self._find_server()
        self._shop = Shop(url, self._folder)
        self._cleanup.callback(self._shop.app.close)
        self._shop.claim()
        self._cleanup.callback(self._empty_queues)
        self._worker_process = self._cleanup.enter_context(WorkerProcess(self._folder, self._shop.variables))
        self._tally = Tally(self._folder / ledger.FILE)
        self._killer = Killer(self._worker_process, self._tally, self._options.orders)
        self._place_orders()
        yield self._frame()
        self._worker_process.start()
        self._announce("worker", f"windlass worker shop:app --processes 2 --lease {LEASE_S}s")
        yield from self._drain()
        self._fallen = self._worker_process.seen - set(self._worker_process.all)
        self._worker_process.stop()
        self._tally.read()
        self._announce("end", "the worker has stopped; the demo now checks the ledger against the orders")
        yield self._frame()
        self.result = self._conclude()

    # -- the server ------------------------------------------------------------------------------

    def _find_server(self) -> str:
        """The URL of a server that answers."""
        began = time.monotonic()
        url = self._options.url or self._embedded_server()
        with Windlass(url, retry_for=PROBE_TIMEOUT_S, call_timeout=PROBE_TIMEOUT_S) as app:
            app.queue(ORDERS).counts()
        self._server_seconds = time.monotonic() - began
        if self._options.url:
            self._label = str(Endpoint.parse(url))
            self._announce("server", f"the server at {self._label} answers")
        return url

    def _embedded_server(self) -> str:
        began = time.monotonic()
        server = EmbeddedServer(self._home)
        if self._options.home is None and not self._options.keep:
            self._cleanup.callback(server.stop)  # before the start, which Ctrl-C may interrupt
        with _quiet_server_start():
            started = server.start()
        if self._options.home is not None and not self._options.keep and started:
            self._cleanup.callback(server.stop)
        self._label = server.status().version or "the embedded server"
        where = f"in {self._home}" if self._options.home or self._options.keep else "in a temporary folder"
        took = time.monotonic() - began
        self._announce("server", f"{self._label} {f'started in {took:.2f} s' if started else 'already runs'}, {where}")
        return f"unix://{quote(str(server.socket_path))}"

    @property
    def _home(self) -> Path:
        return self._options.home or self._folder / "home"

    # -- the orders ------------------------------------------------------------------------------

    def _place_orders(self) -> None:
        began = time.monotonic()
        self._placed = self._shop.place_orders(self._options.orders)
        self._place_seconds = time.monotonic() - began
        self._announce("shop", f"{self._placed:,} orders acknowledged in {self._place_seconds:.2f} s")
        self._announce("shop", "and one job that kills its own process at each attempt")

    def _drain(self) -> Iterator[Frame]:
        began, next_frame = time.monotonic(), 0.0
        self._tally.progress_at = began
        while True:
            now = time.monotonic()
            self._tally.read()
            if self._poison_is_dead and (kill := self._killer.kill_if_due()):
                self._announce_kill(kill)
            if now >= next_frame:
                next_frame = now + FRAME_INTERVAL_S
                self._announce_progress()
                frame = self._frame()
                yield frame
                self._drain_seconds = time.monotonic() - began
                if self._is_drained(frame):
                    return
                if self._worker_process.exit_code is not None or now > self._tally.progress_at + STALL_TIMEOUT_S:
                    self._announce("stop", f"the worker makes no progress: see its log, {self._worker_process.log}")
                    return
            time.sleep(READ_INTERVAL_S)

    def _is_drained(self, frame: Frame) -> bool:
        """All steps are done and all jobs settled: a job that was killed before its settle runs again first."""
        on_server = frame.ready + frame.scheduled + frame.running
        return frame.done == frame.steps and on_server == 0 and self._poison_is_dead

    # -- the kills, and the recovery -------------------------------------------------------------

    def _announce_kill(self, kill: Kill) -> None:
        self._places.killed(kill.pids)
        count = len(kill.under_way)
        if kill.whom == kills.CHILD:
            cut = kill.under_way[0]
            self._announce("kill -9", f"a child (process {kill.pids[0]}) in the middle of {cut.kind} {cut.number}")
        elif kill.whom == kills.RUNNER:
            self._announce("kill -9", f"the runner (process {kill.pids[0]}) and its children: {count} jobs interrupted")
        else:
            self._announce("kill -9", f"the whole worker, {len(kill.pids)} processes at once: {count} jobs interrupted")
            self._worker_process.start()
            self._announce("worker", f"a new worker starts; the leases of the dead one end within {LEASE_S} s")

    def _announce_progress(self) -> None:
        for kill in self._killer.done:
            if kill.whom not in self._recovered and kill.has_recovered(self._tally):
                self._recovered.add(kill.whom)
                waits = kill.rerun(self._tally)
                span = f"after {waits[0]:.2f} s" + (f" to {waits[-1]:.2f} s" if len(waits) > 1 else "")
                what = f"all {len(waits)} jobs run" if len(waits) > 1 else "the job runs"
                self._announce("recover", f"{what} again {span}")
        if not self._poison_is_dead and self._tally.count(JobKind.POISON) >= CRASHES:
            self._poison_is_dead = bool(self._shop.app.queue(MEDIA).counts().dead)
            if self._poison_is_dead:
                self._announce("poison", f"a job crashed its process {CRASHES} times, and is now dead")

    # -- frames and the result -------------------------------------------------------------------

    def _announce(self, topic: str, text: str) -> None:
        self._events.append(Event(time.monotonic() - self._began, topic, text))

    def _frame(self) -> Frame:
        events, self._events = tuple(self._events), []
        counts = [queue.counts() for queue in self._shop.queues]
        tally, orders = self._tally, self._options.orders
        return Frame(
            at=time.monotonic() - self._began,
            server=self._label,
            steps=len(STEPS) * orders,
            done=tally.steps_done,
            ready=sum(each.ready + each.inbox + each.outbox for each in counts),
            scheduled=sum(each.scheduled for each in counts),
            running=sum(each.running for each in counts),
            dead=sum(each.dead for each in counts),
            pace=tally.pace,
            processes=self._places.view(self._worker_process, tally),
            parts=(
                ("orders", len(tally.done[JobKind.ORDER]), orders),
                ("thumbnails", len(tally.done[JobKind.THUMBNAIL]), orders),
                ("e-mails", len(tally.delivered), orders),
            ),
            events=events,
        )

    def _conclude(self) -> Result:
        account = build_account(
            self._placed,
            self._tally.attempts,
            killed={pid for kill in self._killer.done for pid in kill.pids},
            fallen=self._fallen,
            server=self._server_view(),
        )
        embedded = self._options.url is None
        return Result(
            account=account,
            kills=tuple(_killed(kill, self._tally) for kill in self._killer.done),
            timing=Timing(
                total=time.monotonic() - self._began,
                server=self._server_seconds,
                place=self._place_seconds,
                drain=self._drain_seconds,
            ),
            server=self._label,
            durable=embedded,
            shop=shop_folder() / FILE,
            folder=self._folder,
            log=self._worker_process.log,
            home=self._home if embedded and self._options.keep else None,
        )

    def _server_view(self) -> ServerView:
        waiting = [
            job
            for queue in self._shop.queues
            for state in (State.READY, State.SCHEDULED, State.BLOCKED, State.RUNNING)
            for job in queue.all_jobs(state)
        ]
        ticks = [job for job in waiting if job.id.startswith(SCHEDULE)]
        schedule = self._shop.app.schedules.get(ORDERS, SCHEDULE)
        dead = [job for queue in self._shop.queues for job in queue.all_jobs(State.DEAD)]
        return ServerView(
            left=frozenset(_order_of(job) for job in waiting),
            ticks_fired=schedule.fired if schedule else 0,
            ticks_left=len(ticks),
            dead=tuple((str(job.reason), job.stalls) for job in dead),
        )

    # -- the context -----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-demo-")).resolve()
        self._cleanup.callback(self._delete_folder)
        return self

    def _empty_queues(self) -> None:
        """Delete the jobs of the run, unless a person should examine them."""
        if self._keeps_files:
            return
        try:
            self._shop.empty()
        except WindlassError:
            pass  # the server does not answer; the run ends with that error already

    def _delete_folder(self) -> None:
        """Delete the ledger and the log, unless a person should examine them."""
        if not self._keeps_files:
            shutil.rmtree(self._folder)

    @property
    def _keeps_files(self) -> bool:
        return self._options.keep or (self.result is not None and self.result.kept)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _signals_ignored():
            self._cleanup.close()


class _Places:
    """The five roles of a worker's processes, and the process in each role."""

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        self._all: dict[str, set[int]] = {place: set() for place in PLACES}
        self._gone: set[int] = set()
        self._killed: Counter[str] = Counter()

    def killed(self, pids: tuple[int, ...]) -> None:
        """These processes were killed."""
        self._gone |= set(pids)
        self._killed.update(place for place, pid in self._now.items() if pid in pids)

    def view(self, worker_process: WorkerProcess, tally: Tally) -> tuple[ProcessView, ...]:
        """The processes now. A role keeps a killed process until a new process has the role."""
        present = worker_process.all
        for place, pid in zip(PLACES[:3], present, strict=False):
            self._assign(place, pid)
        children = present[3:]
        newcomers = [pid for pid in children if pid not in self._now.values()]
        for place in PLACES[3:]:
            if self._now.get(place) not in children and newcomers:
                self._assign(place, newcomers.pop(0))
        return tuple(self._view(place, present, tally) for place in PLACES)

    def _assign(self, place: str, pid: int) -> None:
        self._now[place] = pid
        self._all[place].add(pid)

    def _view(self, place: str, present: list[int], tally: Tally) -> ProcessView:
        pid = self._now.get(place)
        running = len(tally.open_in([pid])) if pid else 0
        done = sum(tally.done_by[each] for each in self._all[place])
        if pid is None:
            state = "starting"
        elif pid in self._gone:
            state = "killed"
        elif pid not in present:
            state = "ended"
        elif place in WATCHERS:
            state = "watching"
        else:
            state = "working" if running else "idle"
        return ProcessView(place, pid, state, running, done, self._killed[place])


def _killed(kill: Kill, tally: Tally) -> Killed:
    waits = kill.rerun(tally)
    return Killed(
        kill.whom, len(kill.pids), len(kill.under_way), waits[0] if waits else None, waits[-1] if waits else None
    )


def _order_of(job: JobRecord) -> int:
    """The order of a waiting job; 0 if it has none, or cannot be decoded."""
    try:
        arguments = msgspec.json.decode(read_envelope(job.data).args)
    except Undecodable:
        return 0
    return int(arguments.get("number", 0))


@contextmanager
def _quiet_server_start() -> Iterator[None]:
    """A server that is soon deleted need not log where its data is."""
    before = os.environ.get("WINDLASS_QUIET")
    os.environ["WINDLASS_QUIET"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["WINDLASS_QUIET"]
        else:
            os.environ["WINDLASS_QUIET"] = before


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """A second Ctrl-C must not leave a process behind. The cleanup takes only seconds."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
