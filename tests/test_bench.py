"""The benchmark runs, measures everything it promises, and leaves no server behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.cases import CASES, Calls
from bench.server import Usage

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With a short name: what the bench prints must fit on its lines."""
    with tempfile.TemporaryDirectory(prefix="wl-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def run(folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["--quick", "--scale", "0.02", "--json", str(folder / "figures.json"), "--dir", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )


@pytest.fixture(scope="module")
def result(run: subprocess.CompletedProcess[str], folder: Path) -> Any:
    return json.loads((folder / "figures.json").read_text())


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path}/{key}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def test_every_case_has_every_figure(result: Any) -> None:
    figures = result["figures"]
    assert set(figures) == {"no_persistence", "fsync_always"}
    for of_server in figures.values():
        assert set(of_server) == {case.key for case in CASES}
        for case in of_server.values():
            assert case["rounds"] >= 3
            assert case["ratio"] > 0
            for side in (case["ours"], case["bare"]):
                for name in ("jobs", "jobs_per_second", "client_cpu_us_per_job", "commands_per_call"):
                    assert side[name] > 0, name
                assert 0 < side["client_share_of_cpu"] <= 1
                assert side["commands"]
    assert set(result["fsync_ratio"]) == {case.key for case in CASES}
    assert all(ratio > 0 for ratio in result["fsync_ratio"].values())
    assert result["fsync_us"] > 0


def test_no_figure_is_negative(result: Any) -> None:
    assert [path for path, number in _numbers(result) if number < 0] == []


def test_a_queued_job_takes_more_memory_than_a_list_element(result: Any) -> None:
    memory = result["memory"]
    assert memory["bytes_per_job"] > memory["bare_bytes_per_job"] > 0


def test_commands_inside_scripts_are_counted(result: Any) -> None:
    case = result["figures"]["no_persistence"]["enqueue_100"]
    assert case["ours"]["commands"]["evalsha"]["per_call"] == pytest.approx(1)
    assert case["ours"]["commands_per_call"] > 2
    assert case["bare"]["commands"] == {"lpush": {"per_call": 100, "us_per_job": pytest.approx(0, abs=1000)}}


def test_it_ends_with_versions_and_how_to_repeat_it(run: subprocess.CompletedProcess[str]) -> None:
    *_, versions, repeat = run.stdout.strip().splitlines()
    assert "windlass " in versions
    assert "hiredis " in versions
    assert repeat.startswith('To repeat it: make bench ARGS="--quick')


def test_it_leaves_no_server_and_no_files_behind(run: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] in ([], ["figures.json"])


def test_calls_are_whole_batches_and_at_least_one() -> None:
    late = Calls(jobs=1000, batch=100, seconds=0)
    assert list(late) == [0]
    assert late.done == 100
    all_of_them = Calls(jobs=250, batch=100, seconds=60)
    assert list(all_of_them) == [0, 100]
    assert all_of_them.done == 200


def test_usage_counts_what_came_on_top_and_not_the_asking() -> None:
    before = Usage(1.0, {"lpush": (5, 50), "info": (1, 90)})
    after = Usage(1.5, {"lpush": (8, 70), "info": (2, 180), "rpop": (1, 3), "ping": (0, 0)})
    assert after.since(before) == Usage(0.5, {"lpush": (3, 20), "rpop": (1, 3)})
