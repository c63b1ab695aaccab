"""`windlass jobs`: the jobs of a queue, or one job."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.exit_codes import NotFound
from windlass.cli.job_list import STATES, list_jobs, listing_options, show_job
from windlass.cli.options import json_option, option_of
from windlass.cli.queue_names import check_in_use
from windlass.values.job import State


@click.command()
@click.argument("queue")
@click.argument("id", required=False)
@option_of("jobs")(
    "--state", type=click.Choice(STATES), metavar="STATE", help=f"Only jobs of this state: {', '.join(STATES)}."
)
@option_of("jobs")("--tag", metavar="TAG", help="Only jobs with this tag.")
@listing_options("jobs")
@json_option
@with_server
def jobs(
    app: Windlass,
    queue: str,
    id: str | None,
    state: str | None,
    tag: str | None,
    limit: int,
    cursor: str | None,
    with_data: bool,
    as_json: bool,
) -> None:
    """List the jobs of a queue, or show one job.

    The states: ready (can run now), scheduled (its run time is ahead), blocked (it waits because a job with the same id
    is running), running, dead (it failed for good) and broken (a worker could not decode its payload).

    Ready and scheduled jobs are listed in the order in which they will run; the latest dead job comes first. With an
    id, the command shows all about that job, and exits with 3 if there is none. Payloads need --data.

    --tag searches the first 20,000 jobs of each state. If there are more, it prints the cursor from which to go on.

    \b
    Examples:
      windlass jobs emails                      the first jobs of every state
      windlass jobs emails --state dead         dead jobs
      windlass jobs emails --tag newsletter     jobs with this tag
      windlass jobs emails welcome-42 --data    one job, with its payload
      windlass jobs emails --json | jq '.jobs[].id'
    """
    if id is not None:
        if state or cursor or tag:
            raise click.UsageError("--state, --tag and --cursor are for lists: omit them, or omit the id")
        job = app.queue(queue).get(id)
        if job is None:
            raise NotFound(f"job {id!r} is not on queue {queue!r}: it is done, or never existed")
        show_job(job, with_data, as_json)
        return
    if cursor and not state:
        raise click.UsageError("--cursor belongs to one state: give --state, too")
    states = [State(state)] if state else list(State)
    list_jobs(app.queue(queue), states, limit, cursor, with_data, as_json, tag)
    check_in_use(app, [queue])
