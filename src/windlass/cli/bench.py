"""`windlass bench`: how fast it is on the user's own server, and what limits it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import duration, json_option, option_of
from windlass.cli.output import cell, plain, say_json, say_table
from windlass.ops.benchmark import BenchRun, Figure, Options

INTERRUPTED = 130
COLUMNS = ("step", "jobs", "a second", "p50 ms", "p99 ms", "CPU µs", "server CPU µs", "limited by")
ADVICE = {
    "server CPU": "the server is busy: no program can get more out of it; larger batches cost it less for each job",
    "client CPU": "this program is busy: several processes get more, and so do larger batches",
    "worker CPU": "the worker's process is busy: run several workers",
    "CPU in turns": "program and server are busy in turns, each waits for the other: more calls at a time, or several "
    "processes, get more",
    "round trip": "both sides wait for the way between them, or for the server's disk: send more in one call, or more "
    "calls at a time, or come closer",
    "round trip or server CPU": "the program waits, but this server does not tell how busy it is (INFO)",
}

_option = option_of("bench")


@click.command()
@_option(
    "--seconds",
    type=duration(1, 3600),
    metavar="DURATION",
    default="13s",
    show_default=True,
    help="How long all steps may take; the start of the worker comes on top.",
)
@_option(
    "--jobs",
    type=click.IntRange(100, 10_000_000),
    default=50_000,
    show_default=True,
    help="How many jobs a step may have; each takes some 200 bytes of the server while it waits.",
)
@json_option
@with_server
def bench(app: Windlass, seconds: float, jobs: int, as_json: bool) -> None:
    """Measure how fast it is on this server, and what limits it.

    It puts jobs on a queue of its own, with a random name, and purges it in the end: enqueues them one by one,
    awaited by a hundred at a time, and in bulk; leases and settles them in batches; has a real worker, in a process of
    its own on this machine, drain a queue of async jobs that do nothing; and takes the time until an idle worker
    picks a job up. All that is bounded by --seconds and --jobs.

    CPU µs is the CPU time for one job, of this program or (in the last two steps) of the worker's process; server
    CPU µs that of the server, where it tells (INFO). A step is limited by the server's CPU when that is busy for
    more than 80 % of the time, else by the program's if that is, else by both in turns if together they are, else by
    the round trip: then both wait.

    The load is real: others who use the server are slowed down for these seconds, and their work falsifies the figures.
    It warns when there is such work, there or on this machine.

    \b
      windlass bench
      windlass bench --url redis://localhost:6379/0 --seconds 60 --jobs 500000
      windlass bench --json | jq '.figures[] | {step, rate, limit}'
    """
    run = BenchRun(app, Options(jobs, seconds))
    try:
        with _stopped_by_signals(run), run:
            servers, warnings = run.servers(), run.warnings()
            for warning in warnings:
                click.echo(f"windlass: {warning}", err=True)
            figures = list(_shown_as_they_come(run))
    except KeyboardInterrupt:
        click.echo("windlass: interrupted; the queue of the bench is purged", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        say_json({"servers": servers, "warnings": warnings, "figures": [plain(figure) for figure in figures]})
    else:
        _say(servers, figures)


def _shown_as_they_come(run: BenchRun) -> Iterator[Figure]:
    for figure in run.figures():
        if sys.stderr.isatty():
            click.echo(f"measured: {figure.step}", err=True)
        yield figure


def _say(servers: dict[str, str | None], figures: list[Figure]) -> None:
    for address, version in servers.items():
        click.echo(cell(f"{version or 'a server of unknown version'} at {address}"))
    say_table(COLUMNS, [_row(figure) for figure in figures], "Nothing was measured.")
    for limit in dict.fromkeys(figure.limit for figure in figures):
        click.echo(f"{limit}: {ADVICE[limit]}.")


def _row(figure: Figure) -> tuple[object, ...]:
    return (
        figure.step,
        figure.jobs,
        _decimal(figure.rate, 0),
        _decimal(figure.p50_ms, 2),
        _decimal(figure.p99_ms, 2),
        _decimal(figure.program_cpu_us, 1),
        _decimal(figure.server_cpu_us, 1),
        figure.limit,
    )


def _decimal(number: float | None, places: int) -> str | None:
    return None if number is None else f"{number:8.{places}f}"


@contextmanager
def _stopped_by_signals(run: BenchRun) -> Iterator[None]:
    """Ctrl-C, a polite kill or the end of the terminal let it tidy up; the second of them does not wait for that."""

    def stop(*_: object) -> None:
        if run.is_stopped:
            raise KeyboardInterrupt
        run.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
