"""Deterministic simulation: a few seeds keep every promise, a seed is one history, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from chaos.clock import shim
from chaos.simulation.run import Report, simulate

from windlass.storage.native import scripts
from windlass.storage.port import Script

pytestmark = pytest.mark.skipif(shim() is None, reason="needs Linux and a C compiler")

STEPS = 200

# Says the digest of one seed, in a process of its own.
_ELSEWHERE = """
import sys
from chaos.simulation.run import simulate
print(simulate(int(sys.argv[1]), int(sys.argv[2])).digest)
"""


def told(report: Report) -> str:
    """The report of a failed seed, and the command that repeats it."""
    jobs = report.violation.jobs if report.violation else ()
    return "\n".join([report.line, *report.history.about(jobs), f"repeat: make simulate ARGS='--seed {report.seed}'"])


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_keeps_every_promise(seed: int) -> None:
    report = simulate(seed, STEPS)
    assert report.violation is None, told(report)
    assert report.calls >= STEPS
    assert report.counts["acknowledged"] > 0


def test_a_seed_is_one_history_ten_times_out_of_ten_and_in_any_process() -> None:
    """Randomness, time and ids come from the seed alone; nothing depends on the iteration order of sets."""
    digests = [simulate(1, 25).digest for _ in range(8)]
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, "1", "25"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        digests.append(done.stdout.strip())
    assert len(set(digests)) == 1, digests


def test_another_seed_is_another_history() -> None:
    assert simulate(1, 20).digest != simulate(2, 20).digest


@pytest.mark.parametrize(
    ("script", "wrong", "invariants"),
    [
        # An outcome is accepted with any fence: a worker that slept overwrites its successor.
        ("TURN", (" and sub(text, 2, 2 + 7) == sub(fences, 8 * i - 7, 8 * i)", ""), {"I7"}),
        # A repeated call is executed again.
        ("ENQUEUE", ("local repeated = begin_op()", "begin_op() local repeated = nil"), {"I3", "I12"}),
        # A lost holder stays in the index of holders.
        ("TURN", ("call('ZREM', KEYS[6], lost_holder)", ""), {"I8", "I12"}),
        # Run times are ignored.
        ("TURN", ("'-inf', due, 'BYSCORE'", "'-inf', '+inf', 'BYSCORE'"), {"I10"}),
        # The newest job is leased first.
        ("TURN", ("call('ZPOPMIN', KEYS[2]", "call('ZPOPMAX', KEYS[2]"), {"I11"}),
    ],
    ids=["fence", "repeat", "sweep", "early", "order"],
)
def test_a_planted_bug_is_found(
    plant: Callable[[str, str, str], None], script: str, wrong: tuple[str, str], invariants: set[str]
) -> None:
    plant(script, *wrong)
    found = next((report for seed in range(6) if (report := simulate(seed, 300)).violation), None)
    assert found is not None
    assert found.violation is not None
    assert found.violation.invariant in invariants, told(found)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Give the layout a copy of a script with one text replaced."""

    def put(name: str, right: str, wrong: str) -> None:
        whole: Script = getattr(scripts, name)
        assert right in whole.text, f"{name}: the text to replace is missing; update this test"
        planted = replace(whole, text=whole.text.replace(right, wrong))
        monkeypatch.setattr(scripts, name, planted)
        monkeypatch.setattr(scripts, "ALL", tuple(planted if each is whole else each for each in scripts.ALL))

    return put
