"""The chaos run: real workers, a real server and a load of jobs under many faults, for minutes; then the account.

    load and faults → all faults end → the queues drain → the workers stop → the server's state is logged → the checker

Every process logs its actions and answers outside the server (log.py), and the checker judges by that log alone. One
seed gives one load and one plan of faults, but not one sequence of events: real processes run at their own speed. For
exact repetition use the simulation.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Literal, get_args

from tests.support.proxy import FaultProxy
from tests.support.server import Server, redis_binary, valkey_binary
from tests.support.waiting import wait_until

import windlass
from chaos import tap
from chaos.checker import check
from chaos.fleet import Fleet
from chaos.load import QUEUES
from chaos.log import Ended, Fault, Healed, Inspected, Left, Rewound, digest
from chaos.nemesis.fault import Detail
from chaos.nemesis.mix import KINDS, Nemesis, Step, Targets, plan, possible
from chaos.nemesis.processes import Kill
from chaos.nemesis.server import KillServer
from windlass import Counts, State, Windlass
from windlass.errors import WindlassError

Level = Literal["fsync", "everysec", "memory"]
Make = Literal["valkey", "redis7"]

BATCH_JOBS = 100
LOAD_SHARE = 0.8  # share of the time; the rest is for starting, draining and checking
SPARE_KILLS = 1.4  # kills planned for each kill wanted: sometimes a kill finds no target
EVERYSEC_LOSES_S = 2.0  # seconds of answers that a killed server loses at most with appendfsync everysec
STUCK_AFTER_S = 30.0  # seconds without progress after which the queues count as stuck
REPORT_EVERY_S = 5.0
_KILLS = {"kill runner": 30, "kill child": 25, "kill worker": 20, "kill supervisor": 15, "kill forkserver": 10}


@dataclass(frozen=True)
class Order:
    """The parameters of a run."""

    jobs: int = 200_000
    minutes: float = 9.0
    worker_kills: int = 110
    server_kills: int = 11
    seed: int = 0
    durability: Level = "fsync"
    server: Make = "valkey"
    lease: float = 2.0
    workers: int = 4
    producers: int = 2
    fault_free: bool = False
    tapped: bool = True
    keep: Path | None = None

    @property
    def load_seconds(self) -> float:
        """Seconds during which jobs arrive and faults happen."""
        return self.minutes * 60 * LOAD_SHARE

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.load_seconds


DEFAULT = Order()
LONG = Order(jobs=2_000_000, minutes=60.0, worker_kills=520, server_kills=52)
SMOKE = Order(jobs=20_000, minutes=1.2, worker_kills=10, server_kills=2)


# -- the plan of faults ------------------------------------------------------------------------------


def fault_plan(order: Order, targets: Targets) -> list[Step]:
    """Kills during the whole load, and in parallel changing mixes of all other faults available on this machine."""
    if order.fault_free:
        return []
    chance = random.Random(order.seed)
    kills = _spread(chance, list(_KILLS), list(_KILLS.values()), round(order.worker_kills * SPARE_KILLS), order, 0.3)
    deaths = _spread(chance, ["kill server"], [1], order.server_kills, order, 1.0)
    others = [kind for kind in possible(targets)[0] if not kind.startswith("kill ") or kind == "kill clients"]
    mixed = plan(order.seed, order.load_seconds, others, lease=order.lease)
    mixed = [step for step in mixed if not (KINDS[step.fault].alone and _meets(step, deaths))]
    held = [*deaths, *(step for step in mixed if KINDS[step.fault].alone)]
    mixed = [step for step in mixed if not (step.fault == "full memory" and _meets(step, held))]
    return sorted([*kills, *deaths, *mixed], key=lambda step: step.at)


def _spread(
    chance: random.Random, kinds: list[str], weights: list[int], count: int, order: Order, longest: float
) -> list[Step]:
    """`count` times, evenly spread, each at a random moment of its interval."""
    steps = []
    for number in range(count):
        at = (number + chance.random()) / count * order.load_seconds
        (kind,) = chance.choices(kinds, weights)
        parameters = {"who": chance.randrange(1 << 16)}
        steps.append(Step(round(at, 3), kind, parameters, round(chance.uniform(0.0, longest), 3)))
    return steps


def _meets(step: Step, others: Sequence[Step]) -> bool:
    """Whether it overlaps one of these: two faults on the same server would end each other."""
    return any(step.at < other.at + other.duration + 1 and other.at < step.at + step.duration + 1 for other in others)


# -- the run -----------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The result of a run."""

    folder: Path
    seconds: dict[str, float]
    faults: Counter[str]
    worker_kills: int
    server_kills: int
    drained: bool
    codes: dict[str, int]
    """Exit codes of the workers when they were told to stop."""
    sent: int
    cpu: float
    """Processor time of all processes of the run, the server included."""
    left_out: dict[str, str]
    """Faults that are not available here, and why."""
    errors: list[str]

    @property
    def fine(self) -> bool:
        """Whether the run itself succeeded; the checker judges the jobs."""
        return self.drained and not self.errors and not any(self.codes.values())


