"""The command line as a whole: what it lists, and how an error becomes one line and an exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import rich_click as click
from click.testing import CliRunner, Result

from windlass import __version__, errors
from windlass.cli import GROUPS, HIDDEN, SUMMARIES, main
from windlass.cli.exit_codes import exit_code

WINDLASS = Path(sys.executable).with_name("windlass")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], Result]:
    """Run a command that ends with this error."""

    def run_into(error: Exception) -> Result:
        @click.command()
        def demo() -> None:
            raise error

        monkeypatch.setattr("windlass.cli.demo.demo", demo)
        return run("demo")

    import_module("windlass.cli.demo")
    return run_into


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str) -> None:
    result = run(flag)
    assert (result.exit_code, result.stdout) == (0, f"windlass {__version__}\n")


def test_help_lists_every_command_and_shows_how_to_begin() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "windlass demo " in result.stdout
    assert all(summary in result.stdout for summary in SUMMARIES.values())


def test_help_shows_the_commands_in_groups() -> None:
    lines = run("--help").stdout.splitlines()
    shown: dict[str, list[str]] = {}
    for line in lines:
        if title := re.match(r"╭─ (\w+) ─", line):
            names = shown.setdefault(title[1], [])
        elif row := re.match(r"│ (\w+)  ", line):
            names.append(row[1])
    assert {group: names for group, names in shown.items() if group != "Options"} == {
        group: list(commands) for group, commands in GROUPS.items()
    }


def test_hidden_commands_are_not_listed_but_run() -> None:
    listed = run("--help").stdout
    for name in HIDDEN:
        assert not re.search(rf"│ {name} ", listed)
        assert run(name, "--help").exit_code == 0


def test_help_imports_no_command() -> None:
    code = "import sys; from windlass.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert not {f"windlass.cli.{name}" for name in SUMMARIES | HIDDEN} & set(loaded)


@pytest.mark.parametrize("name", SUMMARIES | HIDDEN)
def test_what_is_listed_is_what_the_command_says_of_itself(name: str) -> None:
    command = getattr(import_module(f"windlass.cli.{name}"), name)
    assert command.help.splitlines()[0] == (SUMMARIES | HIDDEN)[name]
    assert run(name, "--help").exit_code == 0


def test_an_unknown_command_is_wrong_usage() -> None:
    result = run("demolish")
    assert result.exit_code == 2
    assert "No such command" in result.stderr


def test_an_unknown_option_is_wrong_usage() -> None:
    assert run("demo", "--nonsense").exit_code == 2
    assert run("demo", "--jobs", "few").exit_code == 2


def test_options_that_contradict_each_other_are_wrong_usage() -> None:
    result = run("demo", "--url", "redis://localhost", "--keep")
    assert result.exit_code == 2
    assert "--url" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ServerUnreachable, 4),
        (errors.ServerLoading, 4),
        (errors.ServerBinaryMissing, 4),
        (errors.ServerWillNotStart, 4),
        (errors.InvalidOption, 2),
        (errors.AccessDenied, 1),
        (errors.QueueFull, 1),
        (errors.OutcomeUnknown, 1),
        (errors.ServerTooOld, 1),
        (errors.ServerFault, 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: type[errors.WindlassError], code: int, raising: Callable[[Exception], Result]
) -> None:
    assert exit_code(error()) == code
    result = raising(error("what happened, and what to do"))
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "windlass: what happened, and what to do\n"


def test_a_command_that_finds_nothing_says_so_in_one_line(raising: Callable[[Exception], Result]) -> None:
    class NotFound(click.ClickException):
        exit_code = 3

    result = raising(NotFound("no such thing"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "windlass: no such thing\n")


def test_a_bug_is_not_dressed_up_as_an_error_of_ours(raising: Callable[[Exception], Result]) -> None:
    assert isinstance(raising(ZeroDivisionError()).exception, ZeroDivisionError)


def test_a_server_that_cannot_be_reached_is_told_quickly() -> None:
    result = subprocess.run(
        [WINDLASS, "demo", "--url", "redis://127.0.0.1:1"], capture_output=True, text=True, timeout=20, check=False
    )
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith("windlass: ")
    assert "127.0.0.1:1" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_url_that_cannot_be_read_is_wrong_usage() -> None:
    result = run("demo", "--url", "localhost")
    assert result.exit_code == 2
    assert result.stderr.startswith("windlass: ")
