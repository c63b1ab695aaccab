"""`windlass pause`: pause a queue."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option
from windlass.cli.output import print_json


@click.command()
@click.argument("queue")
@json_option
@with_server
def pause(app: Windlass, queue: str, as_json: bool) -> None:
    """Pause a queue: workers take no more jobs from it.

    Running jobs go on to their end, and the queue still accepts new jobs. `windlass resume` ends the pause.
    """
    changed = app.queue(queue).pause()
    if as_json:
        print_json({"queue": queue, "paused": True, "changed": changed})
    else:
        click.echo(f"{queue} is paused." if changed else f"{queue} was paused already.")
