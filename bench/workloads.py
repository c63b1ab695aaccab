"""What is measured: each workload gives one or more figures of one contestant, each a few numbers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.drive import Drive
from bench.environments import ROOT, Environment
from bench.peers import PEERS, WINDLASS, Peer
from bench.peers.driving import NAP, WARM_UP
from bench.proxy import Proxy
from bench.server import BenchServer, Usage

Figure = dict[str, float]
Figures = dict[str, Figure]
EXTRAS = ("results", "progress", "signing", "encryption")  # what costs something, and can be asked for


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done in one sample."""

    enqueue_seconds: float
    work_seconds: float
    latency_jobs: int
    queued: int
    deep: int
    idle_seconds: float
    idle_workers: int = 200
    pause: float = 0.025

    def scaled(self, scale: float) -> Sizes:
        """The same, larger or smaller."""
        return replace(
            self,
            enqueue_seconds=self.enqueue_seconds * scale,
            work_seconds=self.work_seconds * scale,
            latency_jobs=max(10, round(self.latency_jobs * scale)),
            queued=max(1000, round(self.queued * scale)),
            deep=max(2000, round(self.deep * scale)),
            idle_seconds=self.idle_seconds * scale,
        )


@dataclass(frozen=True, slots=True)
class Contestant:
    """A peer that can be started, the servers, and how much to do."""

    peer: Peer
    environment: Environment
    server: BenchServer
    durable: BenchServer
    folder: Path
    sizes: Sizes
    spent: list[float] = field(default_factory=list)

    @contextmanager
    def drive(self, role: str, orders: Any, **variables: str) -> Iterator[Drive]:
        """Its driver in a role, for a while."""
        with Drive(self.environment, role, orders, self.folder, {"BENCH_URL": self.server.url, **variables}) as drive:
            yield drive
        self.spent.append(drive.spent)

    def clear(self) -> None:
        """Leave nothing of what was measured."""
        for server in (self.server, self.durable):
            server.command("FLUSHALL", "SYNC")

    def fastest_mode(self) -> str:
        return next(mode for mode in ("bulk", "concurrent", "blocking") if mode in self.peer.modes)

    def jobs(self, pace: float) -> int:
        return max(2 * WARM_UP, round(pace * self.sizes.work_seconds))


def order(
    mode: str, *, task: str = "noop", jobs: int | None = None, seconds: float | None = None, pause: float = 0
) -> dict[str, Any]:
    """What a producer is to do: until so many jobs are sent, or for so long."""
    return {"mode": mode, "task": task, "jobs": jobs, "seconds": seconds, "pause": pause}


def per_job(jobs: int, cpu: float | None, used: Usage) -> Figure:
    """What one job cost."""
    figure = {
        "server_us": 1e6 * used.cpu / jobs,
        "commands": sum(calls for calls, _ in used.commands.values()) / jobs,
    }
    return figure if cpu is None else {**figure, "client_us": 1e6 * cpu / jobs}


# -- enqueueing ----------------------------------------------------------------------------------


def enqueue(who: Contestant) -> Figures:
    """One by one blocking, one by one awaited, 100 awaits at a time, and in bulk: whatever it can do."""
    orders = [order(mode, seconds=who.sizes.enqueue_seconds) for mode in who.peer.modes]
    figures = {}
    with who.drive("enqueue", orders) as drive:
        for mode in who.peer.modes:
            figures[f"enqueue_{mode}"] = _enqueue(drive, who.server)
    return figures


def _enqueue(drive: Drive, server: BenchServer) -> Figure:
    drive.expect("ready")
    server.command("FLUSHALL", "SYNC")
    before = server.usage()
    drive.go()
    done = drive.expect("done")
    used = server.usage().since(before)
    drive.go()
    return {"rate": done["jobs"] / done["seconds"], **per_job(done["jobs"], done["cpu"], used)}


def fill(who: Contestant, jobs: int, task: str = "noop", **variables: str) -> float:
    """Enqueue so many jobs (and those of the warm-up, which are among them); bytes of server memory for one."""
    server = who.server
    server.command("FLUSHALL", "SYNC")
    server.wait_alone()
    before = server.memory()
    with who.drive("enqueue", [order(who.fastest_mode(), task=task, jobs=jobs - WARM_UP)], **variables) as drive:
        drive.expect("ready")
        drive.go()
        drive.expect("done", timeout=300)
    server.wait_alone()
    return (server.memory() - before) / jobs


# -- working -------------------------------------------------------------------------------------


def drain(who: Contestant) -> Figures:
    """A queue full of jobs that do nothing, one worker process; and the memory that one queued job takes."""
    jobs = who.jobs(who.peer.pace)
    memory = fill(who, jobs)
    return {"drain": work(who, jobs), "memory": {"bytes": memory}}


