"""The schedule of faults, and its execution.

A plan is a random list of steps: one seed, one plan. It consists of packages: one to three kinds of faults are active
for ten to thirty seconds, some of them repeatedly, then nothing for a while, so that a quarter of the time is calm.
Problems that appear only after a fault show then.

    python -m chaos.nemesis.mix --seed 7 --seconds 120      prints the plan of a seed
"""

from __future__ import annotations

import argparse
import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from tests.support.proxy import FaultProxy
from tests.support.server import Server

from chaos.clock import ServerClock
from chaos.nemesis.clock import JUMPS, JumpClock
from chaos.nemesis.disk import FailingFsync, FailingWrite, FullDisk, SlowDisk, SmallDisk, StalledFsync
from chaos.nemesis.fault import Detail, Fault
from chaos.nemesis.network import Namespace, Partition
from chaos.nemesis.processes import Deploy, Kill, Part, Replace, Stop, Victim
from chaos.nemesis.proxying import HEAVY, LIGHT, Disconnect, LineDown, Lossy
from chaos.nemesis.server import (
    Backup,
    FlushAll,
    FlushScripts,
    FreezeServer,
    FullMemory,
    KillClients,
    KillServer,
    RestoreBackup,
    RewriteLog,
    StallServer,
)

Chance = random.Random
Parameters = dict[str, Any]
Note = Callable[[str, str, Detail], None]
"""Receives an event (`fault_begin`, `fault_end`, `fault_error`), the name of the fault, and details for the log."""

MAX_AT_ONCE = 3
MIN_PACKAGE_S = 1.0  # seconds; shorter packages are dropped


@dataclass
class Targets:
    """The parts of a run that faults may hit. A missing part excludes its faults from the plan."""

    server: Server | None = None
    workers: Callable[[], Sequence[Victim]] | None = None
    """Returns the current workers."""
    replace: Replace | None = None
    """Starts a new worker in place of one that was killed or stopped. It is called in the nemesis thread, which ends
    before the workers do: a worker that is tied to its starting thread must be started in another one."""
    proxies: Sequence[FaultProxy] = ()
    namespaces: Sequence[Namespace] = ()
    clock: ServerClock | None = None
    disk: SmallDisk | None = None
    backup: Backup | None = None


class Step(NamedTuple):
    """One fault of a plan: start in seconds, kind, parameters, and duration."""

    at: float
    fault: str
    parameters: Parameters
    duration: float


# -- the kinds ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of fault, as plans use it."""

    name: str
    fault: type[Fault]
    on: Literal["server", "workers", "proxies", "namespaces", "clock", "disk", "backup"]
    make: Callable[[Any, Targets, Parameters], Fault]
    """Builds the fault from its target (one of several is chosen), the other targets and the parameters."""
    draw: Callable[[Chance], Parameters] = field(default=lambda chance: {})
    lasts: tuple[float, float] | None = None
    """Minimum and maximum seconds; None: as long as its package."""
    leases: bool = False
    """`lasts` counts leases instead of seconds: it matters whether a lease expires."""
    every: tuple[float, float] | None = None
    """Seconds between repetitions in a package; None: once."""
    alone: bool = False
    """Excludes other kinds with this name: two faults on the same server would end each other."""
    loses: bool = False
    """It loses data. Planned only if requested by name."""


def _kill(part: Part, every: tuple[float, float]) -> Kind:
    return Kind(
        f"kill {part}",
        Kill,
        "workers",
        lambda worker, targets, told: Kill(worker, part, which=told["who"], replace=targets.replace),
        every=every,
        lasts=(0.0, 0.3),
    )


def _stop(part: Part) -> Kind:
    return Kind(
        f"stop {part}",
        Stop,
        "workers",
        lambda worker, targets, told: Stop(worker, part, which=told["who"]),
        lasts=(0.3, 2.5),
        leases=True,
        every=(4.0, 8.0),
    )


