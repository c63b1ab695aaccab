"""`windlass bench`: every step is measured on a real server, what limits it is named, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from tests.support.internals import run_flow
from tests.support.proxy import FORWARD, FaultProxy, delay_reply, rewrite_text
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Windlass
from windlass.cli import main
from windlass.cli.bench import ADVICE
from windlass.embedded import EmbeddedServer
from windlass.ops.benchmark import meter
from windlass.ops.benchmark.figure import Program, Spent, figure, limit_of, percentile
from windlass.transport.presence import list_queues

WINDLASS = Path(sys.executable).with_name("windlass")
QUICK = ("--seconds", "1", "--jobs", "100")
STEPS = (
    "round trip",
    "enqueue, one by one",
    "enqueue, 100 awaits",
    "enqueue, 1000 a call",
    "lease and settle, 1000 a call",
    "drain by a worker",
    "pick-up by an idle worker",
)


@pytest.fixture
def environment(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's server is the one that is measured."""
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_URL", server.url)


def bench(*words: str) -> Result:
    result = CliRunner().invoke(main, ["bench", *words])
    assert result.exit_code == 0, result.output
    return result


# -- the whole command --------------------------------------------------------------------------------


def test_every_step_does_its_jobs_and_has_its_figures(environment: None, server: Server) -> None:
    told = json.loads(bench("--seconds", "600", "--jobs", "100", "--json").stdout)
    assert list(told["servers"].values()) == [server.version.lower()]
    figures = {row["step"]: row for row in told["figures"]}
    assert tuple(figures) == STEPS
    for row in figures.values():
        assert row["jobs"] == (2000 if row["step"] == "round trip" else 100), "there was time for all of them"
        rate = None if row["step"].startswith("pick-up") else pytest.approx(row["jobs"] / row["seconds"])
        assert row["rate"] == rate
        assert row["program_cpu_us"] > 0
        assert row["server_cpu_us"] > 0
        assert row["limit"] == limit_of(row["program"], row["program_share"], row["server_share"])
    assert [row["program"] for row in figures.values()] == ["client"] * 5 + ["worker"] * 2
    for step in ("round trip", "enqueue, one by one", "pick-up by an idle worker"):
        assert 0 < figures[step]["p50_ms"] <= figures[step]["p99_ms"]


def test_the_worker_is_on_the_embedded_server_of_the_home_that_a_variable_names(
    environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    monkeypatch.delenv("WINDLASS_URL")
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    try:
        told = json.loads(bench("--seconds", "600", "--jobs", "100", "--json").stdout)
    finally:
        EmbeddedServer(home).stop()
    assert {row["step"]: row["jobs"] for row in told["figures"]}["drain by a worker"] == 100


def test_people_get_a_table_what_to_do_and_a_warning_of_other_traffic(environment: None, server: Server) -> None:
    with traffic(server):
        result = bench(*QUICK)
    assert "the server has other work" in result.stderr
    head, columns, *lines = result.stdout.splitlines()
    assert " at " in head
    assert columns.split()[:2] == ["step", "jobs"]
    rows, advice = lines[: len(STEPS)], lines[len(STEPS) :]
    assert all(row.startswith(step) for row, step in zip(rows, STEPS, strict=True))
    named = {limit for limit in ADVICE if any(row.endswith(f" {limit}") for row in rows)}
    assert named == {line.partition(":")[0] for line in advice}
    assert named


@contextmanager
def traffic(server: Server) -> Iterator[None]:
    """Another program that uses the server."""
    stop = threading.Event()

    def ask() -> None:
        with server.client() as other:
            while not stop.is_set():
                other.ping()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()


def test_a_server_that_does_not_tell_its_cpu_time_is_measured_all_the_same(environment: None, server: Server) -> None:
    hide = rewrite_text(lambda text: re.sub(rb"(?m)^used_cpu_.*\r\n", b"", text))
    with FaultProxy(server.address, faults=lambda request: hide if request[0] == b"INFO" else FORWARD) as proxy:
        told = json.loads(bench(*QUICK, "--json", "--url", proxy.url).stdout)
    assert list(told["servers"].values()) == [None]
    assert {row["server_cpu_us"] for row in told["figures"]} == {None}
    assert {row["limit"] for row in told["figures"]} <= {"client CPU", "worker CPU", "round trip or server CPU"}


def test_a_long_way_to_the_server_is_named_as_the_limit(environment: None, server: Server) -> None:
    with FaultProxy(server.address, faults=lambda _: delay_reply(0.01)) as proxy:
        words: list[str | Path] = [WINDLASS, "bench", "--seconds", "2", "--jobs", "1000", "--json", "--url", proxy.url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    figures = {row["step"]: row for row in json.loads(done.stdout)["figures"]}
    for step in ("round trip", "enqueue, one by one"):
        assert figures[step]["p50_ms"] >= 10
        assert figures[step]["limit"] == "round trip"


@pytest.mark.parametrize(
    ("number", "task", "seconds"),
    [(signal.SIGINT, "nothing", "300"), (signal.SIGTERM, "note", "1")],
    ids=["Ctrl-C in the first steps", "a polite kill while the worker starts"],
)
def test_interrupted_it_purges_its_queue(
    environment: None, app: Windlass, client: redis.Redis, number: int, task: str, seconds: str
) -> None:
    words: list[str | Path] = [WINDLASS, "bench", "--seconds", seconds]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: _has_job(app, task), "the bench to enqueue jobs")
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, out) == (130, "")
    assert "interrupted" in err
    assert not run_flow(app, list_queues)


