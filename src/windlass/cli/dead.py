"""`windlass dead …`: dead jobs, and broken jobs, which cannot be decoded."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.exit_codes import NotFound
from windlass.cli.job_list import list_dead_jobs, list_jobs, listing_options
from windlass.cli.options import json_option, option_of, yes_option
from windlass.cli.output import plural, print_json
from windlass.cli.purge import purge_jobs
from windlass.cli.queue_names import check_in_use, chosen_queues
from windlass.values.job import State
from windlass.values.name_patterns import is_pattern

_option = option_of("dead")
_broken_option = _option("--broken", is_flag=True, help="The broken jobs instead of the dead jobs.")


@click.group()
def dead() -> None:
    """List, retry or delete dead jobs.

    A job is dead when it has used up its failures or stalls, or when it failed for good. A job is broken when its
    payload cannot be decoded. Windlass keeps both kinds, so that you can examine and retry them.

    \b
    Examples:
      windlass dead list                        of all queues
      windlass dead list emails
      windlass dead retry emails welcome-42     one job, with all counts at zero
      windlass dead retry emails --all
      windlass dead purge emails --yes
    """


@dead.command("list")
@click.argument("queue", required=False)
@_broken_option
@listing_options("dead")
@json_option
@with_server
def list_(
    app: Windlass, queue: str | None, broken: bool, limit: int, cursor: str | None, with_data: bool, as_json: bool
) -> None:
    """List the dead jobs of a queue, of the queues of a pattern such as 'mail-*', or of all queues.

    The latest comes first. The list shows when each job died, why, and its last error message.
    """
    if queue is not None and not is_pattern(queue):
        list_jobs(app.queue(queue), [_state(broken)], limit, cursor, with_data, as_json)
        check_in_use(app, [queue])
        return
    if cursor:
        raise click.UsageError("--cursor belongs to one queue: name the queue, too")
    names = chosen_queues(app, () if queue is None else (queue,))
    list_dead_jobs([app.queue(name) for name in names], _state(broken), limit, with_data, as_json)


@dead.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_option("--all", "everything", is_flag=True, help="Retry all dead jobs of the queue.")
@_broken_option
@json_option
@with_server
def retry(app: Windlass, queue: str, ids: tuple[str, ...], everything: bool, broken: bool, as_json: bool) -> None:
    """Make dead jobs ready again, with all counts at zero.

    Name the jobs by their ids, dead or broken, or give --all. Exits with 3 if a job is not found; the others are
    retried all the same.
    """
    if bool(ids) == everything:
        raise click.UsageError("give the ids of jobs, or --all")
    if broken and ids:
        raise click.UsageError("--broken needs --all: an id is looked up among dead and broken jobs anyway")
    chosen = list(ids) if ids else [job.id for job in app.queue(queue).all_jobs(_state(broken))]
    done = dict(zip(chosen, app.queue(queue).revive(chosen), strict=True))
    missing = [id for id, is_back in done.items() if not is_back]
    if as_json:
        print_json({"queue": queue, "revived": [id for id, is_back in done.items() if is_back], "missing": missing})
    else:
        click.echo(f"{plural(len(done) - len(missing), 'job')} of {queue} made ready again.")
    if ids and missing:
        raise NotFound(f"queue {queue!r} has no dead or broken job {', '.join(missing)}")


@dead.command()
@click.argument("queue")
@_broken_option
@yes_option
@json_option
@with_server
def purge(app: Windlass, queue: str, broken: bool, yes: bool, as_json: bool) -> None:
    """Delete all dead jobs of a queue.

    Asks for confirmation first.
    """
    purge_jobs(app, queue, _state(broken), yes, as_json)


def _state(broken: bool) -> State:
    return State.BROKEN if broken else State.DEAD
