"""One run of the demo: a server, the shop full of orders, its worker, three kills, and in the end the account.

A run is a context: whatever it started is gone when it is left, however it is left.
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
from windlass.ops.demo.account import CRASHES, ServerView, draw_up
from windlass.ops.demo.frame import PLACES, WATCHERS, Event, Frame, ProcessView
from windlass.ops.demo.kills import Kill, Killer
from windlass.ops.demo.ledger import What
from windlass.ops.demo.result import Killed, Result, Timing
from windlass.ops.demo.shop_loader import FILE, MEDIA, ORDERS, SCHEDULE, Shop, shop_folder
from windlass.ops.demo.tally import STEPS, Tally
from windlass.ops.demo.worker_process import LEASE_SECONDS, WorkerProcess
from windlass.tasks.envelope import read_envelope
from windlass.transport import Endpoint
from windlass.values.job import JobRecord, State

TICK, FRAME = 0.01, 0.1  # seconds between two looks at the ledger, and between two frames
FIRST_CONTACT = 2.0  # seconds for a server to answer at all
STANDSTILL = 20.0  # seconds in which nothing is done: a run that will not end by itself
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen for a run. Without a home or a URL its server is thrown away in the end."""

    orders: int = 400
    url: str | None = None
    home: Path | None = None
    keep: bool = False


class DemoRun:
    """`with DemoRun(options) as run:` watch `run.frames()` to its end, then read `run.result`."""

    def __init__(self, options: Options) -> None:
        self.result: Result | None = None
        self._options = options
        self._began = time.monotonic()
        self._cleanup = ExitStack()
        self._events: list[Event] = []
        self._label = ""
        self._server_seconds = self._place_seconds = self._drain_seconds = 0.0
        self._placed = 0
        self._mended: set[str] = set()  # kills of which it was told how the work went on
        self._places = _Places()
        self._poison_is_dead = False

    def frames(self) -> Iterator[Frame]:
        """Run, and show how it stands about ten times a second."""
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
        self._say("worker", f"windlass worker shop:app --processes 2 --lease {LEASE_SECONDS}s")
        yield from self._drain()
        self._fallen = self._worker_process.seen - set(self._worker_process.all)
        self._worker_process.dismiss()
        self._tally.read()
        self._say("end", "the worker is gone; now its ledger is compared with what was ordered")
        yield self._frame()
        self.result = self._conclude()

    # -- the server ------------------------------------------------------------------------------

    def _find_server(self) -> str:
        """The URL of a server that answers."""
        began = time.monotonic()
        url = self._options.url or self._embedded_server()
        # The first contact has less patience than the run itself: a wrong address should be told at once.
        with Windlass(url, retry_for=FIRST_CONTACT, call_timeout=FIRST_CONTACT) as app:
            app.queue(ORDERS).counts()
        self._server_seconds = time.monotonic() - began
        if self._options.url:
            self._label = str(Endpoint.parse(url))
            self._say("server", f"the one at {self._label} answers")
        return url

    def _embedded_server(self) -> str:
        began = time.monotonic()
        server = EmbeddedServer(self._home)
        if self._options.home is None and not self._options.keep:
            self._cleanup.callback(server.stop)  # even if it is interrupted while it starts: nobody else uses it
        with _quietly():
            started = server.start()
        if self._options.home is not None and not self._options.keep and started:
            self._cleanup.callback(server.stop)
        self._label = server.status().version or "the embedded server"
        where = f"in {self._home}" if self._options.home or self._options.keep else "in a throw-away folder"
        took = time.monotonic() - began
        self._say("server", f"{self._label} {f'started in {took:.2f} s' if started else 'runs already'}, {where}")
        return f"unix://{quote(str(server.socket_path))}"

    @property
    def _home(self) -> Path:
        return self._options.home or self._folder / "home"

    # -- the orders ------------------------------------------------------------------------------

    def _place_orders(self) -> None:
        began = time.monotonic()
        self._placed = self._shop.place_orders(self._options.orders)
        self._place_seconds = time.monotonic() - began
        self._say("shop", f"{self._placed:,} orders acknowledged in {self._place_seconds:.2f} s")
        self._say("shop", "and one job that will kill its own process, whenever it is tried")

    def _drain(self) -> Iterator[Frame]:
        began, next_frame = time.monotonic(), 0.0
        self._tally.moved_at = began
        while True:
            now = time.monotonic()
            self._tally.read()
            if self._poison_is_dead and (kill := self._killer.attempt()):
                self._tell_of(kill)
            if now >= next_frame:
                next_frame = now + FRAME
                self._watch()
                frame = self._frame()
                yield frame
                self._drain_seconds = time.monotonic() - began
                if self._is_drained(frame):
                    return
                if self._worker_process.ended_unasked is not None or now > self._tally.moved_at + STANDSTILL:
                    self._say("stop", f"the worker gets no further; its log is {self._worker_process.log}")
                    return
            time.sleep(TICK)

    def _is_drained(self, frame: Frame) -> bool:
        """All is done and the server knows it: what was killed between its work and its word is run again first."""
        on_server = frame.ready + frame.scheduled + frame.leased
        return frame.done == frame.steps and on_server == 0 and self._poison_is_dead

    # -- the kills, and what comes of them -------------------------------------------------------

    def _tell_of(self, kill: Kill) -> None:
        self._places.killed(kill.pids)
        count = len(kill.under_way)
        if kill.whom == kills.CHILD:
            cut = kill.under_way[0]
            self._say("kill -9", f"a child (process {kill.pids[0]}) in the middle of {cut.what} {cut.number}")
        elif kill.whom == kills.RUNNER:
            self._say("kill -9", f"the runner (process {kill.pids[0]}), with its children: {count} jobs cut short")
        else:
            self._say("kill -9", f"the whole worker, {len(kill.pids)} processes at once: {count} jobs cut short")
            self._worker_process.start()
            self._say("worker", f"a new one is started; the leases of the dead one end within {LEASE_SECONDS} s")

    def _watch(self) -> None:
        for kill in self._killer.done:
            if kill.whom not in self._mended and kill.is_mended(self._tally):
                self._mended.add(kill.whom)
                waits = kill.rerun(self._tally)
                span = f"after {waits[0]:.2f} s" + (f" to {waits[-1]:.2f} s" if len(waits) > 1 else "")
                what = f"all {len(waits)} are" if len(waits) > 1 else "it is"
                self._say("recover", f"{what} at work again {span}")
        if not self._poison_is_dead and self._tally.count(What.POISON) >= CRASHES:
            self._poison_is_dead = bool(self._shop.app.queue(MEDIA).counts().dead)
            if self._poison_is_dead:
                self._say("poison", f"a job crashed its process {CRASHES} times, and is left among the dead")

    # -- telling ---------------------------------------------------------------------------------

    def _say(self, topic: str, text: str) -> None:
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
            leased=sum(each.leased for each in counts),
            dead=sum(each.dead for each in counts),
            pace=tally.pace,
            processes=self._places.look(self._worker_process, tally),
            parts=(
                ("orders", len(tally.done[What.ORDER]), orders),
                ("thumbnails", len(tally.done[What.THUMBNAIL]), orders),
                ("e-mails", len(tally.delivered), orders),
            ),
            events=events,
        )

    def _conclude(self) -> Result:
        account = draw_up(
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
            for state in (State.READY, State.SCHEDULED, State.BLOCKED, State.LEASED)
            for job in queue.all_jobs(state)
        ]
        ticks = [job for job in waiting if job.id.startswith(SCHEDULE)]
        schedule = self._shop.app.schedules.get(SCHEDULE, ORDERS)
        dead = [job for queue in self._shop.queues for job in queue.all_jobs(State.DEAD)]
        return ServerView(
            left=frozenset(_order_of(job) for job in waiting),
            ticks_fired=schedule.fired if schedule else 0,
            ticks_left=len(ticks),
            dead=tuple((str(job.reason), job.stalls) for job in dead),
        )

    # -- coming and going ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-demo-")).resolve()
        self._cleanup.callback(self._tidy)
        return self

    def _empty_queues(self) -> None:
        """Nothing is left on the server, unless there is something to look into."""
        if self._is_worth_keeping:
            return
        try:
            self._shop.empty()
        except WindlassError:
            pass  # the server is gone, and the error about that is on its way already

    def _tidy(self) -> None:
        """The ledger and the log go with the run, unless there is something in them to look into."""
        if not self._is_worth_keeping:
            shutil.rmtree(self._folder)

    @property
    def _is_worth_keeping(self) -> bool:
        return self._options.keep or (self.result is not None and self.result.kept)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _undisturbed():
            self._cleanup.close()