def _has_job(app: Windlass, task: str) -> bool:
    found = (app.queue(name) for name in run_flow(app, list_queues) if name.startswith("windlass-bench-"))
    return any(task in job.data.decode() for queue in found for job in queue.jobs("ready", limit=1).jobs)


def test_a_worker_that_does_not_start_is_told_with_its_last_words(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.ops.benchmark.worker_process.APP", "windlass.ops.benchmark.nowhere:app")
    result = CliRunner().invoke(main, ["bench", *QUICK])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the worker of the bench ended" in result.stderr
    assert "windlass.ops.benchmark.nowhere" in result.stderr


def test_a_queue_of_another_layout_is_refused(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_LAYOUTS", "processor")
    result = CliRunner().invoke(main, ["bench"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--layout native" in result.stderr


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--jobs", "1"), ("--seconds", "soon")], ids=" ".join)
def test_bounds_that_cannot_be_are_wrong_usage(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["bench", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    assert words[0] in result.stderr


# -- what limits a step -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "program_share", "server_share", "limit"),
    [
        ("client", 0.1, 0.95, "server CPU"),
        ("client", 0.95, 0.95, "server CPU"),
        ("client", 0.95, 0.1, "client CPU"),
        ("worker", 0.95, 0.1, "worker CPU"),
        ("client", 0.5, 0.45, "CPU in turns"),
        ("client", 0.1, 0.1, "round trip"),
        ("client", 0.95, None, "client CPU"),
        ("client", 0.1, None, "round trip or server CPU"),
    ],
)
def test_who_is_busy_is_the_limit(
    program: Program, program_share: float, server_share: float | None, limit: str
) -> None:
    assert limit_of(program, program_share, server_share) == limit
    assert limit in ADVICE


def test_a_figure_is_for_one_job() -> None:
    made = figure("x", 1000, Spent(2.0, 0.5, 0.25, 0.125), times=[0.001] * 98 + [0.005, 0.009])
    assert (made.rate, made.program_cpu_us, made.server_cpu_us) == (500, 500, 250)
    assert (made.program_share, made.server_share) == (0.25, 0.125)
    assert (made.p50_ms, made.p99_ms) == (1, 9)
    assert percentile([0.002], 0.99) == 0.002


def test_the_main_thread_counts_where_it_is_told() -> None:
    info = "redis_version:7.0.15\nused_cpu_sys:1.5\nused_cpu_user:2.5\ntotal_commands_processed:7\n"
    assert meter.read_use(info) == ("redis 7.0.15", 4.0, 4.0, 7)
    threads = "used_cpu_sys_main_thread:0.5\nused_cpu_user_main_thread:0.5\n"
    assert meter.read_use(info + threads) == ("redis 7.0.15", 4.0, 1.0, 7)
    assert meter.read_use("redis_version:7.0.15\n") is None