def _rounded(low: float, high: float) -> Callable[[Chance], float]:
    return lambda chance: round(chance.uniform(low, high), 3)


def _seeded(chance: Chance) -> Parameters:
    return {"seed": chance.randrange(1 << 32)}


def _number(name: str, low: float, high: float) -> Callable[[Chance], Parameters]:
    draw = _rounded(low, high)
    return lambda chance: {name: draw(chance)}


def _jump(chance: Chance) -> Parameters:
    return {"seconds": chance.choice(JUMPS)}


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        _kill("child", (0.5, 2.0)),
        _kill("runner", (1.0, 3.0)),
        _kill("forkserver", (2.0, 5.0)),
        _kill("supervisor", (2.0, 5.0)),
        _kill("worker", (2.0, 5.0)),
        _stop("child"),
        _stop("runner"),
        _stop("supervisor"),
        _stop("worker"),
        Kind(
            "deploy",
            Deploy,
            "workers",
            lambda worker, targets, told: Deploy(worker, replace=targets.replace),
            lasts=(0.5, 2.0),
            every=(4.0, 8.0),
        ),
        Kind(
            "partition",
            Partition,
            "namespaces",
            lambda namespace, targets, told: Partition(namespace),
            lasts=(0.3, 2.5),
            leases=True,
            every=(4.0, 8.0),
        ),
        Kind(
            "lossy line",
            Lossy,
            "proxies",
            lambda proxy, targets, told: Lossy(proxy, LIGHT, told["seed"]),
            _seeded,
        ),
        Kind(
            "very lossy line",
            Lossy,
            "proxies",
            lambda proxy, targets, told: Lossy(proxy, HEAVY, told["seed"]),
            _seeded,
            lasts=(2.0, 6.0),
        ),
        Kind(
            "disconnect",
            Disconnect,
            "proxies",
            lambda proxy, targets, told: Disconnect(proxy),
            lasts=(0.0, 0.0),
            every=(0.5, 3.0),
        ),
        Kind(
            "line down",
            LineDown,
            "proxies",
            lambda proxy, targets, told: LineDown(proxy),
            lasts=(0.1, 3.0),
            every=(3.0, 8.0),
        ),
        Kind(
            "kill server",
            KillServer,
            "server",
            lambda server, targets, told: KillServer(server),
            lasts=(0.0, 1.0),
            every=(4.0, 10.0),
            alone=True,
        ),
        Kind(
            "freeze server",
            FreezeServer,
            "server",
            lambda server, targets, told: FreezeServer(server),
            lasts=(0.2, 2.0),
            leases=True,
            every=(5.0, 10.0),
            alone=True,
        ),
        Kind(
            "stall server",
            StallServer,
            "server",
            lambda server, targets, told: StallServer(server),
            lasts=(0.2, 2.0),
            every=(3.0, 8.0),
            alone=True,
        ),
        Kind(
            "flush scripts",
            FlushScripts,
            "server",
            lambda server, targets, told: FlushScripts(server, told["every"]),
            _number("every", 0.05, 0.5),
        ),
        Kind(
            "kill clients",
            KillClients,
            "server",
            lambda server, targets, told: KillClients(server, told["every"]),
            _number("every", 0.3, 2.0),
        ),
        Kind(
            "rewrite log",
            RewriteLog,
            "server",
            lambda server, targets, told: RewriteLog(server, told["every"]),
            _number("every", 0.3, 2.0),
        ),
        Kind(
            "full memory",
            FullMemory,
            "server",
            lambda server, targets, told: FullMemory(server),
            lasts=(1.0, 5.0),
        ),
        Kind(
            "stalled fsync",
            StalledFsync,
            "server",
            lambda server, targets, told: StalledFsync(server, told["seconds"]),
            _number("seconds", 0.1, 1.8),
            lasts=(2.0, 6.0),
            alone=True,
        ),
        Kind(
            "failing fsync",
            FailingFsync,
            "server",
            lambda server, targets, told: FailingFsync(server),
            lasts=(0.5, 3.0),
            alone=True,
        ),
        Kind(
            "failing write",
            FailingWrite,
            "server",
            lambda server, targets, told: FailingWrite(server),
            lasts=(0.5, 3.0),
            alone=True,
        ),
        Kind(
            "slow disk",
            SlowDisk,
            "server",
            lambda server, targets, told: SlowDisk(server, told["milliseconds"]),
            _number("milliseconds", 1.0, 30.0),
            lasts=(2.0, 10.0),
            alone=True,
        ),
        Kind(
            "full disk",
            FullDisk,
            "disk",
            lambda disk, targets, told: FullDisk(_server(targets), disk),
            lasts=(0.5, 3.0),
            alone=True,
        ),
        Kind(
            "flush all",
            FlushAll,
            "server",
            lambda server, targets, told: FlushAll(server),
            lasts=(0.0, 0.0),
            alone=True,
            loses=True,
        ),
        Kind(
            "restore backup",
            RestoreBackup,
            "backup",
            lambda backup, targets, told: RestoreBackup(backup),
            lasts=(0.0, 0.0),
            alone=True,
            loses=True,
        ),
        Kind(
            "clock jump",
            JumpClock,
            "clock",
            lambda clock, targets, told: JumpClock(clock, told["seconds"]),
            _jump,
            lasts=(1.0, 8.0),
            every=(8.0, 12.0),
        ),
    )
}


