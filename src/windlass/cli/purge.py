"""`windlass purge`: delete jobs."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option, option_of, yes_option
from windlass.cli.output import plural, say_json
from windlass.values.job import State


@click.command()
@click.argument("queue")
@option_of("purge")(
    "--state",
    type=click.Choice([state.value for state in State if state is not State.LEASED]),
    help="Only jobs of this state.",
)
@yes_option
@json_option
@with_server
def purge(app: Windlass, queue: str, state: str | None, yes: bool, as_json: bool) -> None:
    """Delete the jobs of a queue.

    Without --state it deletes the whole queue: jobs that run are taken away from their workers, and a pause is
    forgotten. It asks first.

    \b
      windlass purge emails --state scheduled
      windlass purge emails --yes               everything, but its schedules
    """
    purge_jobs(app, queue, State(state) if state else None, yes, as_json)


def purge_jobs(app: Windlass, queue: str, state: State | None, yes: bool, as_json: bool) -> None:
    """Delete the jobs of a state, or all; asks first."""
    if not yes:
        counts = app.queue(queue).counts()
        amount = getattr(counts, state) if state else counts.waiting + counts.leased + counts.dead + counts.broken
        what = plural(amount, f"{state} job" if state else "job")
        running = f", {counts.leased} of them running" if state is None and counts.leased else ""
        click.confirm(f"Delete {what} of queue {queue}{running}?", abort=True, err=True)
    deleted = app.queue(queue).purge(state)
    if as_json:
        say_json({"queue": queue, "state": state, "deleted": deleted})
    else:
        click.echo(f"{plural(deleted, 'job')} of {queue} deleted.")
