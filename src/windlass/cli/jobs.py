"""`windlass jobs`: what is on a queue."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import NotFound, with_server
from windlass.cli.job_list import list_jobs, listing_options, show_job
from windlass.cli.options import json_option, option_of
from windlass.values.job import State


@click.command()
@click.argument("queue")
@click.argument("id", required=False)
@option_of("jobs")("--state", type=click.Choice([state.value for state in State]), help="Only jobs of this state.")
@listing_options("jobs")
@json_option
@with_server
def jobs(
    app: Windlass,
    queue: str,
    id: str | None,
    state: str | None,
    limit: int,
    cursor: str | None,
    with_data: bool,
    as_json: bool,
) -> None:
    """List the jobs of a queue, or show one of them.

    Jobs are listed in their order: ready and scheduled ones as they will run, dead ones latest first. With an
    id, everything about that job is shown; exits with 3 if there is none. Payloads are shown only with --data.

    \b
      windlass jobs emails                      the first of every state
      windlass jobs emails --state dead         those that failed for good
      windlass jobs emails welcome-42 --data    one job, with its payload
      windlass jobs emails --json | jq '.jobs[].id'
    """
    if id is not None:
        if state or cursor:
            raise click.UsageError("--state and --cursor are for lists: leave them away, or the id")
        job = app.queue(queue).get(id)
        if job is None:
            raise NotFound(f"there is no job {id!r} on queue {queue!r}: it is done, or was never there")
        show_job(job, with_data, as_json)
        return
    if cursor and not state:
        raise click.UsageError("--cursor goes on within one state: give --state with it")
    list_jobs(app.queue(queue), [State(state)] if state else list(State), limit, cursor, with_data, as_json)
