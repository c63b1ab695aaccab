"""The workloads: each yields one or more figures of one contestant, each with a few numbers."""

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
EXTRAS = ("results", "progress", "signing", "encryption")  # optional features with a cost


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work in one sample."""

    enqueue_seconds: float
    work_seconds: float
    latency_jobs: int
    queued: int
    deep: int
    idle_seconds: float
    idle_workers: int = 200
    pause: float = 0.025

    def scaled(self, scale: float) -> Sizes:
        """The same, scaled."""
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
    """A peer that can be started, the servers, and the sizes."""

    peer: Peer
    environment: Environment
    server: BenchServer
    durable: BenchServer
    folder: Path
    sizes: Sizes
    spent: list[float] = field(default_factory=list)

    @contextmanager
    def drive(self, role: str, orders: Any, **variables: str) -> Iterator[Drive]:
        """Run its driver in a role for the length of the block."""
        with Drive(self.environment, role, orders, self.folder, {"BENCH_URL": self.server.url, **variables}) as drive:
            yield drive
        self.spent.append(drive.spent)

    def clear(self) -> None:
        """Delete all measured data."""
        for server in (self.server, self.durable):
            server.command("FLUSHALL", "SYNC")

    def fastest_mode(self) -> str:
        return next(mode for mode in ("bulk", "concurrent", "blocking") if mode in self.peer.modes)

    def jobs(self, pace: float) -> int:
        return max(2 * WARM_UP, round(pace * self.sizes.work_seconds))


def order(
    mode: str, *, task: str = "noop", jobs: int | None = None, seconds: float | None = None, pause: float = 0
) -> dict[str, Any]:
    """A producer's order: until so many jobs are sent, or for so many seconds."""
    return {"mode": mode, "task": task, "jobs": jobs, "seconds": seconds, "pause": pause}


def per_job(jobs: int, cpu: float | None, used: Usage) -> Figure:
    """The cost of one job."""
    figure = {
        "server_us": 1e6 * used.cpu / jobs,
        "commands": sum(calls for calls, _ in used.commands.values()) / jobs,
    }
    return figure if cpu is None else {**figure, "client_us": 1e6 * cpu / jobs}


# -- enqueueing ----------------------------------------------------------------------------------


def enqueue(who: Contestant) -> Figures:
    """One by one blocking, one by one awaited, 100 awaits at a time, and in bulk: each mode that the peer has."""
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
    """Enqueue the jobs (including those of the warm-up); returns bytes of server memory per job."""
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
    """A queue full of no-op jobs, one worker process; and the memory of one queued job."""
    jobs = who.jobs(who.peer.pace)
    memory = fill(who, jobs)
    return {"drain": work(who, jobs), "memory": {"bytes": memory}}


def work(who: Contestant, jobs: int, task: str = "noop", concurrency: int = 100, **variables: str) -> Figure:
    """The rate from the first to the last of the queued jobs."""
    given = {"BENCH_JOBS": str(jobs), **variables}
    with who.drive("work", {"task": task, "concurrency": concurrency}, **given) as drive:
        first = drive.expect("first")
        usage, cpu = who.server.usage(), drive.cpu()
        last = _last_step(drive, first["at"] + 3 * who.sizes.work_seconds)
        used = who.server.usage().since(usage)
        spent = last["cpu"] - first["cpu"] if cpu is None else (drive.cpu() or cpu) - cpu
    return {"rate": (last["count"] - 1) / (last["at"] - first["at"]), **per_job(last["count"], spent, used)}


def _last_step(drive: Drive, until: float) -> dict[str, Any]:
    """The last report: when all jobs were done, or after enough time to show the rate."""
    while True:
        step = drive.expect("step")
        if step["last"] or step["at"] > until:
            return step


def naps(concurrency: int) -> Callable[[Contestant], Figures]:
    """Jobs that sleep for 10 ms, `concurrency` at a time; also as a share of the theoretical maximum."""

    def measured(who: Contestant) -> Figures:
        ideal = concurrency / NAP
        jobs = max(concurrency, who.jobs(min(who.peer.pace, ideal)))
        fill(who, jobs, "nap")
        figures = {f"naps_{concurrency}": work(who, jobs, "nap", concurrency)}
        if who.peer.name == WINDLASS:  # the limit of any worker on this event loop
            figures[f"sleeps_{concurrency}"] = {"rate": _without(who, "bench.loop_alone", concurrency)[0]}
        for figure in figures.values():
            figure["of_ideal"] = figure["rate"] / ideal
        return figures

    return measured


