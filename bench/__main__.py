"""`python -m bench`: install the peers, run the benchmark, print the tables; or run only the section `raw`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import chart, contest, markdown, results, tables
from bench.calm import Calm
from bench.environments import ROOT, Missing, prepare
from bench.peers import PEERS
from bench.raw import report as raw_report
from bench.raw import run as raw
from bench.server import BenchServer
from bench.workloads import WORKLOADS, Contestant, Sizes
from windlass.embedded import find_server_binary

RAW = "raw"
RESULTS, CHART = ROOT / "bench" / "results.json", ROOT / "docs" / "assets" / "bench.svg"
_QUICK = Sizes(0.2, 0.3, 40, 5_000, 100_000, 2.0)
_FULL = Sizes(1.0, 1.5, 300, 20_000, 1_000_000, 10.0)


def main() -> None:
    """Read the arguments and run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and drivers are cleaned up
    parser = _parser()
    given = parser.parse_args()
    if given.list:
        _list()
        return
    runs = given.runs or (1 if given.quick and RAW not in given.only else 3)
    if (given.runs is not None and given.runs < 1) or not 0 < given.scale <= 100:
        parser.error("--runs must be at least 1, and --scale above 0 and at most 100")
    unknown = [name for name in given.only if name not in {*PEERS, *WORKLOADS, RAW}]
    if unknown:
        parser.error(f"--only: unknown name {', '.join(map(repr, unknown))}. {_names()}")
    if RAW in given.only:
        if len(given.only) > 1:
            parser.error(f"--only {RAW} cannot be combined with other names")
        result = raw.run(raw.make_plan(quick=given.quick, runs=runs, scale=given.scale), given.dir, _say)
        show = raw_report.show
    else:
        result, show = _contest(given, runs), tables.show
    _say("")
    show(result, _command(), Console(width=None if sys.stdout.isatty() else 180, highlight=False))
    _write(given, result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Windlass beside its peers.", epilog=_names())
    parser.add_argument(
        "--only", type=_split, default=[], metavar="NAMES", help="comma-separated peers and workloads, or raw"
    )
    parser.add_argument("--quick", action="store_true", help="one small round, at most three minutes")
    parser.add_argument("--runs", type=int, help="number of rounds; the median counts (default 3, quick 1)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for all sizes (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the chart into a file")
    parser.add_argument("--write", action="store_true", help="update the figures and the chart in README and docs")
    parser.add_argument("--dir", type=Path, help="folder of the servers' files; its disk decides the cost of fsync")
    parser.add_argument("--list", action="store_true", help="list the peers and workloads")
    parser.add_argument("--no-install", action="store_true", help="use only peers that are already installed")
    return parser


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _names() -> str:
    return f"Peers: {', '.join(PEERS)}. Workloads: {', '.join(WORKLOADS)}. Alone: {RAW}."


def _list() -> None:
    for peer in PEERS.values():
        print(f"{peer.name:18}{peer.title}: {', '.join(peer.packages)}; {peer.settings}")
    print()
    for workload in WORKLOADS.values():
        print(f"{workload.name:18}{workload.title}: {', '.join(workload.only) or 'all'}")
    print(f"{RAW:18}raw queues beside bare LPUSH and RPOP; alone")


def _contest(given: argparse.Namespace, runs: int) -> dict[str, Any]:
    peers = [PEERS[name] for name in PEERS if name in given.only] or list(PEERS.values())
    workloads = [WORKLOADS[name] for name in WORKLOADS if name in given.only] or list(WORKLOADS.values())
    sizes = (_QUICK if given.quick else _FULL).scaled(given.scale)
    plan = contest.Plan(runs, *((140.0, 155.0) if given.quick else (1800.0, float("inf"))))
    skipped = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wl-bench-")))
        server, durable = (
            stack.enter_context(BenchServer(find_server_binary(), given.dir, fsync=fsync, tcp=True))
            for fsync in (False, True)
        )
        contestants = {}
        for peer in peers:
            try:
                environment = prepare(peer, _say, install=not given.no_install)
            except Missing as error:
                skipped[peer.name] = str(error)
                continue
            contestants[peer.name] = Contestant(peer, environment, server, durable, folder, sizes)
        entries = [
            contest.Entry(workload, who)
            for workload in workloads
            for name, who in contestants.items()
            if not workload.who(quick=given.quick) or name in workload.who(quick=given.quick)
        ]
        calm = Calm()
        contest.hold(entries, plan, calm, _say)
        return results.build(entries, skipped, runs, server.describe(), calm)


def _write(given: argparse.Namespace, result: dict[str, Any]) -> None:
    is_contest = "ratios" in result
    for path in {given.json, RESULTS if given.write and is_contest else None} - {None}:
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    for path in {given.svg, CHART if given.write else None} - {None} if is_contest else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(chart.draw(result))
    if given.write and is_contest:
        markdown.write(result)


def _say(text: str) -> None:
    """Print progress: on a terminal one line that is overwritten, elsewhere a line per step."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def _command() -> str:
    arguments = " ".join(sys.argv[1:])
    return f'make bench ARGS="{arguments}"' if arguments else "make bench"


if __name__ == "__main__":
    main()
