"""The help page of every command, at 80 columns: nothing in it is broken."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import pytest
import rich_click as click
from click.testing import CliRunner

from windlass.cli import HIDDEN, SUMMARIES, main

COLUMNS = 80


def every_command() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield (), main
    for name in SUMMARIES | HIDDEN:
        command = getattr(import_module(f"windlass.cli.{name}"), name)
        yield (name,), command
        if isinstance(command, click.Group):
            yield from (((name, child), each) for child, each in command.commands.items())


ALL = dict(every_command())


@pytest.fixture(params=list(ALL), ids=lambda words: " ".join(words) or "windlass")
def words(request: pytest.FixtureRequest) -> tuple[str, ...]:
    words: tuple[str, ...] = request.param
    return words


def page(*words: str) -> str:
    """What a terminal of 80 columns shows."""
    result = CliRunner().invoke(main, words, env={"COLUMNS": str(COLUMNS), "TERMINAL_WIDTH": str(COLUMNS)})
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= COLUMNS
    return result.stdout


def options(words: tuple[str, ...]) -> list[click.Option]:
    return [param for param in ALL[words].params if isinstance(param, click.Option)]


def test_each_option_stands_whole_on_one_line_with_its_metavar(words: tuple[str, ...]) -> None:
    lines = [line.split()[1:] for line in page(*words, "--help").splitlines() if line.startswith("│")]
    for option in options(words):
        name = max(option.opts, key=len)
        (line,) = [line for line in lines if name in line[:2]]
        assert set(option.opts) <= set(line[:2]), "the short flag is beside the long one"
        assert option.metavar is None or option.metavar in line


def test_no_word_and_no_variable_is_broken(words: tuple[str, ...]) -> None:
    shown = page(*words, "--help")
    found = set(shown.split()) | {word.rstrip("]") for word in shown.split()}
    for option in options(words):
        assert option.envvar is None or option.envvar in found
        assert set((option.help or "").split()) <= found, option.name
    assert {word for word in inspect.cleandoc(ALL[words].help or "").split() if word != "\b"} <= found


def test_each_example_stands_on_one_line(words: tuple[str, ...]) -> None:
    shown = [line.strip() for line in page(*words, "--help").splitlines()]
    text = inspect.cleandoc(ALL[words].help or "")
    for block in re.findall(r"\x08\n(.*?)(?:\n\n|\Z)", text, re.DOTALL):
        for line in block.splitlines():
            assert line.strip() in shown


def test_h_is_short_for_help(words: tuple[str, ...]) -> None:
    assert page(*words, "-h") == page(*words, "--help")
