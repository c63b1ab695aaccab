"""`windlass server …`: examine, start and stop the embedded server of a data home."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import rich_click as click

from windlass.cli.exit_codes import NotFound, Unreachable
from windlass.cli.options import home_option, json_option, option_of, yes_option
from windlass.cli.output import format_duration, format_size
from windlass.embedded import EmbeddedServer, ServerStatus, logfile
from windlass.errors import EmbeddedError

_timeout_option = option_of("stop")(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the server may take to stop. It is never killed.",
)


@click.group()
def server() -> None:
    """Manage the embedded server.

    Without a URL, Windlass keeps its jobs in a Valkey server of its own. All programs of one user share that server.
    The first program starts it, and it goes on when that program ends. Every job is on disk before the server
    acknowledges it, so you can stop or kill the server at any time.

    You do not need these commands in daily use. Each data home has its own server and its own jobs; choose a home with
    `--home` or `WINDLASS_HOME`.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no server runs (or no log yet), 4 the server does not answer.
    """


@server.command()
@home_option
@json_option
def status(home: Path | None, as_json: bool) -> None:
    """Show whether the server runs, where its data is, and its size.

    Starts nothing. Exits with 3 if no server runs, and with 4 if a server holds the data home but does not answer.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        found = embedded.status()
    click.echo(_as_json(found) if as_json else _as_text(found))
    sys.exit({"stopped": NotFound.exit_code, "unreachable": Unreachable.exit_code}.get(found.state, 0))


@server.command()
@home_option
def start(home: Path | None) -> None:
    """Start the server, if it does not run.

    Programs start the server themselves when they need it. Use this command to see why a server does not start, or to
    start it before the first job.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        started = embedded.start()
    click.echo(f"{'Started' if started else 'Already running'}: {embedded.socket_path}")


@server.command()
@home_option
@_timeout_option
@yes_option
def stop(home: Path | None, timeout: float, yes: bool) -> None:
    """Stop the server; its data stays on disk.

    Asks first if programs are connected. A program that needs the server starts it again: to keep the server down,
    stop these programs first.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        found = embedded.status()
        if found.state == "stopped":
            raise NotFound(f"No server runs in {found.home}: there is nothing to stop.")
        _confirm("Stop", found, yes)
        embedded.stop(timeout)
    click.echo(f"Stopped. The data is in {found.home}.")


@server.command()
@home_option
@_timeout_option
@yes_option
def restart(home: Path | None, timeout: float, yes: bool) -> None:
    """Stop the server if it runs, then start it.

    Use it after an update of the server binary, or when the server does not answer. Connected programs reconnect by
    themselves.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        _confirm("Restart", embedded.status(), yes)
        click.echo(f"Restarted: {embedded.restart(timeout)}")


@server.command()
@home_option
@option_of("log")(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    default=50,
    show_default=True,
    help="Number of lines to print, from the end.",
)
@option_of("log")("--follow", "-f", is_flag=True, help="Print new lines as they come, until Ctrl-C.")
def logs(home: Path | None, lines: int, follow: bool) -> None:
    """Print the end of the server's log.

    The log never contains payloads of jobs. A log above 10 MB is renamed to `windlass.log.1`.
    """
    embedded = EmbeddedServer(home)
    log = embedded.log_path
    with _failures(embedded):
        if not log.exists():
            raise NotFound(f"There is no log at {log}: no server has run there yet.")
        try:
            for line in logfile.follow(log, lines) if follow else logfile.tail(log, lines):
                click.echo(line)
        except KeyboardInterrupt:
            pass  # ends --follow


@server.command()
@home_option
@option_of("path")("--socket", is_flag=True, help="Print the path of the unix socket instead.")
def path(home: Path | None, socket: bool) -> None:
    """Print the folder of the data. The server need not run.

    To back up the jobs, stop the server and copy that folder. To open a shell on the server:
    `valkey-cli -s "$(windlass server path --socket)"`.
    """
    embedded = EmbeddedServer(home)
    with _failures(embedded):
        click.echo(embedded.socket_path if socket else embedded.home)


@contextmanager
def _failures(embedded: EmbeddedServer) -> Iterator[None]:
    try:
        yield
    except (EmbeddedError, OSError) as error:
        raise _kind_of_failure(embedded)(str(error)) from error


def _kind_of_failure(embedded: EmbeddedServer) -> type[click.ClickException]:
    try:
        return Unreachable if embedded.status().state == "unreachable" else click.ClickException
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
        ("up for", None if found.uptime is None else format_duration(found.uptime)),
        ("clients", found.clients),
        ("memory", None if found.used_memory is None else format_size(found.used_memory)),
        ("on disk", None if found.aof_size is None else format_size(found.aof_size)),
    ]
    return "\n".join(f"{label:<8} {value}" for label, value in rows if value is not None)