class _Places:
    """The five places of a worker, whoever is in them just now."""

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        self._all: dict[str, set[int]] = {place: set() for place in PLACES}
        self._gone: set[int] = set()
        self._killed: Counter[str] = Counter()

    def killed(self, pids: tuple[int, ...]) -> None:
        """These were killed."""
        self._gone |= set(pids)
        self._killed.update(place for place, pid in self._now.items() if pid in pids)

    def look(self, worker_process: WorkerProcess, tally: Tally) -> tuple[ProcessView, ...]:
        """See who is there now. A place whose process was killed shows that one until there is another."""
        present = worker_process.all
        for place, pid in zip(PLACES[:3], present, strict=False):
            self._settle(place, pid)
        children = present[3:]
        newcomers = [pid for pid in children if pid not in self._now.values()]
        for place in PLACES[3:]:
            if self._now.get(place) not in children and newcomers:
                self._settle(place, newcomers.pop(0))
        return tuple(self._view(place, present, tally) for place in PLACES)

    def _settle(self, place: str, pid: int) -> None:
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
    """The order that a waiting job is about; 0 if it is about none, or nobody can tell."""
    try:
        arguments = msgspec.json.decode(read_envelope(job.data).args)
    except Undecodable:
        return 0
    return int(arguments.get("number", 0))


@contextmanager
def _quietly() -> Iterator[None]:
    """A server for a few seconds need not say where it keeps its jobs."""
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
def _undisturbed() -> Iterator[None]:
    """An impatient second Ctrl-C must not leave a process behind: tidying up takes no more than seconds."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTIONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