def work(who: Contestant, jobs: int, task: str = "noop", concurrency: int = 100, **variables: str) -> Figure:
    """The rate from the first job to the last of so many, which are there already."""
    given = {"BENCH_JOBS": str(jobs), **variables}
    with who.drive("work", {"task": task, "concurrency": concurrency}, **given) as drive:
        first = drive.expect("first")
        usage, cpu = who.server.usage(), drive.cpu()
        last = _last_step(drive, first["at"] + 3 * who.sizes.work_seconds)
        used = who.server.usage().since(usage)
        spent = last["cpu"] - first["cpu"] if cpu is None else (drive.cpu() or cpu) - cpu
    return {"rate": (last["count"] - 1) / (last["at"] - first["at"]), **per_job(last["count"], spent, used)}


def _last_step(drive: Drive, until: float) -> dict[str, Any]:
    """What it reported when all were done, or when it had enough time to show its rate."""
    while True:
        step = drive.expect("step")
        if step["last"] or step["at"] > until:
            return step


def naps(concurrency: int) -> Callable[[Contestant], Figures]:
    """Jobs that sleep for 10 ms, so many at a time; also as a share of what that allows at best."""

    def measured(who: Contestant) -> Figures:
        ideal = concurrency / NAP
        jobs = max(concurrency, who.jobs(min(who.peer.pace, ideal)))
        fill(who, jobs, "nap")
        figures = {f"naps_{concurrency}": work(who, jobs, "nap", concurrency)}
        if who.peer.name == WINDLASS:  # the limit for all who run on such a loop
            figures[f"sleeps_{concurrency}"] = {"rate": _without(who, "bench.loop_alone", concurrency)[0]}
        for figure in figures.values():
            figure["of_ideal"] = figure["rate"] / ideal
        return figures

    return measured


def _without(who: Contestant, module: str, number: int) -> list[float]:
    """What a program without Windlass prints, in the same environment."""
    environment = {**os.environ, **who.environment.variables, "BENCH_URL": who.server.url}
    command = [who.environment.command[0], "-m", module, str(number)]
    return [float(each) for each in subprocess.check_output(command, env=environment, cwd=ROOT, timeout=60).split()]


def ceiling(who: Contestant) -> Figures:
    """The drain beside one that promises next to nothing."""
    jobs = who.jobs(who.peer.pace)
    fill(who, jobs)
    ours = work(who, jobs)
    who.server.command("FLUSHALL", "SYNC")
    rate, cpu = _without(who, "bench.prototype", jobs)
    beside = {**ours, "of_prototype": ours["rate"] / rate}
    return {"prototype": {"rate": rate, "client_us": cpu}, "beside_prototype": beside}


def executor(task: str, kind: str) -> Callable[[Contestant], Figures]:
    """Jobs that do nothing, in threads or in processes."""

    def measured(who: Contestant) -> Figures:
        jobs = who.jobs(8_000)
        fill(who, jobs, task, BENCH_KIND=kind)
        # Threads of one process must not: two may write before either asks where it stands.
        shared = str(_fresh(who.folder)) if kind == "process" else ""
        return {task: work(who, jobs, task, BENCH_KIND=kind, BENCH_SHARED=shared)}

    return measured


def _fresh(folder: Path) -> Path:
    path = folder / "count"
    path.unlink(missing_ok=True)
    return path


def latency(who: Contestant) -> Figures:
    """From before the enqueue to the begin of the job, on a worker that has nothing else to do."""
    jobs, mode = who.sizes.latency_jobs, "blocking" if "blocking" in who.peer.modes else "awaited"
    who.server.command("FLUSHALL", "SYNC")
    with who.drive("work", {"task": "noop", "concurrency": 100}) as worker:
        with who.drive("enqueue", [order(mode, jobs=jobs, pause=who.sizes.pause)]) as producer:
            producer.expect("ready")
            for _ in range(WARM_UP):
                worker.expect("picked")
            producer.go()
            sent = producer.expect("done")["sent"]
        picked: dict[int, float] = {}
        while len(picked) < jobs:
            said = worker.expect("picked")
            picked[said["number"]] = said["at"]
    waits = sorted(1000 * (picked[number] - sent[number]) for number in range(jobs))
    parts = quantiles(waits, n=100, method="inclusive")
    return {"latency": {"p50": parts[49], "p95": parts[94], "p99": parts[98], "max": waits[-1]}}


