"""A primary that is cut off together with a client."""

from __future__ import annotations

import subprocess
import sys

import pytest
from chaos.nemesis.fault import lacking
from chaos.split_brain import ALLOWED_S, Account


@pytest.mark.skipif(lacking("ip", "unshare", root=True) is not None, reason="needs network namespaces")
def test_a_primary_that_is_cut_off_loses_only_what_it_took_in_the_first_moments() -> None:
    command = [sys.executable, "-m", "chaos.split_brain", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 faults" in done.stdout
    assert "replicated(2): 0 accepted, 1 NotDurable" in done.stdout


def good() -> Account:
    """An account without problems."""
    return Account({"a": 0.5}, not_durable=1, refused=1, lost=[0.5], fences=(1, 2), kept=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lost": [ALLOWED_S + 0.1]}, "lost"),
        ({"taken_safely": 1}, "replicated"),
        ({"taken": {}}, "no split"),
        ({"refused": 0}, "never refused"),
        ({"fences": (2, 2)}, "fence"),
        ({"kept": False}, "missing"),
    ],
)
def test_each_problem_is_reported(change: dict[str, object], said: str) -> None:
    assert good().faults == []
    account = good()
    for name, value in change.items():
        setattr(account, name, value)
    (fault,) = account.faults
    assert said in fault
