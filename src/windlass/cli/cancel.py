"""`windlass cancel`: cancel one job."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.exit_codes import NotFound
from windlass.cli.options import json_option, option_of
from windlass.cli.output import print_json, printable


@click.command()
@click.argument("queue")
@click.argument("id")
@option_of("cancel")("--running", is_flag=True, help="Cancel the job even if it runs: its worker stops it.")
@json_option
@with_server
def cancel(app: Windlass, queue: str, id: str, running: bool, as_json: bool) -> None:
    """Cancel a job.

    A waiting job is deleted at once. A running job goes on, unless you give --running: then its worker stops it, and
    it is not retried. The worker cancels a coroutine and kills a process. It cannot stop a thread: the job must check
    job.cancelled itself.

    Exits with 3 if there is no such job.

    \b
    Examples:
      windlass cancel emails welcome-42
      windlass cancel media thumb-7 --running
    """
    done = app.queue(queue).cancel(id, running=running)
    job = app.queue(queue).get(id) if running or not done else None
    job_name = printable(f"{queue}/{id}")
    if done:
        runs = job is not None and job.cancelled
        if as_json:
            print_json({"queue": queue, "id": id, "state": "told" if runs else "cancelled"})
        elif runs:
            click.echo(f"{job_name} runs; its worker stops it. A job in a thread stops when it checks job.cancelled.")
        else:
            click.echo(f"{job_name} is cancelled.")
        return
    if job is None:
        raise NotFound(f"job {id!r} is not on queue {queue!r}: it is done, or never existed")
    if job.cancelled:
        raise NotFound(f"job {id!r} of queue {queue!r} is cancelled already: its worker stops it")
    remedy = ". Give --running to cancel a running job" if job.state.value == "running" and not running else ""
    raise NotFound(f"job {id!r} of queue {queue!r} was not cancelled: it is {job.state.value}{remedy}")
