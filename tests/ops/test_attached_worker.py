"""The worker that the demo and the benchmark start: its environment, its output, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass.ops import attached_worker
from windlass.ops.attached_worker import AttachedWorker
from windlass.worker import process_info

APP = """
import json
import os
from windlass import Windlass

with open("began", "w") as file:
    json.dump(dict(os.environ), file)
app = Windlass()

@app.task(queue="attached")
def nothing() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app, in an environment that is meant for other workers."""
    (tmp_path / "attached_app.py").write_text(textwrap.dedent(APP))
    monkeypatch.setenv("WINDLASS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("WINDLASS_WORKER_QUEUE", "another")
    return tmp_path


@pytest.fixture
def worker(folder: Path, server: Server) -> Iterator[AttachedWorker]:
    worker = start(folder, server)
    yield worker
    worker.stop()


def start(folder: Path, server: Server) -> AttachedWorker:
    variables = {"WINDLASS_URL": server.url}
    options = ("--grace", "1s", "--kill-grace", "1s", "--log-format", "text")
    return AttachedWorker("attached_app:app", options, log=folder / "log", variables=variables, folder=folder)


def wait_for_app(folder: Path) -> dict[str, str]:
    """The environment in which the app was imported."""
    began = folder / "began"
    wait_until(lambda: began.exists() and began.read_text().endswith("}"), "the app to be imported")
    environment: dict[str, str] = json.loads(began.read_text())
    return environment


def test_it_gets_the_given_variables_and_no_others_of_windlass(
    worker: AttachedWorker, folder: Path, server: Server
) -> None:
    environment = wait_for_app(folder)
    assert environment["WINDLASS_URL"] == server.url
    assert "WINDLASS_WORKER_QUEUE" not in environment
    assert environment["PATH"] == os.environ["PATH"]


def test_it_stops_in_order(worker: AttachedWorker, folder: Path) -> None:
    wait_for_app(folder)
    before = (worker.pid is not None, worker.exit_code)
    worker.stop()
    after = (worker.pid is not None, worker.exit_code)
    assert (before, after) == ((True, None), (False, 0)), (folder / "log").read_text()


def test_one_that_does_not_stop_is_killed(
    worker: AttachedWorker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_app(folder)
    pid = worker.pid
    assert pid is not None
    forked = process_info.children(pid) or []
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(attached_worker, "STOP_TIMEOUT_S", 1.0)
    worker.stop()
    assert worker.exit_code == -signal.SIGKILL
    wait_until(lambda: not any(process_info.is_alive(pid) for pid in forked), "its processes to end")


def test_a_worker_that_ends_by_itself_has_an_exit_code_and_a_log(tmp_path: Path) -> None:
    worker = AttachedWorker("nowhere_to_be_found:app", (), log=tmp_path / "log", variables={}, folder=tmp_path)
    wait_until(lambda: worker.exit_code is not None, "the worker to end")
    worker.stop()
    assert worker.exit_code == 1
    assert "nowhere_to_be_found" in (tmp_path / "log").read_text()


def test_it_ends_with_the_program_that_started_it(folder: Path, server: Server) -> None:
    program = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from windlass.ops.attached_worker import AttachedWorker

        folder = Path({str(folder)!r})
        worker = AttachedWorker(
            "attached_app:app", (), log=folder / "log", variables={{"WINDLASS_URL": {server.url!r}}}, folder=folder
        )
        print(worker.pid, flush=True)
        time.sleep(600)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        wait_for_app(folder)
        starter.kill()
    wait_until(lambda: process_info.is_alive(pid) is not True, "the worker to end")
