"""`windlass queues`: the names of all queues in use."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option
from windlass.cli.output import print_json


@click.command()
@json_option
@with_server
def queues(app: Windlass, as_json: bool) -> None:
    """List the queues in use.

    Prints one name per line. A queue exists from its first job until it is empty and no worker uses it.

    \b
    Examples:
      for q in $(windlass queues); do windlass pause "$q"; done
    """
    names = app.queues()
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)
    if not names:
        click.echo("No queue is in use.", err=True)
