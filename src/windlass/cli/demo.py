"""`windlass demo`: one run of the demo, as a live picture, as lines, or as JSON."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from windlass.cli.exit_codes import INTERRUPTED
from windlass.cli.options import option_of

if TYPE_CHECKING:
    from windlass.ops.demo.result import Result
    from windlass.ops.demo.run import DemoRun

# WINDLASS_URL and WINDLASS_HOME name a server in use: the demo runs there only if WINDLASS_DEMO_… asks for it.
_option = option_of("demo")


@click.command()
@_option(
    "--orders",
    type=click.IntRange(min=100),
    metavar="N",
    default=400,
    show_default=True,
    help="Number of orders, at least 100.",
)
@_option("--home", type=click.Path(path_type=Path), metavar="FOLDER", help="Use the embedded server of this data home.")
@_option(
    "--url",
    metavar="URL",
    help="Use this server. The demo touches only its queues shop-orders, shop-media and shop-mail.",
)
@_option("--keep", is_flag=True, help="Keep the embedded server running, and keep the ledger and the worker's log.")
@_option("--json", "as_json", is_flag=True, help="Print the account as JSON only.")
@_option("--plain", is_flag=True, help="Print lines instead of a live picture. This is the default without a terminal.")
def demo(
    orders: int,
    home: Path | None,
    url: str | None,
    keep: bool,
    as_json: bool,
    plain: bool,
) -> None:
    """Kill a child, a runner and a worker, and account for every order.

    The demo runs a small shop, examples/shop/shop.py. Every order is a job that enqueues two more: a thumbnail, which
    runs in a child process, and an e-mail. The mail server is sometimes busy, and some addresses do not exist. A
    schedule fires each second, and one job kills its own process at each attempt.

    A real worker runs these jobs. Meanwhile the demo kills one of its child processes (kill -9), then its runner, then
    all its processes at once. The jobs log their work to a file outside the server. At the end, the demo checks every
    order against that file.

    The mail server is simulated, everything else is real. The demo deletes its server at the end. Exits with 1 if an
    order is lost or a step was repeated without a cause, and with 130 after Ctrl-C.

    \b
    Examples:
      windlass demo                            takes about ten seconds
      windlass demo --orders 2000              a longer run
      windlass demo --keep                     keep the server and the files
      windlass demo --url redis://localhost    on your own server
      windlass demo --json | jq .lost          for scripts
    """
    if url and (home or keep):
        raise click.UsageError("--home and --keep are for the embedded server: omit them, or omit --url")
    from windlass.ops.demo.run import DemoRun, Options

    options = Options(orders=orders, url=url, home=home, keep=keep)
    try:
        with _signals_interrupt(), DemoRun(options) as run:
            _show(run, as_json=as_json, plain=plain)
    except KeyboardInterrupt:
        click.echo("\nwindlass: interrupted" + ("" if keep else "; the demo has stopped its processes"), err=True)
        sys.exit(INTERRUPTED)
    result = run.result
    assert result is not None
    sys.exit(0 if result.ok else 1)


def _show(run: DemoRun, *, as_json: bool, plain: bool) -> None:
    if as_json:
        for _ in run.frames():
            pass
        click.echo(json.dumps(_ended(run).as_dict(), indent=2))
    elif plain or not _can_draw():
        _show_lines(run)
    else:
        _show_screen(run)


def _show_lines(run: DemoRun) -> None:
    from windlass.ops.demo import lines

    shown = lines.Lines(click.echo)
    for frame in run.frames():
        shown.show(frame)
    result = _ended(run)
    click.echo(f"\n{lines.summary(result)}\n")
    for what, amount, meaning in lines.rows(result):
        click.echo(f"  {what:<10} {amount:>8}  {meaning}".rstrip())
    click.echo()
    for line in lines.where_next(result):
        click.echo(line)
    click.echo("Your first job:\n")
    for line in lines.FIRST_JOB.splitlines():
        click.echo(f"    {line}".rstrip())


def _show_screen(run: DemoRun) -> None:
    from rich.console import Console

    from windlass.ops.demo.screen import Screen, print_result

    console = Console()
    with Screen(console) as screen:
        for frame in run.frames():
            screen.show(frame)
    print_result(console, _ended(run))


def _can_draw() -> bool:
    """Whether standard output is a terminal that can show the live picture."""
    from rich.console import Console

    console = Console()
    return sys.stdout.isatty() and console.is_interactive and console.encoding.startswith("utf")


def _ended(run: DemoRun) -> Result:
    assert run.result is not None, "frames() was not read to its end"
    return run.result


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that the demo cleans up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
