"""`windlass audit`: whether every job is in its place."""

from __future__ import annotations

import sys
from typing import Any

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option, option_of
from windlass.cli.output import cell, plain, plural, say_json, say_table
from windlass.errors import KeyConflict
from windlass.values.audit import Audit

FAILED = 1
COLUMNS = ("queue", "layout", "jobs", "amiss", "mended")


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@option_of("audit")("--repair", is_flag=True, help="Mend what is amiss. Without it nothing is written.")
@json_option
@with_server
def audit(app: Windlass, queues: tuple[str, ...], repair: bool, as_json: bool) -> None:
    """Look whether every job is in its place.

    Every job is to be in exactly one index, and every entry of an index is to have its job. Nothing in Windlass makes
    it otherwise; keys deleted by hand, eviction and half-restored backups do. It looks at all queues, or at those that
    are named, in small steps, beside live workers. With --repair what it finds is mended: a job that is in no index is
    ready again, and what belongs to nothing goes.

    Exits with 1 if something is amiss and was not mended.

    \b
      windlass audit
      windlass audit emails --repair
      windlass audit --json | jq '.queues[] | select(.sound | not)'
    """
    found = [_look(app, name, repair) for name in queues or app.queues()]
    if as_json:
        say_json({"queues": found})
    else:
        say_table(COLUMNS, [tuple(each.get(column) for column in COLUMNS) for each in found], "No queue is in use.")
        for each in found:
            _say(each)
    if not all(each["sound"] for each in found):
        sys.exit(FAILED)


def _look(app: Windlass, name: str, repair: bool) -> dict[str, Any]:
    queue = app.queue(name)
    try:
        return _as_json(queue.audit(repair=repair))
    except KeyConflict as error:  # one damaged queue must not hide the others
        return {"queue": queue.name, "layout": queue.layout, "sound": False, "problem": str(error)}


def _as_json(found: Audit) -> dict[str, Any]:
    return plain(found) | {"amiss": found.amiss, "mended": found.mended, "sound": found.sound, "problem": None}


def _say(each: dict[str, Any]) -> None:
    if each["problem"]:
        click.echo(cell(f"{each['queue']}: {each['problem']}"))
        return
    for drift in each["drifts"]:
        examples = ", ".join(f"{example['id']} ({example['kind']})" for example in drift["examples"])
        more = "" if len(drift["examples"]) == drift["amiss"] else ", …"
        end = ", mended" if drift["mended"] == drift["amiss"] else ""
        what = f"{plural(drift['amiss'], 'thing')} amiss in {drift['part']}{end}: {examples}{more}"
        click.echo(cell(f"{each['queue']}: {what}"))
    if each["recovered"]:
        click.echo(cell(f"{each['queue']}: {plural(each['recovered'], 'job')} taken back from holders that are lost"))