def depth(who: Contestant) -> Figures:
    """All of few jobs, and a part of many with the rest behind it.

    A part that takes seconds: just after a fill the server may still be about to move a hash that has grown, a little
    with each command, and then the first jobs pay for what all of those before them did.
    """
    few, many = who.sizes.queued, who.sizes.deep
    fill(who, few)
    shallow = work(who, few)
    fill(who, many)
    deep = work(who, many // 5)
    return {"shallow": shallow, "deep": {**deep, "of_shallow": deep["rate"] / shallow["rate"]}}


def round_trip(who: Contestant) -> Figures:
    """The drain through a proxy that holds everything back for a millisecond each way, beside one without."""
    jobs = who.jobs(who.peer.pace)
    fill(who, jobs)
    near = work(who, jobs)
    fill(who, jobs)
    with Proxy(who.server.port, 0.001) as proxy:
        far = work(who, jobs, BENCH_URL=f"redis://127.0.0.1:{proxy.port}/0")
    return {"near": near, "far": {**far, "of_near": far["rate"] / near["rate"]}}


def fsync(who: Contestant) -> Figures:
    """Bulk enqueue and drain on a server that syncs each write to disk, beside one that does not."""
    figures: Figures = {}
    for name, server in (("memory_only", who.server), ("fsync", who.durable)):
        at = replace(who, server=server)
        with at.drive("enqueue", [order("bulk", seconds=who.sizes.enqueue_seconds)]) as drive:
            figures[f"{name}_bulk"] = _enqueue(drive, server)
        jobs = at.jobs(at.peer.pace)
        fill(at, jobs)
        figures[f"{name}_drain"] = work(at, jobs)
        server.command("FLUSHALL", "SYNC")
    for what in ("bulk", "drain"):
        figure = figures[f"fsync_{what}"]
        figure["of_none"] = figure["rate"] / figures[f"memory_only_{what}"]["rate"]
    return figures


def guarantees(who: Contestant) -> Figures:
    """The drain with what can be asked for beside it, and the plain one beside that."""
    jobs = who.jobs(who.peer.pace / 2)
    figures: Figures = {}
    for extra in ("", *EXTRAS):
        fill(who, jobs, BENCH_EXTRA=extra)
        figures[f"with_{extra}" if extra else "plain"] = work(who, jobs, BENCH_EXTRA=extra)
    for extra in EXTRAS:
        figure = figures[f"with_{extra}"]
        figure["of_plain"] = figure["rate"] / figures["plain"]["rate"]
    return figures


def layout(who: Contestant) -> Figures:
    """The layout of redis-work-queue: our worker on it, beside the published client."""
    jobs = who.jobs(who.peer.pace / 4 if who.peer.name == WINDLASS else who.peer.pace)
    fill(who, jobs, BENCH_LAYOUT="workqueue")
    return {"layout_workqueue": work(who, jobs, BENCH_LAYOUT="workqueue")}


# -- nothing to do -------------------------------------------------------------------------------


def idle(who: Contestant) -> Figures:
    """What a worker without jobs asks of the server; ours also 200 times over."""
    figures = {"idle_1": _idle(who, "work", {"task": "noop", "concurrency": 100})}
    if who.peer.name == WINDLASS:
        figures[f"idle_{who.sizes.idle_workers}"] = _idle(who, "idle", {"workers": who.sizes.idle_workers})
    return figures


def _idle(who: Contestant, role: str, orders: Any) -> Figure:
    server, seconds = who.server, who.sizes.idle_seconds
    server.command("FLUSHALL", "SYNC")
    with ExitStack() as stack:
        drive = stack.enter_context(who.drive(role, orders))
        if role == "work":
            with who.drive("enqueue", [order(who.fastest_mode(), jobs=1)]) as producer:
                producer.expect("ready")
                drive.expect("picked")  # it is up, and has nothing more to do in a moment
        else:
            drive.expect("ready", timeout=120)
        time.sleep(min(3.0, seconds))
        before = server.usage()
        time.sleep(seconds)
        used = server.usage().since(before)
    commands = sum(calls for calls, _ in used.commands.values())
    return {"commands_per_second": commands / seconds, "core_percent": 100 * used.cpu / seconds}


@dataclass(frozen=True, slots=True)
class Workload:
    """Everybody takes part in it, or only those who are named; in a quick run maybe fewer."""

    name: str
    title: str
    measure: Callable[[Contestant], Figures]
    only: tuple[str, ...] = ()
    only_if_quick: tuple[str, ...] = ()

    def who(self, *, quick: bool) -> tuple[str, ...]:
        """The names of those who take part; nobody's means everybody."""
        return self.only_if_quick or self.only if quick else self.only


OURS = (WINDLASS,)
COROUTINES = tuple(peer.name for peer in PEERS.values() if "awaited" in peer.modes and peer.name != WINDLASS)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("enqueue", "enqueue: blocking, awaited, 100 awaits, bulk", enqueue),
        Workload("drain", "no-op drain, and memory for one queued job", drain),
        Workload("naps", "10 ms jobs, 100 at a time", naps(100)),
        Workload("latency", "pick-up on an idle worker", latency),
        Workload("naps1000", "10 ms jobs, 1,000 at a time", naps(1000), (WINDLASS, *COROUTINES), OURS),
        Workload("threads", "no-op jobs in threads", executor("threaded", "thread"), OURS),
        Workload("processes", "no-op jobs in processes", executor("forked", "process"), OURS),
        Workload("ceiling", "the drain beside one that promises nothing", ceiling, OURS),
        Workload("depth", "a little and a lot queued", depth, OURS),
        Workload("roundtrip", "2 ms to the server and back", round_trip, OURS),
        Workload("fsync", "each write synced to disk", fsync, OURS),
        Workload("guarantees", "results, progress, signed and encrypted jobs", guarantees, OURS),
        Workload("layout", "redis-work-queue's layout beside its client", layout, (WINDLASS, "redis-work-queue")),
        Workload("idle", "workers without jobs, one and (Windlass) 200", idle, (), OURS),
    )
}
