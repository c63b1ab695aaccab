"""Run the pauses, print the result, and fail if a promise was broken."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.nemesis.network import lacking_namespaces
from chaos.nemesis.processes import Part
from chaos.pauses.judge import WAKE_LIMIT_S, Findings, judge
from chaos.pauses.pausing import Pausing, Toll
from chaos.pauses.site import Site, Size


@dataclass(frozen=True)
class Orders:
    """The parameters of a run."""

    stops: int = 200
    partitions: int = 100
    seed: int = 0
    lease: float = 1.0
    part: Part = "worker"
    workers: int = 5
    """Workers that are stopped; one less are cut off."""


@dataclass
class Result:
    """The result of a run."""

    orders: Orders
    toll: Toll
    findings: Findings
    sent: int
    lost: set[str]
    left: dict[str, int]
    drained: bool
    codes: list[int]
    seconds: float

    def faults(self) -> list[str]:
        """The problems found."""
        found = self.findings
        said = [*self.toll.problems, *self.toll.accepted, *found.stale_accepted]
        said += [f"{job} was lost" for job in self.lost]
        said += [f"{job} ran again after it was done" for job in found.done_twice]
        said += [f"{job} was leased with a fence that was not higher" for job in found.fences_fell]
        said += [f"the state of {queue} started over" for queue in found.queues_began_anew]
        said += [str(overlap) for overlap in found.unexplained]
        said += [f"a stale attempt ran on for {each * 1e3:.0f} ms" for each in found.ran_on if each > WAKE_LIMIT_S]
        said += [] if self.drained else ["the queues did not drain"]
        said += [f"{count} jobs are left {state}" for state, count in self.left.items() if count]
        said += [f"workers exited with {self.codes}"] if any(self.codes) else []
        for kind, wanted in {"stop": self.orders.stops, "partition": self.orders.partitions}.items():
            if (done := len(self.toll.of(kind))) != wanted:
                said.append(f"only {done} of {wanted} {kind}s happened")
        return said

    def report(self) -> str:
        """The figures."""
        found, toll = self.findings, self.toll
        stops, cuts = toll.of("stop"), toll.of("partition")
        together = [each.seconds for each in found.overlaps if each.pause is not None]
        lines = [
            f"seed {self.orders.seed}, lease {self.orders.lease:g} s, {self.seconds:.0f} s",
            f"pauses longer than the lease: {len(stops)} stops ({self.orders.part}), {len(cuts)} partitions",
            f"  jobs held {sum(p.held for p in toll.pauses)}, leased by other workers before the end of the pause "
            f"{sum(p.taken for p in toll.pauses)}",
            f"jobs: {self.sent} sent, {found.attempts} attempts, {len(found.done)} done, "
            f"{len(found.perhaps_done)} perhaps done by a process that died, {len(self.lost)} lost",
            f"stale writes by woken workers: {found.stale_refused} refused, {len(found.stale_accepted)} accepted",
            f"stale writes by this program: {sum(toll.refused.values())} refused, {len(toll.accepted)} accepted",
            f"ran on after SIGCONT: {_spread(found.ran_on)}; overlapping another attempt: {_spread(together)}",
            f"overlaps of attempts that were not stopped: {_spread([each.seconds for each in found.unexplained])}",
            f"after a stop: first answer {_spread(found.heard_after['stop'])}; first job "
            f"{_spread(p.back_after for p in stops)}",
            f"after a partition: first answer {_spread(found.heard_after['partition'])}; first job "
            f"{_spread(p.back_after for p in cuts)}",
        ]
        faults = self.faults()
        return "\n".join([*lines, *(f"WRONG: {fault}" for fault in faults[:50]), f"{len(faults)} faults"])


def _spread(values: Iterable[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "none"
    middle, high = known[len(known) // 2], known[min(len(known) - 1, int(len(known) * 0.99))]
    return f"{len(known)} (p50 {middle * 1e3:.0f} ms, p99 {high * 1e3:.0f} ms, max {known[-1] * 1e3:.0f} ms)"


def run(orders: Orders, folder: Path) -> Result:
    """Pause, drain, judge."""
    began = time.monotonic()
    wanted = {"stop": orders.stops, "partition": orders.partitions}
    here = min(orders.workers, max(2, orders.stops))
    apart = min(max(1, orders.workers - 1), orders.partitions)
    with Site(folder, Size(here, apart), orders.lease, orders.seed) as site:
        toll = Pausing(site, wanted, orders.seed, part=orders.part).run()
        drained = site.drain()
        left = site.left()
        codes = site.dismiss()
    # If only the supervisor was stopped, its worker's attempts kept running: nothing excuses an overlap then.
    findings = judge(folder, toll.pauses if orders.part == "worker" else toll.of("partition"))
    lost = set(site.sent) - findings.done - findings.perhaps_done
    if not drained:
        lost = set()  # they may be among the remaining jobs
    seconds = time.monotonic() - began
    return Result(orders, toll, findings, len(site.sent), lost, left, drained, codes, seconds)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos.pauses", description=__doc__)
    parser.add_argument("--stops", type=int, default=200, help="SIGSTOPs longer than the lease (default %(default)s)")
    parser.add_argument("--partitions", type=int, default=100, help="cuts longer than the lease (default %(default)s)")
    parser.add_argument("--lease", type=float, default=1.0, help="lease in seconds (default %(default)s)")
    parser.add_argument(
        "--workers", type=int, default=5, help="number of workers that are stopped (default %(default)s)"
    )
    parser.add_argument(
        "--part",
        choices=("worker", "supervisor"),
        default="worker",
        help="the part that a stop hits (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="random seed (default: random)")
    parser.add_argument("--keep", type=Path, help="keep the logs in this folder")
    chosen = parser.parse_args()
    partitions = chosen.partitions
    if partitions and (reason := lacking_namespaces()) is not None:
        print(f"no partitions: {reason}")
        partitions = 0
    orders = Orders(chosen.stops, partitions, chosen.seed, chosen.lease, chosen.part, chosen.workers)
    print(f"seed {chosen.seed}: repeat with --seed {chosen.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="wl-pauses-"))
    try:
        result = run(orders, folder)
        print(result.report())
        if chosen.keep:
            shutil.copytree(folder, chosen.keep, dirs_exist_ok=True)
            (chosen.keep / "pauses.txt").write_text("".join(f"{pause}\n" for pause in result.toll.pauses))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if result.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
