"""The demo: real runs of it, and proof that its account would notice a job that is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner
from rich.console import Console

from tests.support.servers import Server
from windlass.cli import main
from windlass.demo.account import Account, draw_up
from windlass.demo.frame import Event, Frame, WorkerView
from windlass.demo.ledger import Deed, Entry, Ledger, Tail
from windlass.demo.plan import plan, work_of
from windlass.demo.screen import Screen
from windlass.job import Counts, Lease

WINDLASS = Path(sys.executable).with_name("windlass")

# Takes the terminal at its input as the one that sends it Ctrl-C, then becomes the command.
_IN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files, under a test that leaves none there, nor a process that was told of it."""
    folder = Path(tempfile.mkdtemp(prefix="wl-"))
    yield folder
    left = list(folder.iterdir())
    running = _processes_told_of(folder)
    shutil.rmtree(folder)
    assert not left
    assert not running


def _processes_told_of(folder: Path) -> list[str]:
    marker = f"TMPDIR={folder}\0".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):  # none of these where there is no /proc
        try:
            if marker in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            pass  # gone, or not ours
    return found


def environment(scratch: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    return kept | {"TMPDIR": str(scratch)}


def demo(*arguments: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WINDLASS, "demo", *arguments],
        capture_output=True,
        text=True,
        env=environment(scratch),
        timeout=60,
        check=False,
    )


# -- whole runs ----------------------------------------------------------------------------------


def test_a_run_accounts_for_every_job(scratch: Path) -> None:
    result = demo("--jobs", "1500", "--json", scratch=scratch)
    assert (result.returncode, result.stderr) == (0, "")
    account = json.loads(result.stdout)
    assert account["ok"] is True
    assert account["added"] == account["completed"] == 1500
    assert account["lost"] == account["left"] == account["unexplained"] == 0
    assert sum(account["workers"].values()) + account["cut_off"] == 1500
    assert account["killed"]["held"] > 0
    assert 0 < account["recovered"] <= account["killed"]["held"]
    assert len(account["workers"]) == 4
    with pytest.raises(ProcessLookupError):
        os.kill(account["killed"]["process"], 0)


def test_a_run_on_another_server_is_told_in_lines_and_leaves_no_key(
    valkey: Server, client: redis.Redis, scratch: Path
) -> None:
    result = demo("--jobs", "400", "--workers", "2", "--url", valkey.url, scratch=scratch)
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "kill -9" in result.stdout
    assert "All 400 jobs are accounted for" in result.stdout
    assert "queue.enqueue(b" in result.stdout


def test_ctrl_c_in_a_terminal_leaves_nothing_behind(scratch: Path) -> None:
    terminal, inside = os.openpty()
    termios.tcsetwinsize(inside, (40, 100))
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_TERMINAL, str(WINDLASS), "demo"],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=environment(scratch) | {"TERM": "xterm-256color"},
    )
    os.close(inside)
    shown = b""
    while "● working".encode() not in shown:
        shown += os.read(terminal, 65536)
    os.write(terminal, b"\x03")
    try:
        while chunk := os.read(terminal, 65536):
            shown += chunk
    except OSError:
        pass  # how a terminal says that nobody is left on its other side
    os.close(terminal)
    assert process.wait(timeout=20) == 130
    assert b"interrupted" in shown
    assert b"Traceback" not in shown


