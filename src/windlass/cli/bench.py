"""`windlass bench`: throughput and latency on the user's own server, and the limit of each step."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.exit_codes import INTERRUPTED
from windlass.cli.options import duration, json_option, option_of
from windlass.cli.output import as_object, print_json, print_table, printable
from windlass.ops.benchmark import BenchRun, Figure, Options

COLUMNS = ("step", "jobs", "per second", "p50 ms", "p99 ms", "CPU µs", "server CPU µs", "limited by")
ADVICE = {
    "server CPU": "the server uses a whole core, so more programs do not help; larger batches cost it less per job",
    "client CPU": "this program uses a whole core: use several processes, or larger batches",
    "worker CPU": "the worker's process uses a whole core: run several workers",
    "CPU in turns": "program and server take turns and wait for each other: send more calls at a time, or use several "
    "processes",
    "round trip": "both sides wait for the network or for the server's disk: send more jobs per call, send more calls "
    "at a time, or move closer to the server",
    "round trip or server CPU": "the program waits, but this server does not report its CPU time (INFO)",
}

_option = option_of("bench")


@click.command()
@_option(
    "--seconds",
    type=duration(1, 3600),
    metavar="DURATION",
    default="13s",
    show_default=True,
    help="Time limit of all steps together; the start of the worker does not count.",
)
@_option(
    "--jobs",
    type=click.IntRange(100, 10_000_000),
    metavar="N",
    default=50_000,
    show_default=True,
    help="Most jobs in a step. Each waiting job takes about 200 bytes on the server.",
)
@json_option
@with_server
def bench(app: Windlass, seconds: float, jobs: int, as_json: bool) -> None:
    """Measure throughput and latency on this server.

    The bench uses a queue of its own with a random name, and purges it at the end. It enqueues jobs one by one, with a
    hundred concurrent calls, and in bulk. It leases and settles jobs in batches. It starts a real worker on this
    machine, which drains a queue of empty async jobs. Last, it measures how soon an idle worker starts a job.

    CPU µs is the CPU time per job of this program, or of the worker's process in the last two steps. Server CPU µs is
    that of the server, if the server reports it (INFO). The last column names the limit of a step: a CPU that is busy
    for more than 80 % of the time (first the server's, then the program's, then both together), otherwise the round
    trip.

    The load is real. It slows down other users of the server, and their load distorts the figures. The bench warns if
    the server or this machine has other work.

    \b
    Examples:
      windlass bench
      windlass bench --url redis://localhost:6379/0 --seconds 60 --jobs 500000
      windlass bench --json | jq '.figures[] | {step, rate, limit}'
    """
    run = BenchRun(app, Options(jobs, seconds))
    try:
        with _signals_stop(run), run:
            servers, warnings = run.servers(), run.warnings()
            for warning in warnings:
                click.echo(f"windlass: {warning}", err=True)
            figures = list(_with_progress(run))
    except KeyboardInterrupt:
        click.echo("windlass: interrupted; the queue of the bench is purged", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        print_json({"servers": servers, "warnings": warnings, "figures": [as_object(figure) for figure in figures]})
    else:
        _print(servers, figures)


def _with_progress(run: BenchRun) -> Iterator[Figure]:
    for figure in run.figures():
        if sys.stderr.isatty():
            click.echo(f"measured: {figure.step}", err=True)
        yield figure


def _print(servers: dict[str, str | None], figures: list[Figure]) -> None:
    for address, version in servers.items():
        click.echo(printable(f"{version or 'a server of unknown version'} at {address}"))
    print_table(COLUMNS, [_row(figure) for figure in figures], "Nothing was measured.")
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
def _signals_stop(run: BenchRun) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP ends the bench after its cleanup; the second ends it at once."""

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
