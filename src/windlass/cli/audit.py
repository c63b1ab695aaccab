"""`windlass audit`: check that every job is in exactly one index."""

from __future__ import annotations

import sys
from typing import Any

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.exit_codes import FAILED
from windlass.cli.options import json_option, option_of, queues_argument
from windlass.cli.output import as_object, plural, print_json, print_table, printable
from windlass.cli.queue_names import check_in_use, chosen_queues
from windlass.errors import KeyConflict
from windlass.values.audit import Audit
from windlass.values.name_patterns import is_pattern

COLUMNS = {"queue": "queue", "layout": "layout", "jobs": "jobs", "problems": "problems", "repaired": "repaired"}


@click.command()
@queues_argument
@option_of("audit")("--repair", is_flag=True, help="Repair what is found. Without it, the audit writes nothing.")
@json_option
@with_server
def audit(app: Windlass, queues: tuple[str, ...], repair: bool, as_json: bool) -> None:
    """Check that every job is in its index; repair it if not.

    Every job must be in exactly one index, and every index entry must have its job. Windlass itself always keeps this
    rule. Keys deleted by hand, eviction and partly restored backups can break it.

    The audit checks all queues, or the queues that you name. It works in small steps and does not stop workers. With
    --repair, a job without an index becomes ready again, and an entry without a job is deleted.

    Exits with 1 if a problem is left.

    \b
    Examples:
      windlass audit
      windlass audit emails --repair
      windlass audit --json | jq '.queues[] | select(.ok | not)'
    """
    results = [_audit(app, name, repair) for name in chosen_queues(app, queues)]
    if as_json:
        print_json({"queues": results})
    else:
        rows = [tuple(result.get(column) for column in COLUMNS) for result in results]
        print_table(list(COLUMNS.values()), rows, "No queue is in use.")
        for result in results:
            _print_problems(result)
    if not all(result["ok"] for result in results):
        sys.exit(FAILED)
    check_in_use(app, [name for name in queues if not is_pattern(name)])


def _audit(app: Windlass, name: str, repair: bool) -> dict[str, Any]:
    queue = app.queue(name)
    try:
        return _as_json(queue.audit(repair=repair))
    except KeyConflict as error:  # one damaged queue must not hide the others
        return {"queue": queue.name, "layout": queue.layout, "ok": False, "error": str(error)}


def _as_json(found: Audit) -> dict[str, Any]:
    return as_object(found) | {"problems": found.problems, "repaired": found.repaired, "ok": found.ok, "error": None}


def _print_problems(result: dict[str, Any]) -> None:
    if result["error"]:
        click.echo(printable(f"{result['queue']}: {result['error']}"))
        return
    for part in result["damaged_parts"]:
        examples = ", ".join(f"{example['id']} ({example['kind']})" for example in part["examples"])
        more = "" if len(part["examples"]) == part["problems"] else ", …"
        end = ", repaired" if part["repaired"] == part["problems"] else ""
        what = f"{plural(part['problems'], 'problem')} in {part['part']}{end}: {examples}{more}"
        click.echo(printable(f"{result['queue']}: {what}"))
    if result["recovered"]:
        recovered = plural(result["recovered"], "job")
        click.echo(printable(f"{result['queue']}: {recovered} recovered from lost workers"))