class Run:
    """One run, from the first process to the account."""

    def __init__(self, order: Order, folder: Path) -> None:
        self.order = order
        self.folder = folder
        self.faults: Counter[str] = Counter()
        self.worker_kills = self.server_kills = 0
        self.seconds: dict[str, float] = {}
        self.errors: list[str] = []
        self._log = folder / "log"
        self._log.mkdir(parents=True)
        self._began = time.monotonic()
        self._said_at = 0.0
        self._rest = ExitStack()

    def go(self) -> Outcome:
        """Load, heal, drain, stop, inspect."""
        if self.order.tapped:
            os.environ[tap.FOLDER] = str(self._log)
        os.environ[tap.LEVEL] = self.order.durability
        tap.install("driver")
        with self._rest:
            self._start()
            with self._phase("load"), Nemesis(self._plan, self._targets, self._note) as nemesis:
                self._load(nemesis)
            self.errors += map(repr, nemesis.errors)
            with self._phase("drain"):
                drained = self._drain()
            with self._phase("stop"):
                codes = self._fleet.dismiss()
            self._inspect(drained)
            sent = self._sent()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # includes their waited-for children
        return Outcome(
            self._log,
            self.seconds,
            self.faults,
            self.worker_kills,
            self.server_kills,
            drained,
            codes,
            sent,
            used.ru_utime + used.ru_stime,
            possible(self._targets)[1],
            self.errors,
        )

    # -- its parts ---------------------------------------------------------------------------------

    def _start(self) -> None:
        order = self.order
        with self._phase("start"):
            self._server = self._rest.enter_context(_server(order))
            self._fleet = self._rest.enter_context(Fleet(self.folder, self._variables(), self._ended))
            self.version = _version(self._server)
            self._app = self._rest.enter_context(Windlass(self._server.url, max_dead=1_000_000, retry_for=5))
            proxies = [] if order.fault_free else [FaultProxy(self._server.address, unix=True) for _ in range(3)]
            for proxy in proxies:
                self._rest.enter_context(proxy)
            lines = [self._server.url, *(proxy.url for proxy in proxies)]
            for number in range(order.workers):
                self._fleet.start_worker(f"w{number}", lines[number % len(lines)], self._worker_options())
            wait_until(self._fleet.ready, "the workers to have runners", timeout=60.0, interval=0.05)
            self._targets = Targets(
                server=self._server, workers=self._fleet.workers, replace=self._fleet.replace, proxies=proxies
            )
            self._plan = fault_plan(order, self._targets)
            share = order.jobs // order.producers
            self._producers = [
                self._fleet.start_producer(f"p{number}", line, self._producer_options(number, share))
                for number, line in zip(range(order.producers), cycle(reversed(lines)), strict=False)
            ]

    def _variables(self) -> dict[str, str]:
        return {name: os.environ[name] for name in (tap.FOLDER, tap.LEVEL) if name in os.environ}

    def _worker_options(self) -> list[str]:
        given = {
            "lease": f"{self.order.lease:g}s",
            "concurrency": "150",
            "threads": "8",
            "processes": "2",
            "grace": "5s",
            "kill-grace": "1s",
            "log-format": "text",
            "log-level": "error",
        }
        return [word for name, value in given.items() for word in (f"--{name}", value)]

    def _producer_options(self, number: int, jobs: int) -> list[str]:
        order = self.order
        given = {
            "seed": order.seed,
            "number": number,
            "jobs": jobs,
            "rate": order.rate / order.producers,
            "batch": BATCH_JOBS,
            "durability": order.durability,
            "tally": self._tally(number),
        }
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]

    def _load(self, nemesis: Nemesis) -> None:
        """Run until all jobs are sent and all planned faults have happened."""
        while any(producer.alive for producer in self._producers) or not nemesis.wait(0):
            time.sleep(0.1)
            self._say("load")
        for producer in self._producers:
            if producer.process.returncode != 0:
                self.errors.append(f"{producer.name} exited with {producer.process.returncode}")

    def _drain(self) -> bool:
        """All faults have ended: wait until every job has ended, as long as the number of unfinished jobs falls."""
        self._fleet.mend()
        tap.note(Healed(time.monotonic_ns()))
        fewest, moved_at = sys.maxsize, time.monotonic()
        while (left := self._unfinished()) != 0:
            if left is not None and left < fewest:
                fewest, moved_at = left, time.monotonic()
            if time.monotonic() - moved_at > STUCK_AFTER_S:
                return False
            time.sleep(0.1)
            self._say("drain")
        return True

    def _unfinished(self) -> int | None:
        """Unfinished jobs, including those in transit between queues; None if the server does not answer."""
        try:
            return sum(map(_unfinished, self._counts()))
        except (WindlassError, OSError):
            return None

    def _counts(self) -> list[Counts]:
        return [self._app.queue(queue).counts() for queue in QUEUES]

    def _inspect(self, drained: bool) -> None:
        for name in QUEUES:
            queue = self._app.queue(name)
            counts = queue.counts()
            for state in State:
                for job in queue.all_jobs(state):
                    told = (job.failures, job.stalls, job.reason or "", digest(job.data))
                    tap.note(Left(time.monotonic_ns(), name, job.id, str(job.state), *told))
            problems = queue.audit().problems
            keys = sum(1 for _ in self._scan(f"windlass:{{{name}}}:*"))
            told_counts = {state: int(getattr(counts, state)) for state in Counts.__struct_fields__}
            tap.note(Inspected(time.monotonic_ns(), name, drained, self.seconds["drain"], problems, keys, told_counts))

    def _scan(self, pattern: str) -> list[bytes]:
        client = self._server.client()
        try:
            return list(client.scan_iter(pattern, count=1000))
        finally:
            client.close()

    # -- what is noted -----------------------------------------------------------------------------

    def _note(self, what: str, name: str, detail: Detail) -> None:
        """Log that a fault begins or ends."""
        if what == "fault_error":
            return  # reported at the end as an error of the run itself
        kind, begins, pids = KINDS[name], what == "fault_begin", tuple(detail.get("pids", ()))
        kills = kind.fault in (Kill, KillServer)
        if begins and kills and not pids:
            return  # the fault found no target
        if begins:
            self._count(name, kills)
        if begins and kind.fault is KillServer:
            self._note_rewind(detail["at"])
        at = detail["at"] if begins else detail["done"]
        concerned = (0,) if kind.on in ("server", "clock", "disk", "backup") else pids
        if begins or kind.fault is not Kill:  # a kill has no end
            tap.note(Fault(round(at * 1e9), name, begins, concerned, json.dumps(detail, default=str)))

    def _count(self, name: str, kills: bool) -> None:
        self.faults[name] += 1
        if kills and KINDS[name].on == "workers":
            self.worker_kills += 1
        elif kills:
            self.server_kills += 1

    def _note_rewind(self, at: float) -> None:
        """Without fsync a killed server loses acknowledged state; log how much it may lose."""
        if self.order.durability == "everysec":
            tap.note(Rewound(time.monotonic_ns(), "killed", round((at - EVERYSEC_LOSES_S) * 1e9)))
        elif self.order.durability == "memory":
            tap.note(Rewound(time.monotonic_ns(), "killed", 0))

    def _ended(self, pid: int, how: str) -> None:
        tap.note(Ended(time.monotonic_ns(), pid, how))

    # -- what is said ------------------------------------------------------------------------------

    def _tally(self, number: int) -> Path:
        return self.folder / f"p{number}.sent"

    def _sent(self) -> int:
        files = [self._tally(number) for number in range(self.order.producers)]
        return sum(int(file.read_text() or 0) for file in files if file.exists())

    def _say(self, phase: str) -> None:
        now = time.monotonic()
        if now - self._said_at < REPORT_EVERY_S:
            return
        self._said_at = now
        sent, left = self._sent(), self._unfinished()
        waiting = "the server is down" if left is None else f"{left:6,} unfinished"
        print(
            f"{now - self._began:6.0f} s  {phase:5}  {sent:9,} sent  {waiting}  "
            f"{self.worker_kills:3} worker kills  {self.server_kills:2} server kills  "
            f"{self.faults.total() - self.worker_kills - self.server_kills:3} other faults",
            flush=True,
        )

    def _phase(self, name: str) -> _Phase:
        return _Phase(self.seconds, name)


