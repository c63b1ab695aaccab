"""`windlass resume`: give out the jobs of a queue again."""

from __future__ import annotations

import rich_click as click

from windlass.app import Windlass
from windlass.cli.reach import with_server


@click.command()
@click.argument("queue")
@with_server
def resume(app: Windlass, queue: str) -> None:
    """Give out the jobs of a paused queue again."""
    click.echo(f"{queue} goes on." if app.queue(queue).resume() else f"{queue} was not paused.")
