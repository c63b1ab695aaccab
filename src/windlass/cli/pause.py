"""`windlass pause`: stop giving out the jobs of a queue."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.reach import with_server


@click.command()
@click.argument("queue")
@with_server
def pause(app: Windlass, queue: str) -> None:
    """Stop giving out the jobs of a queue.

    What runs goes on to its end, and new jobs are taken in; nothing more is started until `windlass resume`.
    """
    click.echo(f"{queue} is paused." if app.queue(queue).pause() else f"{queue} was paused already.")
