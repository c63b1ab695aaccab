"""The benchmark runs, measures everything it promises, and leaves no server, driver or file behind.

No test installs a peer: nothing is downloaded here.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench import chart, environments, markdown, results, tables
from bench.drive import Broken, Drive
from bench.environments import Environment, Missing, prepare
from bench.peers import PEERS, Peer
from bench.peers.driving import Numbers
from bench.proxy import Proxy
from bench.raw.cases import CASES, Calls
from bench.server import Usage
from bench.workloads import WORKLOADS
from rich.console import Console

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With a short name: what the bench prints must fit on its lines."""
    with tempfile.TemporaryDirectory(prefix="wl-") as name:
        yield Path(name)


def _bench(*arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=check,
        env={**os.environ, **environment},
    )


# -- raw -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(folder: Path) -> subprocess.CompletedProcess[str]:
    figures = str(folder / "figures.json")
    return _bench("--only", "raw", "--quick", "--scale", "0.02", "--json", figures, "--dir", str(folder))


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
    assert repeat.startswith('To repeat it: make bench ARGS="--only raw --quick')


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


# -- the contest ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contest_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wl-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def contest(contest_folder: Path) -> subprocess.CompletedProcess[str]:
    """Windlass alone, small: everything it starts and writes is in the folder, or carries its name."""
    arguments = ["--only", "windlass,drain,processes", "--quick", "--scale", "0.3", "--no-install"]
    written = ["--json", str(contest_folder / "figures.json"), "--svg", str(contest_folder / "chart.svg")]
    return _bench(*arguments, *written, TMPDIR=str(contest_folder))


def test_a_drain_has_its_rate_and_what_it_cost(contest: subprocess.CompletedProcess[str], contest_folder: Path) -> None:
    result = json.loads((contest_folder / "figures.json").read_text())
    assert result["failed"] == []
    assert set(result["peers"]) == {"windlass"}
    assert set(result["figures"]) == {"drain", "memory", "forked"}
    for key in ("drain", "forked"):
        figure = result["figures"][key]["windlass"]
        assert all(figure[name] > 0 for name in ("rate", "server_us", "commands")), figure
    assert 50 < result["figures"]["memory"]["windlass"]["bytes"] < 2000


def test_the_table_has_the_figures_and_the_rules(contest: subprocess.CompletedProcess[str]) -> None:
    assert "Windlass" in contest.stdout
    assert "drain/s" in contest.stdout
    assert "Every job is counted by its handler." in contest.stdout
    assert contest.stdout.strip().splitlines()[-1].startswith('To repeat it: make bench ARGS="--only windlass,drain')
    assert "round 1 of 1, drain: Windlass" in contest.stderr


def test_the_contest_leaves_nothing_behind(contest: subprocess.CompletedProcess[str], contest_folder: Path) -> None:
    assert sorted(path.name for path in contest_folder.iterdir()) == ["chart.svg", "figures.json"]
    left = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if str(contest_folder).encode() in path.read_bytes():
                left.append(path.parent.name)
    assert left == []


def test_the_list_names_everybody_and_everything() -> None:
    listed = {line.split()[0] for line in _bench("--list").stdout.splitlines() if line}
    assert listed == {*PEERS, *WORKLOADS, "raw"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "drain,resque"], "--only: unknown name 'resque'"),
        (["--only", "raw,drain"], "--only raw cannot be combined"),
        (["--runs", "0"], "--runs must be at least 1"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_there_is(arguments: list[str], said: str) -> None:
    done = _bench(*arguments, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    if "resque" in said:
        assert "taskiq" in done.stderr
        assert "latency" in done.stderr


# -- environments --------------------------------------------------------------------------------


def _said(text: str) -> None:
    raise AssertionError(f"something was about to be installed: {text}")


def test_a_peer_that_is_not_installed_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    with pytest.raises(Missing, match="Huey is not installed"):
        prepare(PEERS["huey"], _said, install=False)
    assert prepare(PEERS["windlass"], _said, install=False).command[0] == sys.executable


def test_a_peer_that_needs_another_python_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    peer = Peer("later", "Later", (), (), 1, "", "", python=(3, 99))
    with pytest.raises(Missing, match=r"Later needs Python 3\.99"):
        prepare(peer, _said)


def test_a_peer_for_node_says_that_node_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "envs")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"BullMQ .* needs node and npm"):
        prepare(PEERS["bullmq"], lambda _: None)


