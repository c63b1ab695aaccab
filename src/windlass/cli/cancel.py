"""`windlass cancel`: take one job away."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.options import option_of
from windlass.cli.reach import NotFound, with_server


@click.command()
@click.argument("queue")
@click.argument("id")
@option_of("cancel")("--running", is_flag=True, help="Also if it runs: its worker is told to stop it.")
@with_server
def cancel(app: Windlass, queue: str, id: str, running: bool) -> None:
    """Take a job away.

    One that waits is gone at once. One that runs is left alone, unless --running is given: then it is gone however
    its attempt ends. Exits with 3 if there is no such job.

    \b
      windlass cancel emails welcome-42
      windlass cancel media thumb-7 --running
    """
    if app.queue(queue).cancel(id, running=running):
        click.echo(f"{queue}/{id} is cancelled.")
        return
    job = app.queue(queue).get(id)
    state = "not there" if job is None else job.state.value
    remedy = ": it runs, --running cancels it all the same" if state == "leased" else ""
    raise NotFound(f"job {id!r} of queue {queue!r} is {state}, nothing was cancelled{remedy}")