def _server(targets: Targets) -> Server:
    if targets.server is None:
        raise LookupError("the full-disk fault needs the server that uses the disk")
    return targets.server


def possible(targets: Targets, *, losing: bool = False) -> tuple[list[str], dict[str, str]]:
    """The kinds that can be planned for these targets on this machine; and for the others, why not.

    Kinds that lose data are left out unless `losing`.
    """
    can: list[str] = []
    cannot: dict[str, str] = {}
    for name, kind in KINDS.items():
        if kind.loses and not losing:
            cannot[name] = "loses data"
        elif not getattr(targets, kind.on):
            cannot[name] = f"no {kind.on} in this run"
        elif (reason := kind.fault.available()) is not None:
            cannot[name] = reason
        else:
            can.append(name)
    return can, cannot


# -- the plan ----------------------------------------------------------------------------------------


def plan(
    seed: int,
    seconds: float,
    kinds: Iterable[str],
    *,
    lease: float = 15.0,
    package: tuple[float, float] = (10.0, 30.0),
    calm: float = 0.25,
) -> list[Step]:
    """The faults of a run of `seconds` seconds, in order of time. Equal arguments give equal plans.

    `lease` is the lease time of the workers, and `calm` the share of time without faults.
    """
    chance = Chance(seed)
    names = sorted(set(kinds))
    steps: list[Step] = []
    at = 0.0
    while names:
        length = min(chance.uniform(*package), (seconds - at) * (1 - calm))
        if length < MIN_PACKAGE_S:
            break
        for kind in _package(chance, names):
            steps += _steps(chance, kind, at, at + length, lease)
        at += length / (1 - calm)
    return sorted(steps, key=lambda step: step.at)


def _package(chance: Chance, names: list[str]) -> list[Kind]:
    """One to three compatible kinds."""
    chosen: list[Kind] = []
    wanted = chance.randint(1, MAX_AT_ONCE)
    for name in chance.sample(names, len(names)):
        kind = KINDS[name]
        if len(chosen) < wanted and not (kind.alone and any(other.alone for other in chosen)):
            chosen.append(kind)
    return chosen


def _steps(chance: Chance, kind: Kind, begin: float, end: float, lease: float) -> list[Step]:
    """The steps of a kind in one package; all end with the package."""
    steps = []
    at = begin + (chance.uniform(0.0, min(kind.every)) if kind.every else 0.0)
    while at < end:
        parameters = {**kind.draw(chance), "who": chance.randrange(1 << 16)}
        unit = lease if kind.leases else 1.0
        duration = chance.uniform(*kind.lasts) * unit if kind.lasts else end - at
        duration = min(duration, end - at)
        steps.append(Step(round(at, 3), kind.name, parameters, round(duration, 3)))
        if kind.every is None:
            break
        at += max(chance.uniform(*kind.every), duration)
    return steps