def test_every_pin_is_exact() -> None:
    pins = [pin for peer in PEERS.values() for pin in peer.packages]
    assert pins
    assert [pin for pin in pins if "==" not in pin and "@" not in pin] == []


# -- drivers and the proxy -----------------------------------------------------------------------


def _drive(code: str, folder: Path) -> Drive:
    return Drive(Environment((sys.executable, "-c", code), {"PYTHONPATH": str(ROOT)}), "work", {}, folder)


def test_a_driver_that_ends_is_quoted(tmp_path: Path) -> None:
    with (
        _drive("raise SystemExit('the moon is full')", tmp_path) as drive,
        pytest.raises(Broken, match="ended with 1: the moon is full"),
    ):
        drive.expect("ready")


def test_a_driver_goes_with_all_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; from bench.peers.driving import report\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "report(event='ready', pid=other.pid); time.sleep(600)"
    )
    with _drive(code, tmp_path) as drive:
        pid = drive.expect("ready")["pid"]
        assert Path(f"/proc/{pid}").exists()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_numbers_end_with_the_jobs_or_with_the_time() -> None:
    assert list(Numbers(3, None, 0)) == [0, 1, 2]
    assert list(Numbers(None, 0.0, 0)) == []
    assert [list(batch) for batch in Numbers(5, None, 0).batches(2)] == [[0, 1], [2, 3], [4]]
    paced = Numbers(2, None, 0.01)
    assert list(paced) == [0, 1]
    assert paced.sent[1] - paced.sent[0] >= 0.01


@pytest.mark.parametrize("delay", [0.0, 0.02])
async def test_the_proxy_delays_both_ways_and_loses_nothing(delay: float) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    with Proxy(server.sockets[0].getsockname()[1], delay) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        began = time.monotonic()
        sent = b"".join(b"%06d" % number for number in range(50_000))
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        assert time.monotonic() - began >= 2 * delay
        writer.close()
        await writer.wait_closed()
    server.close()


def test_the_proxy_keeps_what_comes_before_the_server_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        server.settimeout(20)
        port = server.getsockname()[1]
        for _ in range(3):  # they fill what waits to be accepted: the proxy's own must try again in a second
            other = stack.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
        proxy = stack.enter_context(Proxy(port, 0.0))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
        client.sendall(b"early")
        time.sleep(0.2)  # it would be delivered by now
        heard = b""
        while not heard:
            accepted = stack.enter_context(server.accept()[0])
            accepted.settimeout(0.5)
            with suppress(TimeoutError):
                heard = accepted.recv(100)
        assert heard == b"early"


# -- the report of a recorded result -------------------------------------------------------------


def _recorded() -> dict[str, Any]:
    def figure(**numbers: float) -> dict[str, Any]:
        return {**numbers, "rounds": 3, "is_quiet": True}

    figures = {
        "enqueue_blocking": {"windlass": figure(rate=4000.0), "huey": figure(rate=5000.0)},
        "enqueue_awaited": {"windlass": figure(rate=4500.0)},
        "enqueue_bulk": {"windlass": figure(rate=200_000.0), "rq": figure(rate=8000.0)},
        "drain": {
            "windlass": figure(rate=60_000.0, client_us=14.0, server_us=8.0, commands=0.2),
            "huey": figure(rate=2400.0, client_us=430.0, server_us=109.0, commands=3.0) | {"is_quiet": False},
        },
        "latency": {
            "windlass": figure(p50=0.8, p95=1.0, p99=1.5, max=2.0),
            "huey": figure(p50=1.6, p95=2.0, p99=3.0, max=4.0),
        },
        "idle_1": {"windlass": figure(commands_per_second=1.5, core_percent=0.1)},
    }
    names = ("windlass", "huey", "rq", "ardiq")
    about = {name: {"title": PEERS[name].title, "gap": PEERS[name].gap} for name in names}
    return {
        "versions": {"windlass": "0", "python": "3", "server": "valkey 9"},
        "machine": {"system": "Linux", "cores": 2},
        "runs": 3,
        "rules": list(results.RULES),
        "peers": about,
        "figures": figures,
        "ratios": results.ratios(figures),
        "skipped": {"ardiq": "ArdiQ needs Python 3.12 or newer"},
        "failed": [{"peer": "rq", "workload": "drain", "why": "it ended with 1: [boom]"}],
        "noise": {"samples": 9, "noisy_samples": 1},
    }


