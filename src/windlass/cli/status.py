"""`windlass status`: how many jobs there are, where, and who works on them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from time import sleep, time
from typing import Any

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option, option_of
from windlass.cli.output import cell, plain, plural, say_json, say_table, table_of
from windlass.errors import AccessDenied, KeyConflict
from windlass.values.worker_record import WorkerRecord

COLUMNS = ("queue", "ready", "scheduled", "blocked", "leased", "dead", "broken", "workers")
EVERY = 1.0  # seconds between two looks
LOOKED_AT = 100  # scheduled jobs among which unknown tasks are looked for
UNKNOWN = re.compile("no worker that saw it knows the task (.*)")


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@option_of("status")("--watch", is_flag=True, help="Look every second, until Ctrl-C.")
@json_option
@with_server
def status(app: Windlass, queues: tuple[str, ...], watch: bool, as_json: bool) -> None:
    """Show how many jobs each queue has, and what is amiss.

    For all queues, or for those that are named. Below the table it says what may need somebody's hand: queues
    that are paused, queues with jobs and no worker, jobs whose task no worker knows.

    With --watch the picture is live; where there is no terminal it prints one line of JSON a second.

    \b
      windlass status
      windlass status emails media --watch
      windlass status --json | jq '.queues[] | select(.dead > 0)'
    """
    if not watch:
        found = look(app, queues)
        if as_json:
            say_json(found)
        else:
            say_table(COLUMNS, rows(found), "No queue is in use.")
            for remark in remarks(found):
                click.echo(remark)
        return
    try:
        if as_json or not sys.stdout.isatty():
            for found in _looks(app, queues):
                say_json(found)
        else:
            _draw(app, queues)
    except KeyboardInterrupt:
        pass  # the way to end it


def look(app: Windlass, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """All that is to be known, as a JSON object."""
    try:
        workers = [worker for worker in app.workers() if not worker.is_lost]
    except AccessDenied:  # a user who may see no more than one queue
        workers = None
    found = [_look_at(app, name, workers) for name in names or app.queues()]
    return {"time": time(), "workers": None if workers is None else len(workers), "queues": found}


def _look_at(app: Windlass, name: str, workers: list[WorkerRecord] | None) -> dict[str, Any]:
    serving = None if workers is None else sum(name in worker.queues for worker in workers)
    idle_here = [worker for worker in workers or () if name in worker.suspended]
    suspended = [{"worker": worker.name, "reason": worker.suspended[name]} for worker in idle_here]
    try:
        counts = app.queue(name).counts()
        unknown = _unknown_tasks(app, name) if counts.parked else []
    except KeyConflict as error:  # one damaged queue must not hide the others
        return {"queue": name, "problem": str(error), "workers": serving}
    return {
        "queue": name,
        "problem": None,
        **plain(counts),
        "workers": serving,
        "unknown_tasks": unknown,
        "suspended": suspended,
        "max_broken": app.max_broken,
    }


def _unknown_tasks(app: Windlass, name: str) -> list[str]:
    """What jobs that were put aside are waiting for; they are tried again soon, so they are among the next."""
    page = app.queue(name).jobs("scheduled", limit=LOOKED_AT)
    found = [UNKNOWN.fullmatch(job.message or "") for job in page.jobs]
    return sorted({match[1] for match in found if match})


def rows(found: dict[str, Any]) -> list[tuple[object, ...]]:
    """The table."""
    return [tuple(queue.get(column) for column in COLUMNS) for queue in found["queues"]]


def remarks(found: dict[str, Any]) -> list[str]:
    """What may need somebody's hand."""
    return [cell(f"{queue['queue']}: {remark}") for queue in found["queues"] for remark in _remarks(queue)]


def _remarks(queue: dict[str, Any]) -> Iterator[str]:
    if queue["problem"]:
        yield queue["problem"]
        return
    waiting = queue["ready"] + queue["inbox"]
    if queue["paused"]:
        yield "paused, nothing is given out until `windlass resume`"
    elif waiting and queue["workers"] == 0:
        yield f"{plural(waiting, 'job')} ready, and no worker for this queue was heard of"
    if queue["parked"]:
        named = f": {', '.join(queue['unknown_tasks'])}" if queue["unknown_tasks"] else ""
        wait, whose = ("waits", "its") if queue["parked"] == 1 else ("wait", "their")
        yield f"{plural(queue['parked'], 'job')} {wait} for a worker that knows {whose} task{named}"
    for each in queue["suspended"]:
        yield f"worker {each['worker']} takes no jobs from this queue: {each['reason']}"
    if queue["broken"] >= queue["max_broken"]:
        yield (
            f"{plural(queue['broken'], 'job')} cannot be decoded, as many as the queue may keep (max_broken): workers "
            "that find another one stop taking jobs; see `windlass dead list --broken`"
        )
    if queue["dropped"]:
        yield f"{plural(queue['dropped'], 'dead job')} dropped, the oldest: the queue keeps no more than max_dead"
    if queue["inbox"]:
        yield f"{plural(queue['inbox'], 'job')} pushed by hand and not taken in yet"
    if queue["outbox"]:
        yield f"{plural(queue['outbox'], 'job')} on the way to other queues"


def _looks(app: Windlass, queues: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    while True:
        yield look(app, queues)
        sleep(EVERY)


def _draw(app: Windlass, queues: tuple[str, ...]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        for found in _looks(app, queues):
            lines = [Text(line) for line in remarks(found) or ([] if found["queues"] else ["No queue is in use."])]
            live.update(Group(table_of(COLUMNS, rows(found)), *lines), refresh=True)
