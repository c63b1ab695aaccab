"""One run of the demo: a server, a queue full of jobs, workers, a kill, and in the end the account.

A run is a context: whatever it started is gone when it is left, however it is left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self
from urllib.parse import quote

from windlass.app import Windlass
from windlass.demo.account import draw_up
from windlass.demo.crew import Crew, Member
from windlass.demo.frame import Event, Frame, WorkerView
from windlass.demo.ledger import Deed
from windlass.demo.plan import PRIORITIES, plan
from windlass.demo.result import Kill, Result, Timing, drain_seconds, recovery_seconds
from windlass.demo.tally import Tally
from windlass.embedded import EmbeddedServer
from windlass.errors import WindlassError
from windlass.job import State, Status
from windlass.queue import Queue
from windlass.transport import Endpoint

LEASE_SECONDS = 2.0
LARGEST_BATCH = 48
CHUNK = 500  # jobs enqueued between two frames
TICK, FRAME = 0.01, 0.1  # seconds between two looks at the ledgers, and between two frames
FIRST_CONTACT = 2.0  # seconds for a server to answer at all
STANDSTILL = 20.0  # seconds without a single completion: a run that will not end by itself
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen for a run. Without a home or a URL its server is thrown away in the end."""

    jobs: int = 6000
    workers: int = 4
    seed: int = 1
    url: str | None = None
    home: Path | None = None
    keep: bool = False


