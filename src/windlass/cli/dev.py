"""`windlass dev …`: tools for people who work on Windlass. Hidden from `windlass --help`."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files

import rich_click as click

from windlass.cli.exit_codes import NotFound
from windlass.cli.options import json_option, option_of
from windlass.cli.output import print_json, print_table
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.port import Script

LAYOUTS = tuple(CAPABILITIES)
COLUMNS = ("layout", "script", "bytes", "sha1")
SHARED_PARTS = ("ledger", "problems")  # of the layouts of other systems: parts of scripts, no scripts of their own

_option = option_of("dev")


@click.group()
def dev() -> None:
    """Tools for people who work on Windlass.

    Each layout is a set of Lua scripts, which the server runs.

    \b
    Examples:
      windlass dev scripts                                list all scripts
      windlass dev script turn                            print one
      windlass dev script turn --layout worqr
      windlass dev script turn | valkey-cli -x SCRIPT LOAD
    """


@dev.command("script")
@click.argument("name")
@_option(
    "--layout",
    type=click.Choice(LAYOUTS),
    metavar="LAYOUT",
    default="native",
    show_default=True,
    help=f"The layout of the script: {', '.join(LAYOUTS)}.",
)
def script_(name: str, layout: str) -> None:
    """Print a Lua script exactly as the server gets it.

    The files in the source tree are parts: a script is a file, the shared parts that it uses, and the names of its
    keys. Exits with 3 if there is no such script.
    """
    scripts = {_name_of(script): script for script in scripts_of(layout)}
    if name not in scripts:
        nearest = get_close_matches(name, scripts, cutoff=0.0)
        raise NotFound(
            f"layout {layout!r} has no script {name!r}; the nearest names are {', '.join(nearest)}. "
            "`windlass dev scripts` lists all scripts of all layouts"
        )
    click.echo(scripts[name].text, nl=False)


@dev.command("scripts")
@json_option
def scripts_(as_json: bool) -> None:
    """List the Lua scripts of all layouts.

    The SHA-1 is the name of a script in EVALSHA and SLOWLOG.
    """
    rows = [(layout, script) for layout in LAYOUTS for script in scripts_of(layout)]
    cells = [(layout, _name_of(script), len(script.text.encode()), script.sha) for layout, script in rows]
    if as_json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in cells])
    else:
        print_table(COLUMNS, cells, "")


def scripts_of(layout: str) -> list[Script]:
    """All scripts of a layout, by name."""
    return sorted(_native() if layout == "native" else _compat(layout), key=lambda script: script.name)


def _native() -> Iterator[Script]:
    from windlass.storage.native import scripts

    return (each for each in vars(scripts).values() if isinstance(each, Script))


def _compat(layout: str) -> Iterator[Script]:
    from windlass.storage.compat.base.scripts import script

    folders = (files("windlass.storage.compat.base") / "lua", files(f"windlass.storage.compat.{layout}"))
    names = {
        file.name.removesuffix(".lua") for folder in folders for file in folder.iterdir() if file.name.endswith(".lua")
    }
    return (script(layout, name) for name in names - {layout, *SHARED_PARTS})


def _name_of(script: Script) -> str:
    return script.name.partition("/")[2]