def test_it_fails_when_the_account_does_not_close(
    valkey: Server, client: redis.Redis, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_one(*arguments: object, **more: object) -> Account:
        account = draw_up(*arguments, **more)  # type: ignore[arg-type]
        return replace(account, completed=account.completed - 1, lost=1)

    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr("windlass.demo.run.draw_up", lose_one)
    result = CliRunner().invoke(main, ["demo", "--jobs", "100", "--workers", "2", "--url", valkey.url])
    assert result.exit_code == 1
    assert "The account does not close: 1 lost." in result.stdout
    (ledgers,) = scratch.iterdir()
    assert f"ledgers are in {ledgers}" in result.stdout, "they are kept, to be looked into"
    shutil.rmtree(ledgers)


# -- the account ---------------------------------------------------------------------------------

FULL = (Deed.LEASED, Deed.RAN, Deed.SETTLING, Deed.COMPLETED)


def entries(id: str, fence: int, *deeds: Deed) -> list[Entry]:
    return [Entry(fence, deed, id, fence) for deed in deeds]


@pytest.fixture
def ledgers() -> dict[str, list[Entry]]:
    """Worker 1 did a, b and c; worker 2 was killed with d run and e leased, which worker 1 did then."""
    return {
        "1": [
            *entries("a", 1, *FULL),
            *entries("b", 2, *FULL),
            *entries("c", 3, *FULL),
            *entries("d", 6, *FULL),
            *entries("e", 7, *FULL),
        ],
        "2": [*entries("d", 4, Deed.LEASED, Deed.RAN), *entries("e", 5, Deed.LEASED)],
    }


def test_an_account_that_closes(ledgers: dict[str, list[Entry]]) -> None:
    account = draw_up("abcde", ledgers, fallen={"2"}, held={"d", "e"})
    assert account.ok
    assert (account.added, account.completed, account.lost) == (5, 5, 0)
    assert (account.recovered, account.ran_twice, account.unexplained) == (2, 1, 0)


def test_a_completion_that_is_missing_is_a_job_lost(ledgers: dict[str, list[Entry]]) -> None:
    ledgers["1"] = [entry for entry in ledgers["1"] if (entry.id, entry.deed) != ("b", Deed.COMPLETED)]
    account = draw_up("abcde", ledgers, fallen={"2"}, held={"d", "e"})
    assert (account.lost, account.completed, account.ok) == (1, 4, False)


def test_a_job_that_was_never_leased_is_lost_unless_the_server_has_it(ledgers: dict[str, list[Entry]]) -> None:
    account = draw_up("abcdef", ledgers, fallen={"2"}, held={"d", "e"})
    assert (account.lost, account.left, account.ok) == (1, 0, False)
    account = draw_up("abcdef", ledgers, fallen={"2"}, held={"d", "e"}, left={"f"})
    assert (account.lost, account.left, account.ok) == (0, 1, False)


def test_a_job_of_the_killed_worker_that_nobody_finished_is_lost(ledgers: dict[str, list[Entry]]) -> None:
    ledgers["1"] = [entry for entry in ledgers["1"] if entry.id != "e"]
    assert draw_up("abcde", ledgers, fallen={"2"}, held={"d", "e"}).lost == 1


def test_a_completion_that_the_kill_kept_from_being_noted() -> None:
    ledgers = {"1": entries("a", 1, *FULL), "2": entries("b", 2, Deed.LEASED, Deed.RAN, Deed.SETTLING)}
    account = draw_up("ab", ledgers, fallen={"2"})
    assert (account.completed, account.cut_off, account.lost, account.ok) == (2, 1, 0, True)
    assert draw_up("ab", ledgers, fallen={"2"}, held={"b"}).lost == 1, "the server had not done it, and has it no more"
    assert draw_up("ab", ledgers).lost == 1, "a worker that was not killed has no excuse"


def test_work_in_vain_needs_a_reason() -> None:
    lost_its_lease = entries("a", 1, Deed.LEASED, Deed.RAN, Deed.SETTLING, Deed.REFUSED)
    account = draw_up("a", {"1": lost_its_lease, "2": entries("a", 2, *FULL)})
    assert (account.ran_twice, account.refused, account.unexplained, account.ok) == (1, 1, 0, True)
    account = draw_up("a", {"1": lost_its_lease[:-1], "2": entries("a", 2, *FULL)})
    assert (account.unexplained, account.ok) == (1, False)


def test_a_completion_without_work_is_no_completion_in_order() -> None:
    account = draw_up("a", {"1": entries("a", 1, Deed.LEASED, Deed.SETTLING, Deed.COMPLETED)})
    assert (account.unexplained, account.ok) == (1, False)


def test_a_job_completed_twice_and_a_job_from_nowhere() -> None:
    ledgers = {"1": entries("a", 1, *FULL), "2": [*entries("a", 2, *FULL), *entries("x", 3, *FULL)]}
    account = draw_up("a", ledgers)
    assert (account.completed_twice, account.unknown, account.ok) == (1, 1, False)


# -- its parts -----------------------------------------------------------------------------------


def test_a_ledger_is_read_as_it_grows_and_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "worker.ledger"
    tail = Tail(path)
    assert tail.read() == []
    ledger = Ledger(path)
    ledger.note(Deed.LEASED, [Lease("q", "a", b"", 7), Lease("q", "b", b"", 8, stalls=1)])
    assert [(entry.deed, entry.id, entry.fence, entry.stalls) for entry in tail.read()] == [
        (Deed.LEASED, "a", 7, 0),
        (Deed.LEASED, "b", 8, 1),
    ]
    with open(path, "a") as file:
        file.write("1.5 ran a")
    assert tail.read() == []
    with open(path, "a") as file:
        file.write(" 7 0\n")
    assert tail.read() == [Entry(1.5, Deed.RAN, "a", 7, 0)]


def test_the_same_seed_makes_the_same_jobs() -> None:
    assert plan(200, 1) == plan(200, 1) != plan(200, 2)
    chores = plan(2000, 1)
    assert {chore.priority for chore in chores} == {1, 5, 9}
    assert 0 < sum(1 for chore in chores if 1 <= chore.delay <= 4) < 500
    assert all(work_of(chore.as_job().data) == pytest.approx(chore.work / 1000) for chore in chores[:20])


@pytest.mark.parametrize(("columns", "rows", "workers"), [(80, 24, 4), (100, 50, 4), (60, 24, 16), (200, 30, 64)])
def test_the_picture_fits_into_the_terminal(columns: int, rows: int, workers: int) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=columns, height=rows)
    frame = Frame(
        at=12.3,
        server="Valkey 9.1.2",
        jobs=6000,
        batch=48,
        counts=Counts(ready=2000, scheduled=500, blocked=0, leased=144, dead=0),
        completed=3356,
        pace=1234.0,
        workers=tuple(
            WorkerView(f"worker-{n}", 10_000 + n, "killed" if n == workers else "working", 48, 800, 12)
            for n in range(1, workers + 1)
        ),
        priorities=(("urgent", 1200, 1200), ("normal", 2156, 3000), ("whenever", 0, 1800)),
        events=tuple(Event(n, "queue", "something that is worth a line of its own " * 3) for n in range(12)),
    )
    screen = Screen(console)
    lines = console.render_lines(screen.draw(frame), console.options)
    assert len(lines) < rows
    text = "\n".join("".join(segment.text for segment in line) for line in lines)
    assert f"worker-{workers}" in text, "the one that was killed is shown in any case"


def test_signals_are_what_they_were_after_a_run() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    CliRunner().invoke(main, ["demo", "--url", "localhost"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
