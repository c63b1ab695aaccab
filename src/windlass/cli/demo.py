"""`windlass demo`: a run, shown live, as lines, or as JSON."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

if TYPE_CHECKING:
    from windlass.ops.demo.result import Result
    from windlass.ops.demo.run import DemoRun

INTERRUPTED = 130
Command = Callable[..., Any]


def _option(flag: str, *more: str, **settings: Any) -> Callable[[Command], Command]:
    # Not WINDLASS_URL and WINDLASS_HOME: a server that is in use is no place for a demo unless it is asked for.
    variable = f"WINDLASS_DEMO_{flag.removeprefix('--').upper()}"
    return click.option(flag, *more, envvar=variable, show_envvar=True, **settings)


@click.command()
@_option("--orders", type=click.IntRange(min=100), default=400, show_default=True, help="How many orders.")
@_option("--home", type=click.Path(path_type=Path), help="Use the embedded server of this data home.")
@_option("--url", help="Use the server at this URL: its queues shop-orders, shop-media and shop-mail, and no other.")
@_option("--keep", is_flag=True, help="Leave the embedded server running, the ledger and the worker's log in place.")
@_option("--json", "as_json", is_flag=True, help="Print the account as JSON, and nothing else.")
@_option("--plain", is_flag=True, help="Print lines instead of a live picture, as it is done without a terminal.")
def demo(
    orders: int,
    home: Path | None,
    url: str | None,
    keep: bool,
    as_json: bool,
    plain: bool,
) -> None:
    """Watch a queue survive a kill -9, and account for every job.

    Runs a small shop, examples/shop/shop.py. Every order is a job that hands over two more: a thumbnail, made in
    a child process, and an e-mail, to a mail server that is busy now and then and does not know everybody. A
    schedule ticks, and one job kills its own process whenever it is tried.

    A real worker does all that. While it does, the demo kills one child of it (kill -9), then its runner, then all
    its processes at once. What jobs do they write into a file outside the server; from that file every order is
    accounted for.

    The mail server is simulated, all else is real, and so are the figures. The server is thrown away in the end.
    Exits with 1 if an order is lost, or something was done twice without a cause, and with 130 if interrupted.

    \b
      windlass demo                            about ten seconds
      windlass demo --orders 2000              more of it
      windlass demo --keep                     and look around
      windlass demo --url redis://localhost    on a server of yours
      windlass demo --json | jq .lost          for scripts
    """
    if url and (home or keep):
        raise click.UsageError("--home and --keep are about the embedded server: leave them away, or --url")
    from windlass.ops.demo.run import DemoRun, Options

    options = Options(orders=orders, url=url, home=home, keep=keep)
    try:
        with _signals_interrupt(), DemoRun(options) as run:
            _show(run, as_json=as_json, plain=plain)
    except KeyboardInterrupt:
        click.echo("\nwindlass: interrupted" + ("" if keep else "; nothing is left running"), err=True)
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
    click.echo(f"\n{lines.verdict(result)}\n")
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
    """Whether there is a terminal that can be drawn on."""
    from rich.console import Console

    console = Console()
    return sys.stdout.isatty() and console.is_interactive and console.encoding.startswith("utf")


def _ended(run: DemoRun) -> Result:
    assert run.result is not None, "read the frames to their end first"
    return run.result


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """The end of a terminal and a polite kill are treated like Ctrl-C: everything is tidied up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
