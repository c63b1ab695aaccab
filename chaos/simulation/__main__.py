"""`make simulate`: run many seeds in sequence; prints the seeds that broke a promise, so that they can be repeated."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from chaos.checker import Limits, check
from chaos.clock import shim
from chaos.simulation.run import DRAIN_TIMEOUT_S, Report, simulate

MAXIMA = ("cut short", "early")  # report counts in ms, combined by maximum


def main() -> int:
    """Run the seeds; returns 1 if any of them failed."""
    parser = argparse.ArgumentParser(prog="python -m chaos.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds (default %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="first seed (default %(default)s)")
    parser.add_argument("--seed", type=int, help="run only this seed; the history is repeated exactly")
    parser.add_argument("--steps", type=int, default=2000, help="script calls per seed (default %(default)s)")
    parser.add_argument(
        "--workers", type=int, default=5, help="number of workers; there are also two producers (default %(default)s)"
    )
    parser.add_argument("--check", action="store_true", help="also judge each seed with the checker of real runs")
    parser.add_argument("--history", action="store_true", help="print the whole history, not only violations")
    chosen = parser.parse_args()
    if shim() is None:
        print("the simulation controls the server's clock, which needs Linux and a C compiler (cc)")
        return 1
    seeds: Sequence[int] = (
        [chosen.seed] if chosen.seed is not None else range(chosen.start, chosen.start + chosen.seeds)
    )
    began = perf_counter()
    reports: list[Report] = []
    doubted: list[int] = []
    for seed in seeds:
        with TemporaryDirectory(prefix="wl-sim-log-") as folder:
            log = Path(folder) if chosen.check else None
            report = simulate(seed, chosen.steps, chosen.workers, log=log)
            show(report, whole=chosen.history)
            if log is not None and not is_confirmed(log):
                doubted.append(seed)
        reports.append(report)
    summarise(reports, perf_counter() - began)
    if chosen.check:
        print(
            f"the checker of real runs reports violations in: {doubted}"
            if doubted
            else "the checker of real runs agrees"
        )
    return 1 if doubted or any(report.violation for report in reports) else 0


def is_confirmed(log: Path) -> bool:
    """Whether the checker accepts a log; prints its report otherwise."""
    found = check(log, Limits(live=DRAIN_TIMEOUT_S))
    if not found.ok:
        print(found.text())
    return found.ok


def show(report: Report, *, whole: bool) -> None:
    """Print one line; and the history, if requested or after a violation."""
    print(report.line, flush=True)
    if whole:
        print("\n".join(report.history.lines))
    elif report.violation is not None:
        print("\n".join(f"    {line}" for line in report.history.about(report.violation.jobs)))
        print(f"    repeat it with --seed {report.seed}", flush=True)


def summarise(reports: list[Report], seconds: float) -> None:
    """Print the totals of all seeds."""
    calls = sum(report.calls for report in reports)
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
        for name, count in report.counts.items():
            counts[name] = max(counts[name], count) if name in MAXIMA else counts[name] + count
    broken = [report.seed for report in reports if report.violation]
    virtual = sum(report.virtual for report in reports)
    print(
        f"{len(reports)} seeds, {calls} calls in {seconds:.0f} s ({calls / seconds:.0f} a second), "
        f"{virtual / 3600:.1f} hours of virtual time"
    )
    print("faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())))
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    print(f"broken: {broken}" if broken else "no promise was broken")


if __name__ == "__main__":
    sys.exit(main())
