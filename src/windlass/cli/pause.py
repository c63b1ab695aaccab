"""`windlass pause`: stop giving out the jobs of a queue."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option
from windlass.cli.output import say_json


@click.command()
@click.argument("queue")
@json_option
@with_server
def pause(app: Windlass, queue: str, as_json: bool) -> None:
    """Stop giving out the jobs of a queue.

    What runs goes on to its end, and new jobs are taken in; nothing more is started until `windlass resume`.
    """
    changed = app.queue(queue).pause()
    if as_json:
        say_json({"queue": queue, "paused": True, "changed": changed})
    else:
        click.echo(f"{queue} is paused." if changed else f"{queue} was paused already.")
