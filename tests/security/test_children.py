"""A job in a process of its own has its pipes and nothing else: not the broker's socket, nor what an import opened."""

from __future__ import annotations

import re

import pytest

from tests.security.conftest import ROOT, Probe
from windlass.worker import process_info

pytestmark = pytest.mark.skipif(not process_info.HAS_PROC, reason="it is looked for in /proc")


def test_a_child_has_its_pipes_and_nothing_else(probe: Probe) -> None:
    broker = f"socket to {str(probe.shop.server.socket_path)!r}"
    assert broker in probe.ask("descriptors_of_the_runner").values(), "this is how a connection to the broker looks"
    found: dict[str, str] = probe.ask("descriptors_of_a_child")
    assert broker not in found.values()
    assert found.pop("0") == "/dev/null"
    assert found.pop("1") == found.pop("2")
    # What the app's import had opened leads to nothing now; its number stays taken, so that it becomes nobody else's.
    assert "/dev/null" in found.values()
    left = {fd: target for fd, target in found.items() if target != "/dev/null"}
    pairs = [fd for fd, target in left.items() if target == "socket to ''"]  # of each one end: these have no name
    slot_table = [fd for fd, target in left.items() if re.match(r"/memfd:windlass|/dev/shm/", target)]
    assert len(pairs) == 2, left  # for frames, and the prefetch of jobs
    assert len(slot_table) <= 1, left
    assert left.keys() == {*pairs, *slot_table}, left


def test_what_the_environment_of_a_child_holds_is_documented(probe: Probe) -> None:
    """All of the worker's, the URL of the broker with its password among it: the docs must not promise less."""
    environment: dict[str, str] = probe.ask("environment_of_a_child")
    assert environment["WINDLASS_URL"] == probe.shop.url
    assert "broker-password" in environment["WINDLASS_URL"]
    assert environment["WINDLASS_ROLE"] == "child"
    (row,) = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| 18 |")]
    assert "`WINDLASS_URL`" in row
    assert "environment" in row
