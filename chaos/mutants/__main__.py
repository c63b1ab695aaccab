"""Deliberate one-line bugs: every one must be caught.

    python -m chaos.mutants                 all mutants, two at a time
    python -m chaos.mutants --only lease    mutants with this word in their name

A mutant is caught when a run (simulation, or the chaos run on real processes) or the test named for it fails on the
changed copy, within a minute each. All of these must first pass on the unchanged code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import windlass
from chaos.mutants.catalogue import MUTANTS, Mutant

PACKAGE = Path(windlass.__file__).parent
ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 60.0  # seconds for one run
RUNS = {
    "simulation": ["-m", "chaos.simulation", "--seeds", "12", "--steps", "1500"],
    "run": [
        *("-m", "chaos", "smoke", "--jobs", "3000", "--worker-kills", "6", "--server-kills", "1"),
        *("--minutes", "0.45", "--workers", "3", "--seed", "1"),
    ],
}


class Catch(NamedTuple):
    """Whether a mutant was caught: the hunter, the seconds it took, and its output."""

    caught: bool
    hunter: str
    seconds: float
    said: str = ""


def apply(mutant: Mutant, package: Path) -> None:
    """Change the one line. Refuses an outdated mutant."""
    path = package / mutant.file
    text = path.read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(
            f"{mutant.name!r}: its `old` text occurs {count} times in {mutant.file}, expected 1; update catalogue.py"
        )
    path.write_text(text.replace(mutant.old, mutant.new))


def command(hunter: str) -> list[str]:
    """The command line of a hunter."""
    if hunter in RUNS:
        return [sys.executable, *RUNS[hunter]]
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "--no-header",
        hunter,
    ]


def hunt(hunter: str, source: Path) -> Catch:
    """Run one hunter on a copy of the package. A hunter that does not finish in time has caught the mutant, too."""
    began = monotonic()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(source / ".hypothesis"),  # git ignores it in the unchanged source
    }
    process = subprocess.Popen(
        command(hunter),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        caught = process.returncode != 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate()
        said, caught = f"{said}\nit did not finish within {RUN_TIMEOUT_S:g} s", True
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # remaining child processes
        except ProcessLookupError:
            pass
    return Catch(caught, hunter, monotonic() - began, said)


def try_out(mutant: Mutant) -> Catch:
    """Run the hunters of a mutant until one catches it."""
    with tempfile.TemporaryDirectory(prefix="wl-mutant-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "windlass", ignore=shutil.ignore_patterns("__pycache__"))
        apply(mutant, Path(folder) / "windlass")
        catch = Catch(False, "", 0.0)
        for hunter in mutant.hunters:
            catch = hunt(hunter, Path(folder))
            if catch.caught:
                break
        return catch


def main() -> int:
    """Try all mutants; returns 1 if one survives, 2 if a hunter fails on the unchanged code."""
    parser = argparse.ArgumentParser(prog="python -m chaos.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only mutants with this text in their name or file")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried in parallel (default %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="show the hunter's output for each mutant")
    chosen = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if chosen.only in mutant.name or chosen.only in mutant.file]
    hunters = dict.fromkeys(hunter for mutant in mutants for hunter in mutant.hunters)
    survivors = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for catch in pool.map(lambda hunter: hunt(hunter, PACKAGE.parent), hunters):
            print(
                f"unchanged: {catch.hunter} {'FAILS' if catch.caught else 'passes'} ({catch.seconds:.0f} s)", flush=True
            )
            if catch.caught:
                print(catch.said[-4000:])
                return 2
        for number, (mutant, catch) in enumerate(zip(mutants, pool.map(try_out, mutants), strict=True), 1):
            how = f"caught by {catch.hunter} in {catch.seconds:.0f} s" if catch.caught else "SURVIVED"
            print(f"{number:3}/{len(mutants)} {mutant.name}: {how}", flush=True)
            if chosen.verbose or not catch.caught:
                print(catch.said[-1500:])
            if not catch.caught:
                survivors.append(mutant.name)
    print(f"mutants caught: {len(mutants) - len(survivors)} / {len(mutants)}")
    for name in survivors:
        print(f"  survived: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
