"""The demo: real runs of it, and proof that its account would notice an order that is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Windlass
from windlass.cli import main
from windlass.ops.demo.account import Account, ServerView, build_account
from windlass.ops.demo.frame import Event, Frame, ProcessView
from windlass.ops.demo.kills import CHILD, Kill
from windlass.ops.demo.ledger import Entry, JobKind, Phase, Tail
from windlass.ops.demo.screen import Screen
from windlass.ops.demo.shop_loader import QUEUES, shop_folder
from windlass.ops.demo.tally import Attempt, Tally

ROOT = Path(__file__).parents[2]
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
        timeout=90,
        check=False,
    )


def lasting_keys_of_the_shop(server: Server) -> list[str]:
    """Markers of jobs from another queue's outbox do not count: the server keeps them for a day, then they expire."""
    with server.client() as client:
        return [key.decode() for key in client.keys("*shop-*") if client.pttl(key) < 0]


# -- whole runs ----------------------------------------------------------------------------------


def test_a_run_accounts_for_every_order(scratch: Path) -> None:
    result = demo("--orders", "250", "--json", scratch=scratch)
    account = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, ""), account
    assert account["ok"] is True
    assert account["orders"] == account["thumbnails"] == account["emails"] + account["called"] == 250
    assert account["called"] == 5
    assert account["lost"] == account["left"] == account["doubled"] == account["unexplained"] == 0
    assert (account["crashes"], account["dead"], account["poisoned"]) == (3, 1, True)
    assert account["retries"] > 0
    assert account["ticks"] > 0
    assert account["ticks_lost"] == 0
    child, runner, worker = account["kills"]
    assert (child["whom"], child["processes"]) == ("a child", 1)
    assert (runner["whom"], worker["whom"]) == ("the runner", "the whole worker")
    assert worker["processes"] >= 4
    assert all(kill["jobs_under_way"] > 0 for kill in account["kills"])
    assert child["seconds_until_last_rerun"] < worker["seconds_until_last_rerun"]
    # A child outlives its killed runner by a moment, and may do its work in vain.
    assert account["cut_short"] + account["in_vain"] >= sum(kill["jobs_under_way"] for kill in account["kills"])


def test_a_run_on_another_server_is_told_in_lines_and_leaves_no_key(valkey: Server, scratch: Path) -> None:
    result = demo("--orders", "150", "--url", valkey.url, scratch=scratch)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert "\x1b" not in result.stdout
    for told in ("a child (process", "the runner (process", "the whole worker"):
        assert f"kill -9  {told}" in result.stdout
    assert "poison   a job crashed its process 3 times" in result.stdout
    assert "All 150 orders are accounted for" in result.stdout
    assert f"The shop is {shop_folder()}" in result.stdout
    assert "greet.enqueue(" in result.stdout
    assert lasting_keys_of_the_shop(valkey) == []


@pytest.mark.parametrize("moment", ["◉ watching", "×1"], ids=["while it starts", "after a kill"])
def test_ctrl_c_in_a_terminal_leaves_nothing_behind(scratch: Path, moment: str) -> None:
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
    while moment.encode() not in shown:
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


