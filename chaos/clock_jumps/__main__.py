"""Jump the clock under load, print the result, and fail if a promise was broken."""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.server import Server
from tests.support.waiting import wait_until

from chaos.clock import ServerClock
from chaos.clock_jumps.actors import QUEUE
from chaos.clock_jumps.judge import MAX_LEASE_LENGTHS, TOLERATED_SHARE, Findings, Jump, judge, read
from chaos.nemesis.clock import DAY, JUMPS, JumpClock
from chaos.nemesis.fault import lacking, refused
from windlass import Queue, Windlass

ROOT = Path(__file__).parent.parent.parent
LEASE_S = 2.0  # seconds
GAP_S = (3.0, 6.0)  # seconds between two jumps
POSTPONED_S = 60.0  # seconds; no job has a run time so far ahead
DRAIN_TIMEOUT_S = 60.0
MAX_OFFSET_S = 2 * DAY  # from the real time
OTHER_MACHINE = ("unshare", "--time")
"""A time namespace counts as another machine, because its uptime may differ (see boot_clock.py)."""


@dataclass(frozen=True)
class Orders:
    jumps: int = 40
    seed: int = 0
    gap: tuple[float, float] = GAP_S
    lease: float = LEASE_S
    machines: int = 1
    """Whether some programs run on another machine, whose uptime says nothing about this one's."""


@dataclass
class Result:
    orders: Orders
    jumps: list[Jump]
    machines: int
    findings: Findings
    waiting: int
    """Jobs that still wait at the end for a run time that a jump has postponed."""
    problems: list[str]
    seconds: float

    def faults(self) -> list[str]:
        """The problems found."""
        return [*self.problems, *self.findings.faults]

    def report(self) -> str:
        """The figures."""
        found = self.findings
        late = sorted(found.late)
        taken = sorted(found.taken_over)
        cut = sorted(found.cut_by_jump)
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(found.starts).items()))
        jumps = Counter(f"{jump.seconds / 3600:+g} h" for jump in self.jumps)
        lines = [
            f"seed {self.orders.seed}, lease {self.orders.lease:g} s, {self.seconds:.0f} s, machines: {self.machines}",
            f"jumps: {len(self.jumps)} ({', '.join(f'{name} {count}' for name, count in sorted(jumps.items()))})",
            f"jobs: {found.jobs} enqueued, {len(found.done)} done, {self.waiting} postponed by a jump",
            f"first starts: {sum(found.starts.values())} ({kinds}), early {len(found.early)}",
            f"late by p50 {_at(late, 0.5):.3f} s, p99 {_at(late, 0.99):.3f} s, max {_at(late, 1):.3f} s",
            f"leases: {found.leases}; taken over after their end {len(taken)}, in lengths of a lease "
            f"min {_at(taken, 0):.2f}, p50 {_at(taken, 0.5):.2f}, p99 {_at(taken, 0.99):.2f}, max {_at(taken, 1):.2f}",
            f"duplicates: {len(taken)}, of these explained by an expired lease "
            f"{len(taken) - len(cut) - len(found.forgiven) - len(found.too_short)}, by a jump that cut it short "
            f"{len(cut)} "
            f"(by {_at(cut, 1):.2f} s at most), slightly early {len(found.forgiven)}, "
            f"unexplained {len(found.too_short)}",
            f"leases beyond {MAX_LEASE_LENGTHS:g} lengths: {len(found.too_long)}; "
            f"lost although valid {len(found.lost_unduly)}; "
            f"done twice {len(found.done_twice)}",
        ]
        faults = self.faults()
        return "\n".join([*lines, *(f"WRONG: {fault}" for fault in faults[:50]), f"{len(faults)} faults"])