def _without(who: Contestant, module: str, number: int) -> list[float]:
    """The output of a program without Windlass, in the same environment."""
    environment = {**os.environ, **who.environment.variables, "BENCH_URL": who.server.url}
    command = [who.environment.command[0], "-m", module, str(number)]
    return [float(each) for each in subprocess.check_output(command, env=environment, cwd=ROOT, timeout=60).split()]


def ceiling(who: Contestant) -> Figures:
    """The drain, and a prototype almost without guarantees."""
    jobs = who.jobs(who.peer.pace)
    fill(who, jobs)
    ours = work(who, jobs)
    who.server.command("FLUSHALL", "SYNC")
    rate, cpu = _without(who, "bench.prototype", jobs)
    beside = {**ours, "of_prototype": ours["rate"] / rate}
    return {"prototype": {"rate": rate, "client_us": cpu}, "beside_prototype": beside}


def executor(task: str, kind: str) -> Callable[[Contestant], Figures]:
    """No-op jobs in threads or in processes."""

    def measured(who: Contestant) -> Figures:
        jobs = who.jobs(8_000)
        fill(who, jobs, task, BENCH_KIND=kind)
        # Threads of one process must not share the file: two may write before either reads its position.
        shared = str(_fresh(who.folder)) if kind == "process" else ""
        return {task: work(who, jobs, task, BENCH_KIND=kind, BENCH_SHARED=shared)}

    return measured


def _fresh(folder: Path) -> Path:
    path = folder / "count"
    path.unlink(missing_ok=True)
    return path


def latency(who: Contestant) -> Figures:
    """From before the enqueue to the start of the job, on an idle worker."""
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
    """A drain of few jobs, and of a part of many.

    The part takes seconds: just after a fill the server may still be rehashing a grown hash, a little with each
    command, so the first jobs pay for the whole fill.
    """
    few, many = who.sizes.queued, who.sizes.deep
    fill(who, few)
    shallow = work(who, few)
    fill(who, many)
    deep = work(who, many // 5)
    return {"shallow": shallow, "deep": {**deep, "of_shallow": deep["rate"] / shallow["rate"]}}


def round_trip(who: Contestant) -> Figures:
    """The drain through a proxy with a delay of 1 ms each way, and one without."""
    jobs = who.jobs(who.peer.pace)
    fill(who, jobs)
    near = work(who, jobs)
    fill(who, jobs)
    with Proxy(who.server.port, 0.001) as proxy:
        far = work(who, jobs, BENCH_URL=f"redis://127.0.0.1:{proxy.port}/0")
    return {"near": near, "far": {**far, "of_near": far["rate"] / near["rate"]}}


def fsync(who: Contestant) -> Figures:
    """Bulk enqueue and drain on a server that syncs each write to disk, and on one that does not."""
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
    """The drain with each optional feature, and without."""
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
    """The layout of redis-work-queue: Windlass's worker on it, and the published client."""
    jobs = who.jobs(who.peer.pace / 4 if who.peer.name == WINDLASS else who.peer.pace)
    fill(who, jobs, BENCH_LAYOUT="workqueue")
    return {"layout_workqueue": work(who, jobs, BENCH_LAYOUT="workqueue")}


# -- nothing to do -------------------------------------------------------------------------------


def idle(who: Contestant) -> Figures:
    """The server load of workers without jobs; for Windlass also of 200 workers."""
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
                drive.expect("picked")  # it is up, and idle in a moment
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
    """All peers take part, or only the named ones; in a quick run perhaps fewer."""

    name: str
    title: str
    measure: Callable[[Contestant], Figures]
    only: tuple[str, ...] = ()
    only_if_quick: tuple[str, ...] = ()

    def who(self, *, quick: bool) -> tuple[str, ...]:
        """The names of the peers that take part; empty means all."""
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
