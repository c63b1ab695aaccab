"""`windlass pause`: pause a queue."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option, yes_option
from windlass.cli.output import print_json
from windlass.cli.queue_names import confirm_unused


@click.command()
@click.argument("queue")
@yes_option
@json_option
@with_server
def pause(app: Windlass, queue: str, yes: bool, as_json: bool) -> None:
    """Pause a queue: workers take no more jobs from it.

    Running jobs go on to their end, and the queue still accepts new jobs. `windlass resume` ends the pause.
    Asks for confirmation if the queue is not in use, because its name may be wrong.
    """
    confirm_unused(app, queue, "pause", yes)
    changed = app.queue(queue).pause()
    if as_json:
        print_json({"queue": queue, "paused": True, "changed": changed})
    else:
        click.echo(f"{queue} is paused." if changed else f"{queue} was paused already.")