def _at(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def run(orders: Orders, folder: Path) -> Result:
    """Jump, reset the clock, drain, judge."""
    began = time.monotonic()
    with ServerClock() as clock, Server(env=clock.environment()) as server, Windlass(server.url) as app:
        queue = app.queue(QUEUE)
        queue.counts()
        queue.enqueue(b"", id="first")  # the queue learns the real time before the first jump
        queue.cancel("first")
        commands = _commands(orders.machines)
        actors = [_start(command, server.url, folder, orders, number) for number, command in enumerate(commands)]
        try:
            wait_until(lambda: queue.counts().running > 0, "the actors to work", timeout=30)
            jumps = _jump_about(orders, clock)
            problems = _drain(queue, actors)
        finally:
            for actor in actors:
                actor.communicate(timeout=60)
        problems += [f"an actor exited with {actor.returncode}" for actor in actors if actor.returncode]
        waiting = queue.counts().scheduled
        queue.purge()
    machines = len(set(commands))
    findings = judge(read(folder.glob("*.journal")), jumps, TOLERATED_SHARE if machines > 1 else 0.0)
    if len(findings.enqueued) != len(findings.done) + waiting:
        problems.append(f"{len(findings.enqueued) - len(findings.done) - waiting} jobs are lost or unfinished")
    return Result(orders, jumps, machines, findings, waiting, problems, time.monotonic() - began)


def _commands(machines: int) -> list[tuple[str, ...]]:
    """Two programs on this machine, and one that seems to be on another, if requested and possible."""
    elsewhere = lacking(OTHER_MACHINE[0], root=True) or refused(*OTHER_MACHINE, "true")
    return [(), (), OTHER_MACHINE] if machines > 1 and elsewhere is None else [(), ()]


def _start(command: tuple[str, ...], url: str, folder: Path, orders: Orders, number: int) -> subprocess.Popen[bytes]:
    journal = folder / f"{number}.journal"
    seed = f"{orders.seed} {number}"
    return subprocess.Popen(
        [*command, sys.executable, "-m", "chaos.clock_jumps.actors", url, str(journal), seed, str(orders.lease)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
    )


def _jump_about(orders: Orders, clock: ServerClock) -> list[Jump]:
    """The random jumps, each relative to the last; the final one resets the clock."""
    chance = random.Random(orders.seed)
    made: list[Jump] = []
    for _ in range(orders.jumps):
        time.sleep(chance.uniform(*orders.gap))
        off = sum(jump.seconds for jump in made)
        seconds = chance.choice([seconds for seconds in JUMPS if abs(off + seconds) <= MAX_OFFSET_S])
        made.append(Jump(time.monotonic(), seconds))
        JumpClock(clock, seconds).begin()
    time.sleep(chance.uniform(*orders.gap))
    made.append(Jump(time.monotonic(), -sum(jump.seconds for jump in made)))
    clock.reset()
    return made


def _drain(queue: Queue, actors: list[subprocess.Popen[bytes]]) -> list[str]:
    """Stop new jobs and wait until only postponed jobs are left; returns problems."""
    for actor in actors:
        assert actor.stdin is not None
        actor.stdin.write(b"drain\n")
        actor.stdin.flush()

    def drained() -> bool:
        counts = queue.counts()
        if counts.ready or counts.running:
            return False
        return all((record.run_at or 0) > time.time() + POSTPONED_S for record in queue.all_jobs("scheduled"))

    try:
        wait_until(drained, "all to be done that can be", timeout=DRAIN_TIMEOUT_S, interval=0.1)
    except TimeoutError as error:
        return [f"{error}: {queue.counts()}"]
    return []


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos.clock_jumps", description=__doc__)
    parser.add_argument("--jumps", type=int, default=40, help="number of jumps (default %(default)s)")
    parser.add_argument(
        "--machines", type=int, choices=(1, 2), default=1, help="number of client machines (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="random seed (default: random)")
    parser.add_argument("--keep", type=Path, help="keep the journals in this folder")
    chosen = parser.parse_args()
    if (reason := JumpClock.available()) is not None:
        print(f"no jumps: {reason}")
        return 0
    print(f"seed {chosen.seed}: repeat with --seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="wl-jumps-") as folder:
        result = run(Orders(chosen.jumps, chosen.seed, machines=chosen.machines), Path(folder))
        if chosen.keep:
            shutil.copytree(folder, chosen.keep, dirs_exist_ok=True)
            (chosen.keep / "jumps.txt").write_text("".join(f"{jump}\n" for jump in result.jumps))
    print(result.report())
    return 1 if result.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
