"""`windlass layouts`: which layouts there are, and what each can do."""

from __future__ import annotations

import rich_click as click

from windlass.cli.options import json_option
from windlass.cli.output import say_json, say_table
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.port import Capability


@click.command()
@json_option
def layouts(as_json: bool) -> None:
    """Show the layouts that a queue can have, and what each can do.

    A layout is how a queue lies in the server. `native` is Windlass's own and can do everything; the others speak the
    keys of published queues, so that Windlass can work beside programs of other makes and languages. What a layout
    cannot do is refused with a clear error.

    \b
      windlass worker shop.jobs:app --layout thumbs=workqueue
      windlass status thumbs --layout workqueue
    """
    if as_json:
        say_json(
            {name: [each.name.lower() for each in Capability if each in can] for name, can in CAPABILITIES.items()}
        )
        return
    rows = [(each, *("yes" if each in can else "-" for can in CAPABILITIES.values())) for each in Capability]
    say_table(("", *CAPABILITIES), rows, "")
