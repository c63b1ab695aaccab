"""`make topologies`: the contract, and what is the native layout's own, on every kind of server in turn.

One line for each: what it is, the version that the servers themselves told, and how many tests passed, were skipped
and failed. Below the lines stands why tests were skipped, and which failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.seats import TOPOLOGIES

SUITE = ("tests/contract", "tests/native")
# Random damage is for other runs: here it only has to meet every script once on every kind of server.
KNOBS = {"WINDLASS_FUZZ_ROUNDS": "5"}

HEADER = f"{'topology':<10} {'server':<16} {'passed':>6} {'skipped':>8} {'failed':>7} {'seconds':>8}"


@dataclass
class Result:
    """What came of one run of the suite."""

    topology: str
    seconds: float
    exit_code: int = 0
    versions: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)

    def read(self, report: Path) -> None:
        """Take what a JUnit report tells of every test; one that failed and was not tidy either is in it twice."""
        for case in ElementTree.parse(report).iter("testcase"):
            told = {each.get("name"): each.get("value", "") for each in case.iter("property")}
            self.versions.update(filter(None, [told.get("server")]))
            test = f"{case.get('classname')}::{case.get('name')}"
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.add(test)
            elif skip is not None:
                self.skipped[skip.get("message", "")] += 1
            else:
                self.passed.add(test)
        self.passed -= self.failed

    @property
    def good(self) -> bool:
        """Whether every test that could run passed, and some did."""
        return self.exit_code == 0 and bool(self.passed) and not self.failed

    def __str__(self) -> str:
        version = ", ".join(sorted(self.versions)) or "no server"
        return (
            f"{self.topology:<10} {version:<16} {len(self.passed):>6} {self.skipped.total():>8} "
            f"{len(self.failed):>7} {self.seconds:>8.0f}"
        )


def run(topology: str, arguments: list[str]) -> Result:
    """The suite on one kind of server; its own words are shown when something failed."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--tb", "short"]
        command += ["--on", topology, f"--junit-xml={report}", "-o", "junit_family=xunit1", *arguments]
        began = time.monotonic()
        done = subprocess.run(command, env=KNOBS | os.environ, capture_output=True, text=True)
        result = Result(topology, time.monotonic() - began, exit_code=done.returncode)
        if report.exists():
            result.read(report)
    if not result.good:
        print(done.stdout[-20_000:], done.stderr[-4_000:], sep="\n", flush=True)
    return result


def main() -> int:
    """Run all that were asked for; the exit code is 1 if any test failed on any of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.topology", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=TOPOLOGIES, help="this one; may be given again")
    chosen, arguments = parser.parse_known_args()  # the others are for pytest
    if not any(Path(word.partition("::")[0]).exists() for word in arguments):
        arguments += SUITE
    results = []
    print(HEADER, flush=True)
    for topology in chosen.only or TOPOLOGIES:
        results.append(run(topology, arguments))
        print(results[-1], flush=True)
    for result in results:
        for reason, count in sorted(result.skipped.items()):
            print(f"{result.topology}: {count} skipped: {reason}")
        for test in sorted(result.failed):
            print(f"{result.topology}: failed: {test}")
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
