"""`windlass queues`: the names of all queues."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option
from windlass.cli.output import say_json


@click.command()
@json_option
@with_server
def queues(app: Windlass, as_json: bool) -> None:
    """Name all queues that are in use.

    One name a line. A queue comes into being with its first job, and leaves nothing behind when it is empty and
    nobody uses it any more.

    \b
      for q in $(windlass queues); do windlass pause "$q"; done
    """
    names = app.queues()
    if as_json:
        say_json(names)
        return
    for name in names:
        click.echo(name)
    if not names:
        click.echo("No queue is in use.", err=True)
