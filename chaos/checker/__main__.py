"""`python -m chaos.checker FOLDER`: check the log of a run; exits with 1 if a promise was broken."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from chaos.checker import Limits, check
from chaos.checker.report import as_json


def main() -> int:
    """Check one folder."""
    parser = argparse.ArgumentParser(prog="python -m chaos.checker", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the log files")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--live", type=float, default=Limits().live, help="seconds for ready jobs to be leased (default %(default)s)"
    )
    parser.add_argument(
        "--most", type=int, default=Limits().most, help="violations shown per invariant (default %(default)s)"
    )
    chosen = parser.parse_args()
    if not any(chosen.folder.glob("*.log")):
        parser.error(f"{chosen.folder} contains no log files")
    began = time.monotonic()
    report = check(chosen.folder, Limits(live=chosen.live, most=chosen.most))
    if chosen.json:
        sys.stdout.write(as_json(report).decode() + "\n")
    else:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(report.text())
        print(f"checked in {time.monotonic() - began:.1f} s, with {used:.0f} MB of memory at the peak")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
