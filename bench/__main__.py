"""`python -m bench`: start two servers, measure, print the tables."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bench import report
from bench.calm import Calm
from bench.cases import Rig
from bench.measure import Plan, measure, measure_memory
from bench.server import BenchServer
from windlass.embedded import find_server_binary


def main() -> None:
    """Read the arguments and run."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with us
    plan = _plan(given)
    with ExitStack() as stack:
        calm = Calm()
        payloads = [b'{"n": %d}' % i for i in range(plan.most_jobs)]
        rigs = {}
        for name in (report.PLAIN, report.FSYNC):
            fsync = name == report.FSYNC
            server = stack.enter_context(BenchServer(find_server_binary(), given.dir, fsync=fsync))
            rigs[name] = Rig(server, payloads)
            stack.callback(rigs[name].close)
        figures = measure(rigs, plan, calm, _say)
        _say(f"memory of {plan.memory_jobs:,} jobs")
        memory = measure_memory(rigs[report.PLAIN], plan.memory_jobs)
        facts = rigs[report.PLAIN].server.describe()
        result = report.build(figures, memory, facts, rigs[report.FSYNC].server.fsync_seconds(), calm)
    _say("")
    report.show(result, _command(), Console(width=None if sys.stdout.isatty() else 150, highlight=False))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Raw queues beside bare LPUSH and RPOP.")
    parser.add_argument("--quick", action="store_true", help="half a minute instead of three")
    parser.add_argument("--runs", type=int, default=3, help="rounds, of which the middle counts (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything, times this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--dir", type=Path, help="where the servers keep their files: decides what an fsync costs")
    given = parser.parse_args()
    if given.runs < 1 or not 0 < given.scale <= 100:
        parser.error("--runs must be at least 1, and --scale above 0 and at most 100")
    return given


def _plan(given: argparse.Namespace) -> Plan:
    seconds, share, memory_jobs, patience = (0.12, 0.2, 20_000, 15.0) if given.quick else (0.7, 1.0, 100_000, 140.0)
    scale: float = given.scale
    return Plan(
        runs=given.runs,
        seconds=seconds * scale,
        share=share * scale,
        memory_jobs=max(1000, round(memory_jobs * scale)),
        patience=patience * scale,
    )


def _say(text: str) -> None:
    """The progress line: one line that is written over, and nothing where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _command() -> str:
    arguments = " ".join(sys.argv[1:])
    return f'make bench ARGS="{arguments}"' if arguments else "make bench"


main()