# -- execution -----------------------------------------------------------------------------------------


class Nemesis:
    """Executes a plan step by step in a thread of its own. As a context manager it ends every fault on exit."""

    def __init__(self, plan: Sequence[Step], targets: Targets, note: Note) -> None:
        self.plan = list(plan)
        self.begun: Counter[str] = Counter()
        """Number of faults of each kind."""
        self.errors: list[BaseException] = []
        """Errors of the faults themselves."""
        self._targets = targets
        self._note = note
        self._under_way: dict[int, tuple[str, Fault]] = {}
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._carry_out, name="nemesis", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the clock of the plan."""
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the plan is done; returns whether it is."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Begin no more faults, and end the active ones."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(120.0)
        self.heal_all()

    def heal_all(self) -> None:
        """End every fault, the last one first. An error in one does not stop the others."""
        for number in reversed(list(self._under_way)):
            self._end(number)

    def _carry_out(self) -> None:
        began = time.monotonic()
        # At the same moment, ends precede begins, and the most recently begun fault ends first.
        events = [(step.at, 1, number) for number, step in enumerate(self.plan)]
        heapq.heapify(events)
        try:
            while events:
                at, is_begin, number = heapq.heappop(events)
                if self._ending.wait(max(0.0, began + at - time.monotonic())):
                    return
                if is_begin:
                    self._begin(number)
                    heapq.heappush(events, (round(at + self.plan[number].duration, 2), 0, -number))
                else:
                    self._end(-number)
        finally:
            self.heal_all()

    def _begin(self, number: int) -> None:
        step = self.plan[number]
        since = time.monotonic()
        try:
            fault = self._make(step)
            if fault is None:
                return  # no target is present
            self._under_way[number] = step.fault, fault
            detail = fault.begin()
        except Exception as error:
            self._complain(step.fault, "begin", error)
            self._end(number)
            return
        self.begun[step.fault] += 1
        self._tell("fault_begin", step.fault, since, {"step": number, **step.parameters, **detail})

    def _end(self, number: int) -> None:
        with self._lock:
            name, fault = self._under_way.pop(number, ("", None))
        if fault is None:
            return
        since = time.monotonic()
        try:
            detail = fault.end()
        except Exception as error:
            self._complain(name, "end", error)
            return
        self._tell("fault_end", name, since, {"step": number, **detail})

    def _make(self, step: Step) -> Fault | None:
        kind = KINDS[step.fault]
        on: Any = getattr(self._targets, kind.on)
        if kind.on == "workers" and on is not None:
            on = on()
        if isinstance(on, Sequence):
            on = on[step.parameters["who"] % len(on)] if on else None
        return None if on is None else kind.make(on, self._targets, step.parameters)

    def _complain(self, name: str, when: str, error: Exception) -> None:
        self.errors.append(error)
        self._tell("fault_error", name, time.monotonic(), {"when": when, "error": repr(error)})

    def _tell(self, what: str, name: str, since: float, detail: Detail) -> None:
        self._note(what, name, {"at": since, "done": time.monotonic(), **detail})


def main() -> int:
    """Print a plan."""
    parser = argparse.ArgumentParser(prog="python -m chaos.nemesis.mix", description="Print the plan of a seed.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--lease", type=float, default=15.0)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="use only this kind; repeatable")
    chosen = parser.parse_args()
    kinds = chosen.kind or [name for name, kind in KINDS.items() if not kind.loses]
    print(f"seed {chosen.seed}")
    for step in plan(chosen.seed, chosen.seconds, kinds, lease=chosen.lease):
        print(f"{step.at:8.2f} s  {step.fault:16} for {step.duration:6.2f} s  {step.parameters}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
