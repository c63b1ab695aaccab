"""`windlass layouts`: the layouts that a queue can have, and the features of each."""

from __future__ import annotations

import rich_click as click

from windlass.cli.options import json_option
from windlass.cli.output import print_json, print_table
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.port import Capability


@click.command()
@json_option
def layouts(as_json: bool) -> None:
    """List the layouts, and the features of each.

    A layout defines the keys of a queue on the server. The layout `native` has all features. Each other layout uses
    the keys of another queue system, so that Windlass can share a queue with programs of that system, in any language.
    An operation that a layout does not support fails with an error.

    \b
    Examples:
      windlass worker shop.jobs:app --layout thumbs=workqueue
      windlass status thumbs --layout workqueue
    """
    if as_json:
        print_json(
            {name: [each.name.lower() for each in Capability if each in can] for name, can in CAPABILITIES.items()}
        )
        return
    rows = [(each, *("yes" if each in can else "-" for can in CAPABILITIES.values())) for each in Capability]
    print_table(("", *CAPABILITIES), rows, "")
