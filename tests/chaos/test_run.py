"""The chaos run in its shortest form: real processes, real kills, and the checker's report."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chaos.__main__ import other_runs
from chaos.checker import check
from chaos.fleet import ROOT
from chaos.load import QUEUES, Load
from chaos.log import Fault, Inspected, read_log
from chaos.nemesis.mix import Targets
from chaos.run import SMOKE, fault_plan

from tests.support.server import Server


def test_no_promise_is_broken_while_workers_and_the_server_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    figures = {"jobs": 5000, "minutes": 0.45, "worker-kills": 5, "server-kills": 1, "workers": 3}
    words = [word for name, value in figures.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "--seed", "11", "--keep", str(folder), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    report = check(folder / "log")
    assert report.ok
    assert report.lost.count == report.unexpected.count == report.settled_then_run_again == 0
    assert report.acknowledged > 5000  # repeated enqueues of an id count each time, and jobs from the outbox count too
    assert report.completed > 4500
    assert report.dead > 0
    assert report.attempts > report.completed

    records = [record for path in (folder / "log").glob("driver-*.log") for record in read_log(path)]
    kills = [r for r in records if isinstance(r, Fault) and r.begins and r.name.startswith("kill ") and r.pids]
    assert sum(kill.name == "kill server" for kill in kills) >= 1
    assert sum(kill.name not in ("kill server", "kill clients") for kill in kills) >= 5
    assert {record.queue for record in records if isinstance(record, Inspected)} == set(QUEUES)


def test_one_seed_gives_one_load() -> None:
    assert Load(7, 0).batch(3, 100) == Load(7, 0).batch(3, 100)
    assert Load(7, 0).batch(3, 100) != Load(8, 0).batch(3, 100)
    assert Load(7, 0).batch(3, 100) != Load(7, 1).batch(3, 100)


def test_the_load_has_jobs_of_every_sort() -> None:
    jobs = [job for number in range(100) for job in Load(1, 0).batch(number, 100)]
    deeds = ("raise", "snooze", "fail", "exit", "segfault")
    sorts = {(job.queue, deed) for job in jobs for deed in deeds if f'"{deed}"'.encode() in job.data}
    assert {
        ("loop", "raise"),
        ("loop", "snooze"),
        ("thread", "fail"),
        ("process", "exit"),
        ("process", "segfault"),
    } <= sorts
    assert any(job.cancelled for job in jobs)
    assert {"delay", "priority", "max_failures", "max_stalls"} <= {name for job in jobs for name in job.options}
    assert len({job.id for job in jobs}) < len({job.data for job in jobs})  # some ids come again, no payload does


def test_one_seed_gives_one_plan_of_faults(server: Server) -> None:
    targets = Targets(server=server, workers=list, proxies=())
    assert fault_plan(SMOKE, targets) == fault_plan(SMOKE, targets)
    planned = [step.fault for step in fault_plan(SMOKE, targets)]
    assert planned.count("kill server") == SMOKE.server_kills
    assert sum(planned.count(f"kill {part}") for part in ("child", "runner", "forkserver", "supervisor", "worker")) > 10


def test_nothing_goes_wrong_in_a_run_without_faults(server: Server) -> None:
    assert fault_plan(replace(SMOKE, fault_free=True), Targets(server=server)) == []


@pytest.mark.parametrize("name", ["proofs", "checker"])
def test_other_runs_are_listed(name: str) -> None:
    assert other_runs()[name]
