"""`windlass server …`: look at, start and stop the embedded server of a data home."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich_click as click

from windlass.embedded import EmbeddedServer, ServerStatus, logfile
from windlass.errors import EmbeddedError

Command = Callable[..., Any]


def _home_option(command: Command) -> Command:
    return click.option(
        "--home",
        type=click.Path(path_type=Path),
        envvar="WINDLASS_HOME",
        show_envvar=True,
        help="The data home: the folder with the server's data, socket and log. "
        "By default the platform's folder for user data.",
    )(command)


def _yes_option(command: Command) -> Command:
    return click.option(
        "--yes",
        "-y",
        is_flag=True,
        envvar="WINDLASS_YES",
        show_envvar=True,
        help="Do not ask, even if programs are connected.",
    )(command)


def _timeout_option(command: Command) -> Command:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        envvar="WINDLASS_STOP_TIMEOUT",
        show_envvar=True,
        help="How long the server may take to end. It is never killed.",
    )(command)


@click.group()
def server() -> None:
    """Look after the embedded server.

    Where no URL is given, Windlass keeps its jobs in a Valkey server of its own. All programs of one user
    that name no URL share it: the first to need it starts it, and it goes on when that program ends. Every
    job is on disk before it is acknowledged, so the server may be stopped, or killed, at any time.

    You need none of these commands in daily use. Each works on one data home, chosen with `--home` or
    `WINDLASS_HOME`; another home is another server, with other jobs.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no server runs (or no log yet), 4 it does not answer.
    """


@server.command()
@_home_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="WINDLASS_JSON",
    show_envvar=True,
    help="Print one JSON object.",
)
def status(home: Path | None, as_json: bool) -> None:
    """Say whether the server runs, where its data is, and how big it is.

    Nothing is started. Exits with 3 if no server runs, and with 4 if one holds the data home but does
    not answer.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        found = embedded.status()
    click.echo(_as_json(found) if as_json else _as_text(found))
    sys.exit({"stopped": _NotFound.exit_code, "unreachable": _Unreachable.exit_code}.get(found.state, 0))


@server.command()
@_home_option
def start(home: Path | None) -> None:
    """Start the server, or find it running.

    There is no need to: every program that wants the server starts it. It is useful to see why a server
    does not come up, or to have it ready before the first job.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        started = embedded.start()
    click.echo(f"{'Started' if started else 'Already running'}: {embedded.socket_path}")


@server.command()
@_home_option
@_timeout_option
@_yes_option
def stop(home: Path | None, timeout: float, yes: bool) -> None:
    """Stop the server, with all its data on disk.

    It asks first if programs are connected. Those that are still running, and any that come later, start
    the server again when they next need it: to keep it down, stop them first.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        found = embedded.status()
        if found.state == "stopped":
            raise _NotFound(f"No server runs in {found.home}.")
        _confirm("Stop", found, yes)
        embedded.stop(timeout)
    click.echo(f"Stopped. The data is in {found.home}.")


@server.command()
@_home_option
@_timeout_option
@_yes_option
def restart(home: Path | None, timeout: float, yes: bool) -> None:
    """Stop the server if it runs, and start it.

    This is how a new server binary is taken into use, and the way out when a server no longer answers.
    Programs that are connected connect again by themselves.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        _confirm("Restart", embedded.status(), yes)
        click.echo(f"Restarted: {embedded.restart(timeout)}")


@server.command()
@_home_option
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    envvar="WINDLASS_LOG_LINES",
    show_envvar=True,
    help="How many of the last lines to print.",
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    envvar="WINDLASS_LOG_FOLLOW",
    show_envvar=True,
    help="Go on printing lines as they come, until Ctrl-C.",
)
def logs(home: Path | None, lines: int, follow: bool) -> None:
    """Print the end of the server's log.

    The log holds what the server says about itself, never what is in a job. A log above 10 MB is renamed
    to `windlass.log.1`.
    """
    embedded = EmbeddedServer(home)
    log = embedded.log_path
    with _failures(embedded):
        if not log.exists():
            raise _NotFound(f"There is no log at {log}: no server has run there.")
        try:
            for line in logfile.follow(log, lines) if follow else logfile.tail(log, lines):
                click.echo(line)
        except KeyboardInterrupt:
            pass  # the way to end --follow


@server.command()
@_home_option
@click.option(
    "--socket",
    is_flag=True,
    envvar="WINDLASS_PATH_SOCKET",
    show_envvar=True,
    help="Print the path of the unix socket instead.",
)
def path(home: Path | None, socket: bool) -> None:
    """Print where the data is, whether a server runs or not.

    To back the jobs up, stop the server and copy that folder. To talk to the server yourself:
    `valkey-cli -s "$(windlass server path --socket)"`.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        click.echo(embedded.socket_path if socket else embedded.home)


class _NotFound(click.ClickException):
    exit_code = 3


class _Unreachable(click.ClickException):
    exit_code = 4


@contextmanager
def _failures(embedded: EmbeddedServer) -> Iterator[None]:
    try:
        yield
    except (EmbeddedError, OSError) as error:
        raise _kind_of_failure(embedded)(str(error)) from error


def _kind_of_failure(embedded: EmbeddedServer) -> type[click.ClickException]:
    try:
        return _Unreachable if embedded.status().state == "unreachable" else click.ClickException
    except EmbeddedError:
        return click.ClickException


def _confirm(verb: str, found: ServerStatus, yes: bool) -> None:
    if found.clients and not yes:
        connected = "1 connection is" if found.clients == 1 else f"{found.clients} connections are"
        click.confirm(f"{connected} open to the server in {found.home}. {verb} it?", abort=True, err=True)


def _as_json(found: ServerStatus) -> str:
    facts = {"running": found.running} | asdict(found)
    return json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in facts.items()})


def _as_text(found: ServerStatus) -> str:
    rows = [
        ("state", found.state),
        ("data", found.home),
        ("socket", found.socket),
        ("log", found.log),
        ("server", found.version),
        ("binary", found.binary),
        ("process", found.pid),
        ("up for", None if found.uptime is None else _duration(found.uptime)),
        ("clients", found.clients),
        ("memory", None if found.used_memory is None else _size(found.used_memory)),
        ("on disk", None if found.aof_size is None else _size(found.aof_size)),
    ]
    return "\n".join(f"{label:<8} {value}" for label, value in rows if value is not None)


def _duration(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    shown = [f"{amount} {unit}" for amount, unit in parts if amount]
    return " ".join(shown[:2]) or "0 s"


def _size(amount: int) -> str:
    size = float(amount)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
