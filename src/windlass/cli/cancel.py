"""`windlass cancel`: take one job away."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import NotFound, with_server
from windlass.cli.options import json_option, option_of
from windlass.cli.output import say_json


@click.command()
@click.argument("queue")
@click.argument("id")
@option_of("cancel")("--running", is_flag=True, help="Also if it runs: its worker is told to stop it.")
@json_option
@with_server
def cancel(app: Windlass, queue: str, id: str, running: bool, as_json: bool) -> None:
    """Take a job away.

    One that waits is gone at once. One that runs is left alone, unless --running is given: then it is told to stop,
    and does not come back however its attempt ends. A coroutine is cancelled and a process is ended; a thread cannot be
    stopped from outside, it stops when it looks at job.cancelled. Exits with 3 if there is no such job.

    \b
      windlass cancel emails welcome-42
      windlass cancel media thumb-7 --running
    """
    done = app.queue(queue).cancel(id, running=running)
    job = app.queue(queue).get(id) if running or not done else None
    if done:
        runs = job is not None and job.cancelled
        if as_json:
            say_json({"queue": queue, "id": id, "state": "told" if runs else "cancelled"})
        elif runs:
            click.echo(
                f"{queue}/{id} is told to stop. If it runs in a thread, it does so when it looks at job.cancelled."
            )
        else:
            click.echo(f"{queue}/{id} is cancelled.")
        return
    state = "not there" if job is None else job.state.value
    remedy = ": it runs, --running cancels it all the same" if state == "leased" else ""
    raise NotFound(f"job {id!r} of queue {queue!r} is {state}, nothing was cancelled{remedy}")