class DemoRun:
    """`with DemoRun(options) as run:` watch `run.frames()` to its end, then read `run.result`."""

    def __init__(self, options: Options) -> None:
        self.result: Result | None = None
        self._options = options
        self._chores = plan(options.jobs, options.seed)
        self._batch = min(LARGEST_BATCH, max(1, options.jobs // (options.workers * 4)))
        self._began = time.monotonic()
        self._cleanup = ExitStack()
        self._events: list[Event] = []
        self._label = ""
        self._server_seconds = self._enqueue_seconds = 0.0
        self._priority: dict[str, int] = {}  # of each job that the server acknowledged
        self._victim: Member | None = None
        self._kill: Kill | None = None
        self._told: set[str] = set()  # what is said once

    def frames(self) -> Iterator[Frame]:
        """Run, and show how it stands about ten times a second."""
        url = self._find_server()
        app = self._cleanup.enter_context(Windlass(url))
        self._queue = self._cleanup.enter_context(_queue_of_its_own(app))
        self._crew = self._cleanup.enter_context(Crew(self._folder, self._options.workers))
        self._tally = Tally({member.name: member.ledger for member in self._crew.members})
        yield from self._enqueue()
        self._crew.start(url, self._queue.name, self._batch, LEASE_SECONDS)
        yield from self._drain()
        self._crew.dismiss()
        self._tally.read()
        self._watch_recovery()
        self._say("end", "the workers are gone; now their ledgers are compared with what was added")
        yield self._frame()
        self.result = self._conclude()

    # -- the server ------------------------------------------------------------------------------

    def _find_server(self) -> str:
        """The URL of a server that answers."""
        began = time.monotonic()
        url = self._options.url or self._embedded_server()
        # The first contact has less patience than the run itself: a wrong address should be told at once.
        with Windlass(url, retry_for=FIRST_CONTACT, call_timeout=FIRST_CONTACT) as app:
            app.queue("demo").counts()
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

    # -- the jobs --------------------------------------------------------------------------------

    def _enqueue(self) -> Iterator[Frame]:
        for start in range(0, len(self._chores), CHUNK):
            chunk = self._chores[start : start + CHUNK]
            began = time.monotonic()
            receipts = self._queue.enqueue_many(chore.as_job() for chore in chunk)
            self._enqueue_seconds += time.monotonic() - began
            for chore, receipt in zip(chunk, receipts, strict=True):
                if receipt.status is Status.ADDED:
                    self._priority[receipt.id] = chore.priority
            yield self._frame()
        later = sum(1 for chore in self._chores if chore.delay)
        self._say("queue", f"{len(self._priority):,} jobs acknowledged in {self._enqueue_seconds:.2f} s")
        self._say("queue", f"{len(PRIORITIES)} priorities, and {later:,} jobs are scheduled 1 to 4 s ahead")

    def _drain(self) -> Iterator[Frame]:
        next_frame = 0.0
        completed, moved = -1, time.monotonic()
        while True:
            now = time.monotonic()
            self._tally.read()
            self._watch_workers()
            if self._is_time_to_kill():
                self._kill_one()
            if len(self._tally.finishers) > completed:
                completed, moved = len(self._tally.finishers), now
            if now >= next_frame:
                next_frame = now + FRAME
                self._watch_recovery()
                frame = self._frame()
                yield frame
                if not (frame.counts.waiting or frame.counts.leased):
                    return
                if not self._crew.alive or now > moved + STANDSTILL:
                    self._say("stop", "no worker gets any further")
                    return
            time.sleep(TICK)

    # -- the kill, and what comes of it ----------------------------------------------------------

    def _is_time_to_kill(self) -> bool:
        """Half-way, when the one that was chosen has its hands full and is in the midst of its work."""
        if self._kill is not None or len(self._tally.finishers) < self._options.jobs / 2:
            return False
        if self._victim is None or not self._victim.alive:
            alive = self._crew.alive
            self._victim = Random(self._options.seed).choice(alive) if len(alive) > 1 else None
        if self._victim is None:
            return False
        entries, holding = self._tally.entries[self._victim.name], self._tally.holding[self._victim.name]
        return len(holding) >= self._batch * 3 // 4 and entries[-1].deed is Deed.RAN

    def _kill_one(self) -> None:
        victim = self._victim
        assert victim is not None
        self._told.add(victim.name)
        at = time.monotonic()
        victim.kill()
        held = frozenset(job.id for job in self._queue.all_jobs(State.LEASED) if job.holder == victim.name)
        self._kill = Kill(victim.name, victim.pid, at, held)
        self._say("kill -9", f"{victim.name} (process {victim.pid}) is dead, {len(held)} jobs in its hands")
        self._say("kill -9", f"its leases end {LEASE_SECONDS:g} s after its last sign of life")

    def _watch_recovery(self) -> None:
        kill = self._kill
        if kill is None or not kill.held:
            return
        taken = [self._tally.last_lease[id] for id in self._rescued()]
        if taken and "taken back" not in self._told:
            self._told.add("taken back")
            self._say("recover", f"{min(taken).at - kill.at:.1f} s after the kill its jobs go to the other workers")
        finished = Counter(self._tally.finishers[id] for id in kill.held if id in self._tally.finishers)
        if finished.total() == len(kill.held) and "recovered" not in self._told:
            self._told.add("recovered")
            by = ", ".join(f"{name} ({jobs})" for name, jobs in sorted(finished.items()))
            self._say("recover", f"all {finished.total()} are done, by {by}")

    def _rescued(self) -> set[str]:
        """Of the jobs that the killed worker held, those that another has leased since."""
        kill = self._kill
        if kill is None:
            return set()
        leases = self._tally.last_lease
        return {id for id in kill.held if id in leases and leases[id].worker != kill.worker}

    def _watch_workers(self) -> None:
        for member in self._crew.members:
            if member.fell and member.name not in self._told:
                self._told.add(member.name)
                self._say("worker", f"{member.name} has ended unasked: {member.last_words}")

    # -- telling ---------------------------------------------------------------------------------

    def _say(self, topic: str, text: str) -> None:
        self._events.append(Event(time.monotonic() - self._began, topic, text))

    def _frame(self) -> Frame:
        events, self._events = tuple(self._events), []
        finishers = self._tally.finishers
        done = Counter(self._priority.get(id) for id in finishers)
        planned = Counter(chore.priority for chore in self._chores)
        completed = Counter(finishers.values())
        rescued = Counter(finishers.get(id) for id in self._rescued())
        return Frame(
            at=time.monotonic() - self._began,
            server=self._label,
            jobs=self._options.jobs,
            batch=self._batch,
            counts=self._queue.counts(),
            completed=len(finishers),
            pace=self._tally.pace,
            workers=tuple(
                WorkerView(
                    name=member.name,
                    pid=member.pid,
                    state=self._state_of(member),
                    holding=self._held_by(member),
                    completed=completed[member.name],
                    rescued=rescued[member.name],
                )
                for member in self._crew.members
            ),
            priorities=tuple((name, done[number], planned[number]) for number, name in PRIORITIES.items()),
            events=events,
        )

    def _state_of(self, member: Member) -> str:
        if self._kill and self._kill.worker == member.name:
            return "killed"
        if member.fell:
            return "fallen"
        if self._tally.holding[member.name]:
            return "working"
        return "idle" if self._tally.entries[member.name] else "starting"

    def _held_by(self, member: Member) -> int:
        if self._kill and self._kill.worker == member.name:  # its ledger cannot say any more what it lost
            return len(self._kill.held - self._rescued())
        return len(self._tally.holding[member.name])

    def _conclude(self) -> Result:
        account = draw_up(
            self._priority,
            self._tally.entries,
            fallen={member.name for member in self._crew.members if member.fell},
            held=self._kill.held if self._kill else (),
            left={job.id for state in State for job in self._queue.all_jobs(state)},
        )
        embedded = self._options.url is None
        return Result(
            account=account,
            timing=Timing(
                total=time.monotonic() - self._began,
                server=self._server_seconds,
                enqueue=self._enqueue_seconds,
                drain=drain_seconds(self._tally),
                recovery=recovery_seconds(self._tally, self._kill),
            ),
            kill=self._kill,
            workers=dict(sorted(Counter(self._tally.finishers.values()).items())),
            work=sum(chore.work for chore in self._chores) / 1000,
            server=self._label,
            durable=embedded,
            seed=self._options.seed,
            ledgers=self._folder,
            home=self._home if embedded and self._options.keep else None,
        )

    # -- coming and going ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-demo-")).resolve()
        self._cleanup.callback(self._tidy)
        return self

    def _tidy(self) -> None:
        """The ledgers go with the run, unless there is something in them to look into."""
        if not self._options.keep and (self.result is None or self.result.ok):
            shutil.rmtree(self._folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _undisturbed():
            self._cleanup.close()


@contextmanager
def _queue_of_its_own(app: Windlass) -> Iterator[Queue]:
    """A queue with a name that nobody else uses, and of which nothing is left in the end."""
    queue = app.queue(f"demo-{secrets.token_hex(4)}")
    try:
        yield queue
    finally:
        try:
            queue.purge()
        except WindlassError:
            pass  # the server is gone, and the error about that is on its way already


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
