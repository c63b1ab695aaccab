"""The mutants match the code, and the hunt tells a caught mutant from a survivor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chaos.mutants.__main__ import PACKAGE, ROOT, RUNS, apply, hunt
from chaos.mutants.catalogue import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant: Mutant) -> None:
    assert (PACKAGE / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    for hunter in mutant.hunters:
        assert hunter in RUNS or (ROOT / hunter.partition("::")[0]).exists(), hunter


def test_there_are_at_least_forty_and_each_has_its_own_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_a_hunter_that_passes_on_the_code_fails_on_a_mutant(tmp_path: Path) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "checksums are not compared"]
    (hunter,) = mutant.hunters
    assert not hunt(hunter, PACKAGE.parent).caught
    shutil.copytree(PACKAGE, tmp_path / "windlass", ignore=shutil.ignore_patterns("__pycache__"))
    apply(mutant, tmp_path / "windlass")
    assert hunt(hunter, tmp_path).caught