class _Phase:
    """Measures how long a phase of the run took."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds = seconds
        self._name = name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = time.monotonic() - self._began


def _version(server: Server) -> str:
    told = server.info("server")
    return f"Valkey {told['valkey_version']}" if "valkey_version" in told else f"Redis {told['redis_version']}"


def _unfinished(counts: Counts) -> int:
    return counts.waiting + counts.running + counts.outbox


def _server(order: Order) -> Server:
    binary = redis_binary() if order.server == "redis7" else valkey_binary()
    if binary is None:
        raise SystemExit("redis-server is not on PATH: install it, or use --server valkey")
    fsync: Literal["always", "everysec"] = "always" if order.durability == "fsync" else "everysec"
    return Server(binary, appendonly=order.durability != "memory", appendfsync=fsync)


# -- the account -------------------------------------------------------------------------------------


def _print_head(order: Order) -> None:
    kills = "no faults" if order.fault_free else f"{order.worker_kills} worker kills, {order.server_kills} server kills"
    print(f"seed {order.seed}: repeat the load and the plan of faults with --seed {order.seed}")
    print(
        f"{order.jobs:,} jobs in {order.load_seconds:.0f} s ({order.rate:,.0f} a second), {kills}; durability "
        f"{order.durability}, {order.workers} workers, leases of {order.lease:g} s",
        flush=True,
    )


def _print_outcome(outcome: Outcome, version: str) -> None:
    print(f"\nPython {platform.python_version()}, windlass {windlass.__version__}, {version}, {os.cpu_count()} cores")
    print("seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in outcome.seconds.items()))
    print(f"jobs sent: {outcome.sent:,}; worker kills: {outcome.worker_kills}; server kills: {outcome.server_kills}")
    print(f"processor time: {outcome.cpu:.0f} s, {outcome.cpu / max(1, outcome.sent) * 1e6:,.0f} µs per job")
    if outcome.faults:
        print("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(outcome.faults.items())))
    for name, reason in sorted(outcome.left_out.items()):
        print(f"not available here: {name} ({reason})")
    size = sum(file.stat().st_size for file in outcome.folder.iterdir())
    print(f"log: {size / 1e6:.1f} MB, {size / max(1, outcome.sent):.0f} bytes per job")
    for error in outcome.errors:
        print(f"error in the run itself: {error}")
    for name, code in outcome.codes.items():
        if code:
            print(f"worker {name} exited with code {code} after SIGTERM")
    if not outcome.drained:
        print("the queues did not drain: jobs remained at the time limit")


def _arguments(given: Sequence[str] | None, order: Order, prog: str) -> Order:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run jobs on real workers and a real server while processes are killed, stopped and cut off.",
    )

    def number(name: str, kind: type[int] | type[float], about: str) -> None:
        default = getattr(order, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{about} (default {default:,})")

    number("jobs", int, "number of jobs")
    number("minutes", float, "total duration; most of it is the load")
    number(
        "worker_kills",
        int,
        "SIGKILLs of worker processes: a child, the runner, the forkserver, the supervisor, or all",
    )
    number("server_kills", int, "SIGKILLs of the server")
    number("workers", int, "number of workers")
    number("producers", int, "number of producers")
    number("lease", float, "lease time of the workers, in seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="random seed (default: random)")
    parser.add_argument("--durability", choices=get_args(Level), default=order.durability, help="(default %(default)s)")
    parser.add_argument("--server", choices=get_args(Make), default=order.server, help="(default %(default)s)")
    parser.add_argument("--fault-free", action="store_true", help="inject no faults; the report must be clean")
    parser.add_argument(
        "--no-tap", dest="tapped", action="store_false", help="write no event log, to measure what the log costs"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep log and output in this folder; by default they are kept only if the run fails",
    )
    return replace(order, **vars(parser.parse_args(given)))


def main(given: Sequence[str] | None = None, order: Order = DEFAULT, prog: str = "python -m chaos") -> int:
    """Run, check and print the report; returns 1 if anything is wrong."""
    order = _arguments(given, order, prog)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # broken connections are expected here
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that cleanup runs
    folder = order.keep or Path(tempfile.mkdtemp(prefix="windlass-chaos-"))
    _print_head(order)
    run = Run(order, folder)
    outcome = run.go()
    _print_outcome(outcome, run.version)
    fine = outcome.fine
    if order.tapped:
        began = time.monotonic()
        report = check(outcome.folder)
        print(f"\n{report.text()}\nchecked in {time.monotonic() - began:.1f} s")
        fine = fine and report.ok
    if fine and order.keep is None:
        shutil.rmtree(folder)
    else:
        print(f"log and output of all processes: {folder}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
