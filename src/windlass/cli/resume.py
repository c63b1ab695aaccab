"""`windlass resume`: resume a paused queue."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option
from windlass.cli.output import print_json
from windlass.cli.queue_names import check_in_use


@click.command()
@click.argument("queue")
@json_option
@with_server
def resume(app: Windlass, queue: str, as_json: bool) -> None:
    """Resume a paused queue."""
    check_in_use(app, [queue])
    changed = app.queue(queue).resume()
    if as_json:
        print_json({"queue": queue, "paused": False, "changed": changed})
    else:
        click.echo(f"{queue} is resumed." if changed else f"{queue} was not paused.")
