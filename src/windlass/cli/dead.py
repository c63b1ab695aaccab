"""`windlass dead …`: jobs that failed for good, and those that cannot be decoded."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import NotFound, with_server
from windlass.cli.job_list import list_graves, list_jobs, listing_options
from windlass.cli.options import Command, json_option, option_of, yes_option
from windlass.cli.output import plural, say_json
from windlass.cli.purge import purge_jobs
from windlass.values.job import State


def _broken_option(command: Command) -> Command:
    return option_of("dead")("--broken", is_flag=True, help="Those that cannot be decoded, instead of the dead.")(
        command
    )


@click.group()
def dead() -> None:
    """Look after jobs that failed for good.

    A job is dead when its failures or stalls are used up, or when it said that trying again is of no use. It is
    broken when its payload cannot be decoded. Both are kept, so that they can be looked at and brought back.

    \b
      windlass dead list                        of all queues
      windlass dead list emails
      windlass dead retry emails welcome-42     bring one back, with all counts at zero
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
    """List them, the latest first: when each died, why, and what was said last. Without a queue, those of all."""
    if queue is not None:
        list_jobs(app.queue(queue), [_state(broken)], limit, cursor, with_data, as_json)
        return
    if cursor:
        raise click.UsageError("--cursor goes on within one queue: name it")
    list_graves([app.queue(name) for name in app.queues()], _state(broken), limit, with_data, as_json)


@dead.command()
@click.argument("queue")
@click.argument("ids", nargs=-1)
@option_of("dead")("--all", "everything", is_flag=True, help="All of them.")
@_broken_option
@json_option
@with_server
def retry(app: Windlass, queue: str, ids: tuple[str, ...], everything: bool, broken: bool, as_json: bool) -> None:
    """Bring them back, with all counts at zero.

    By their ids, dead or broken; exits with 3 if one of them is not there, the others are brought back all the same.
    Or with --all.
    """
    if bool(ids) == everything:
        raise click.UsageError("give the ids of jobs, or --all")
    if broken and ids:
        raise click.UsageError("--broken goes with --all: an id is looked for among the dead and the broken")
    chosen = list(ids) if ids else [job.id for job in app.queue(queue).all_jobs(_state(broken))]
    done = dict(zip(chosen, app.queue(queue).revive(chosen), strict=True))
    missing = [id for id, back in done.items() if not back]
    if as_json:
        say_json({"queue": queue, "revived": [id for id, back in done.items() if back], "missing": missing})
    else:
        click.echo(f"{plural(len(done) - len(missing), 'job')} of {queue} brought back.")
    if ids and missing:
        raise NotFound(f"not among the dead or broken of {queue!r}: {', '.join(missing)}")


@dead.command()
@click.argument("queue")
@_broken_option
@yes_option
@json_option
@with_server
def purge(app: Windlass, queue: str, broken: bool, yes: bool, as_json: bool) -> None:
    """Delete all of them, for good."""
    purge_jobs(app, queue, _state(broken), yes, as_json)


def _state(broken: bool) -> State:
    return State.BROKEN if broken else State.DEAD