def test_ratios_say_how_many_times_as_good() -> None:
    ratios = _recorded()["ratios"]
    assert ratios["drain"]["ratio"] == pytest.approx(25)
    assert ratios["drain"]["best_peer"] == "huey"
    assert ratios["latency_p50"]["ratio"] == pytest.approx(2), "where less is better, half is twice as good"
    assert ratios["enqueue_blocking"]["ratio"] == pytest.approx(0.8)
    assert "enqueue_awaited" not in ratios, "nobody to compare with"


def test_the_tables_of_a_recorded_result() -> None:
    out = io.StringIO()
    tables.show(_recorded(), "make bench", Console(file=out, width=180))
    lines = out.getvalue().splitlines()
    huey = next(line for line in lines if "Huey" in line)
    assert "5,000" in huey
    assert "~2,400" in huey
    assert PEERS["huey"].gap in huey
    ours = next(line for line in lines if "Windlass " in line and "60,000" in line)
    assert "4,500" in ours, "the faster of blocking and awaited"
    assert any("no-op drain" in line and "~2,400" in line and "~25.00 ×" in line for line in lines), "Huey was busy"
    assert any("one idle worker" in line and "1.5 commands/s" in line and "0.10 % of a core" in line for line in lines)
    assert any("ArdiQ" in line and "skipped" in line for line in lines)
    assert "Not there: ArdiQ (Rust core). ArdiQ needs Python 3.12 or newer." in lines
    assert "No figure: RQ, drain: it ended with 1: [boom]" in lines


def test_the_chart_of_a_recorded_result() -> None:
    root = ElementTree.fromstring(chart.draw(_recorded()))
    name = "{http://www.w3.org/2000/svg}"
    bars = [(bar.get("class"), float(bar.get("width", 0))) for bar in root.iter(f"{name}rect")]
    assert [kind for kind, _ in bars] == ["ours", "bar", "ours", "bar", "bar"], "the longest first, in both panels"
    drain = bars[:2]
    assert drain[0][1] / drain[1][1] == pytest.approx(25, rel=0.01)
    texts = ["".join(text.itertext()) for text in root.iter(f"{name}text")]
    assert "60,000" in texts
    assert "200,000 bulk" in texts


# -- in the docs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", markdown.PLACES)
def test_the_docs_show_the_figures_that_were_written_last(page: str) -> None:
    result = json.loads((ROOT / "bench/results.json").read_text())
    text = (ROOT / page).read_text()
    assert markdown.put_in(text, markdown.PLACES[page], result) == text
    assert (ROOT / "docs/assets/bench.svg").read_text() == chart.draw(result)


def test_a_page_without_a_place_for_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="bench: in short"):
        markdown.put_in("# Title\n", ("in short",), _recorded())


def test_a_table_in_the_docs_has_a_row_for_each_peer() -> None:
    page = "before\n<!-- bench: in full -->\nold\n<!-- bench: end -->\nafter\n"
    result = _recorded()
    written = markdown.put_in(page, ("in full",), result)
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    for peer in result["peers"].values():
        assert f"\n| {peer['title']} | " in written
