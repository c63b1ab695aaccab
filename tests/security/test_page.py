"""SECURITY.md says what is done against each threat, and names tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.security.conftest import ROOT

ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)


def test_the_page_has_every_threat_once() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 22))


@pytest.mark.parametrize(("number", "row"), ROWS, ids=[number for number, _ in ROWS])
def test_a_threat_names_the_tests_that_show_it_or_says_that_it_is_not_there(number: str, row: str) -> None:
    threat, done, shown = (cell.strip() for cell in row.split("|"))
    named = re.findall(r"`(tests/[^`]+)`", shown)
    assert named or done.startswith("not built") or threat in ("disclosure", "vulnerabilities of the server")
    for path in named:
        assert (ROOT / path).is_file(), path
