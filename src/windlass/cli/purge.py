"""`windlass purge`: delete the jobs of a queue."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.job_list import STATES
from windlass.cli.options import json_option, option_of, yes_option
from windlass.cli.output import plural, print_json
from windlass.cli.queue_names import check_in_use
from windlass.values.job import State

PURGEABLE = [state for state in STATES if state != State.RUNNING]


@click.command()
@click.argument("queue")
@option_of("purge")(
    "--state",
    type=click.Choice(PURGEABLE),
    metavar="STATE",
    help=f"Only jobs of this state: {', '.join(PURGEABLE)}.",
)
@yes_option
@json_option
@with_server
def purge(app: Windlass, queue: str, state: str | None, yes: bool, as_json: bool) -> None:
    """Delete the jobs of a queue.

    Without --state, it deletes all jobs: running jobs lose their lease, and a paused queue is no longer paused.
    Schedules stay. Asks for confirmation first.

    \b
    Examples:
      windlass purge emails --state scheduled
      windlass purge emails --yes               all jobs, without a question
    """
    purge_jobs(app, queue, State(state) if state else None, yes, as_json)


def purge_jobs(app: Windlass, queue: str, state: State | None, yes: bool, as_json: bool) -> None:
    """Delete the jobs of one state, or all jobs; ask first, unless `yes`."""
    check_in_use(app, [queue])
    if not yes:
        counts = app.queue(queue).counts()
        amount = getattr(counts, state) if state else counts.waiting + counts.running + counts.dead + counts.broken
        what = plural(amount, f"{state} job" if state else "job")
        running = f", {counts.running} of them running" if state is None and counts.running else ""
        click.confirm(f"Delete {what} of queue {queue}{running}?", abort=True, err=True)
    deleted = app.queue(queue).purge(state)
    if as_json:
        print_json({"queue": queue, "state": state, "deleted": deleted})
    else:
        click.echo(f"{plural(deleted, 'job')} of {queue} deleted.")