def test_a_worker_does_not_outlive_a_demo_that_is_killed(valkey: Server, scratch: Path) -> None:
    with subprocess.Popen(
        [WINDLASS, "demo", "--plain", "--url", valkey.url],
        stdout=subprocess.PIPE,
        env=environment(scratch) | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"progress" in line:
                break
        process.kill()
    wait_until(lambda: not _processes_told_of(scratch), "its processes to end")
    for folder in scratch.iterdir():
        shutil.rmtree(folder)
    with Windlass(valkey.url) as app:
        app.schedules.delete("shop-orders", "heartbeat")
        for name in QUEUES:
            app.queue(name).purge()
    assert lasting_keys_of_the_shop(valkey) == []


def test_queues_that_are_in_use_are_left_alone(valkey: Server, scratch: Path) -> None:
    with Windlass(valkey.url) as app:
        queue = app.queue("shop-mail")
        queue.enqueue(b"of somebody else", id="a")
        result = demo("--url", valkey.url, scratch=scratch)
        assert (result.returncode, result.stdout) == (2, "")
        assert "shop-mail" in result.stderr
        assert queue.cancel("a")
        queue.purge()


def test_it_fails_when_the_account_does_not_close(
    valkey: Server, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_one(*arguments: object, **more: object) -> Account:
        account = build_account(*arguments, **more)  # type: ignore[arg-type]
        return replace(account, thumbnails=account.thumbnails - 1, lost=1)

    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr("windlass.ops.demo.run.build_account", lose_one)
    result = CliRunner().invoke(main, ["demo", "--orders", "100", "--url", valkey.url])
    assert result.exit_code == 1
    assert "The account does not balance: 1 lost." in result.stdout
    (folder,) = scratch.iterdir()
    assert f"Its ledger and its thumbnails are in {folder}" in result.stdout, "they are kept, to be looked into"
    assert (folder / "worker.log").stat().st_size > 0
    assert len(list(folder.glob("thumbnail-*.ppm"))) == 100
    shutil.rmtree(folder)
    assert lasting_keys_of_the_shop(valkey), "and so is what is on the server"
    with Windlass(valkey.url) as app:
        for name in QUEUES:
            app.queue(name).purge()


def test_a_wheel_carries_the_shop() -> None:
    """Where `shop_folder` looks first; the wheel itself is built when there is a release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    carried = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {ROOT / source: target for source, target in carried.items()} == {
        shop_folder() / "shop.py": "windlass/ops/demo/shop/shop.py"
    }


# -- the account ---------------------------------------------------------------------------------


def attempt(
    what: JobKind, number: int, end: Phase | None = Phase.DID, *, pid: int = 1, id: str | None = None
) -> Attempt:
    return Attempt(what, number, id or f"{what}-{number}", pid, 0.0, end)


def order(number: int, *, address_is_good: bool = True) -> list[Attempt]:
    """All that is done for an order, without an incident."""
    told = [attempt(JobKind.EMAIL, number)]
    if not address_is_good:
        told = [
            attempt(JobKind.EMAIL, number, Phase.FAILED),
            attempt(JobKind.CALL, number, id=f"{JobKind.EMAIL}-{number}"),
        ]
    return [attempt(JobKind.ORDER, number), attempt(JobKind.THUMBNAIL, number), *told]


POISON = [attempt(JobKind.POISON, 0, None, pid=pid) for pid in (21, 22, 23)]
DEAD = (("crashed", 3),)
SERVER = ServerView(dead=DEAD)


def test_an_account_that_closes() -> None:
    account = build_account(2, [*order(1), *order(2, address_is_good=False), *POISON], server=SERVER)
    assert account.ok
    assert (account.orders, account.thumbnails, account.emails, account.called) == (2, 2, 1, 1)
    assert (account.crashes, account.retries, account.lost, account.unexplained) == (3, 0, 0, 0)


@pytest.mark.parametrize("missing", [JobKind.ORDER, JobKind.THUMBNAIL, JobKind.EMAIL])
def test_a_step_that_is_missing_is_an_order_lost_unless_the_server_has_it(missing: JobKind) -> None:
    attempts = [*order(1), *(one for one in order(2) if one.kind is not missing), *POISON]
    account = build_account(2, attempts, server=SERVER)
    assert (account.lost, account.left, account.ok) == (1, 0, False)
    account = build_account(2, attempts, server=replace(SERVER, left=frozenset({2})))
    assert (account.lost, account.left, account.ok) == (0, 1, False)


def test_a_failure_that_nobody_handled_is_an_order_lost() -> None:
    attempts = [one for one in order(1, address_is_good=False) if one.kind is not JobKind.CALL]
    assert build_account(1, [*attempts, *POISON], server=SERVER).lost == 1


def test_an_attempt_without_an_end_needs_a_kill() -> None:
    attempts = [attempt(JobKind.THUMBNAIL, 1, None, pid=9), *order(1), *POISON]
    account = build_account(1, attempts, killed={9}, server=SERVER)
    assert (account.cut_short, account.in_vain, account.unexplained, account.ok) == (1, 0, 0, True)
    account = build_account(1, attempts, server=SERVER)
    assert (account.unexplained, account.ok) == (1, False)


def test_work_that_is_done_twice_needs_a_kill() -> None:
    attempts = [attempt(JobKind.EMAIL, 1, pid=9), *order(1), *POISON]
    account = build_account(1, attempts, killed={9}, server=SERVER)
    assert (account.cut_short, account.in_vain, account.unexplained, account.ok) == (0, 1, 0, True)
    account = build_account(1, attempts, server=SERVER)
    assert (account.unexplained, account.ok) == (1, False)


def test_a_process_that_fell_by_itself_is_an_excuse_and_is_told() -> None:
    attempts = [attempt(JobKind.THUMBNAIL, 1, None, pid=9), *order(1), *POISON]
    account = build_account(1, attempts, fallen={9, 21, 22, 23}, server=SERVER)
    assert (account.cut_short, account.fell, account.unexplained, account.ok) == (1, 1, 0, True)


def test_a_step_with_two_jobs_is_doubled_whoever_was_killed() -> None:
    attempts = [*order(1), attempt(JobKind.EMAIL, 1, pid=9, id="another"), *POISON]
    account = build_account(1, attempts, killed={9}, server=SERVER)
    assert (account.doubled, account.ok) == (1, False)


def test_retries_are_counted_and_need_no_excuse() -> None:
    busy = [attempt(JobKind.EMAIL, 1, Phase.FAILED) for _ in range(3)]
    account = build_account(1, [*busy, *order(1), *POISON], server=SERVER)
    assert (account.retries, account.ok) == (3, True)


@pytest.mark.parametrize(
    ("attempts", "dead"),
    [
        (POISON[:2], DEAD),
        ([*POISON, attempt(JobKind.POISON, 0, None, pid=24)], DEAD),
        (POISON, ()),
        (POISON, (("crashed", 4),)),
        (POISON, (*DEAD, ("failed", 0))),
    ],
)
def test_the_poison_must_die_of_three_crashes_and_nobody_else(
    attempts: list[Attempt], dead: tuple[tuple[str, int], ...]
) -> None:
    account = build_account(1, [*order(1), *attempts], server=ServerView(dead=dead))
    assert (account.poisoned, account.ok) == (False, False)


def test_a_tick_that_was_fired_and_is_nowhere_is_lost() -> None:
    ticks = [attempt(JobKind.TICK, 0, id=f"heartbeat@{second}") for second in range(3)]
    attempts = [*order(1), *POISON, *ticks]
    assert build_account(1, attempts, server=replace(SERVER, ticks_fired=4, ticks_left=1)).ok
    account = build_account(1, attempts, server=replace(SERVER, ticks_fired=4))
    assert (account.ticks, account.ticks_lost, account.ok) == (3, 1, False)


def test_an_order_from_nowhere() -> None:
    account = build_account(1, [*order(1), *order(7), *POISON], server=SERVER)
    assert (account.unknown, account.ok) == (1, False)


# -- its parts -----------------------------------------------------------------------------------


def test_the_ledger_is_read_as_it_grows_and_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text("1.5 4711 began email 7 abc\n1.75 4711 di")
    assert tail.read() == [Entry(1.5, 4711, Phase.BEGAN, JobKind.EMAIL, 7, "abc")]
    assert tail.read() == []
    with open(path, "a") as file:
        file.write("d email 7 abc\n")
    assert tail.read() == [Entry(1.75, 4711, Phase.DID, JobKind.EMAIL, 7, "abc")]


def test_the_tally_knows_what_is_under_way_and_when_it_went_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("1.0 11 began thumbnail 1 a\n1.1 11 did thumbnail 1 a\n1.2 11 began thumbnail 2 b\n")
    tally = Tally(path)
    tally.read()
    assert [one.number for one in tally.open_in([11])] == [2]
    assert tally.open_in([12]) == []
    assert tally.done[JobKind.THUMBNAIL] == {1}
    kill = Kill(CHILD, (11,), 1.3, tuple(tally.open_in([11])))
    assert (kill.rerun(tally), kill.has_recovered(tally)) == ([], False)
    with open(path, "a") as file:
        file.write("1.8 12 began thumbnail 2 b\n")
    tally.read()
    assert kill.rerun(tally) == pytest.approx([0.5])
    assert kill.has_recovered(tally)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 50), (60, 24), (200, 30)])
def test_the_picture_fits_into_the_terminal(columns: int, rows: int) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=columns, height=rows)
    roles = {
        "supervisor": "watching",
        "forkserver": "watching",
        "runner": "working",
        "child 1": "killed",
        "child 2": "idle",
    }
    frame = Frame(
        at=12.3,
        server="Valkey 9.1.2",
        steps=1200,
        done=600,
        ready=200,
        scheduled=50,
        running=14,
        dead=1,
        pace=123.0,
        processes=tuple(ProcessView(role, 10_000, state, 8, 800, 2) for role, state in roles.items()),
        parts=(("orders", 400, 400), ("thumbnails", 156, 400), ("e-mails", 44, 400)),
        events=tuple(Event(n, "shop", "something that is worth a line of its own " * 3) for n in range(12)),
    )
    lines = console.render_lines(Screen(console).draw(frame), console.options)
    assert len(lines) < rows
    text = "\n".join("".join(segment.text for segment in line) for line in lines)
    for role, state in roles.items():
        assert role in text
        assert state in text


def test_signals_are_what_they_were_after_a_run() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    CliRunner().invoke(main, ["demo", "--url", "localhost"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
