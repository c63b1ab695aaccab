"""`windlass status`: job counts, workers and problems of each queue."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from time import sleep, time
from typing import Any

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option, option_of, queues_argument
from windlass.cli.output import as_object, make_table, plural, print_json, print_table, printable
from windlass.cli.queue_names import check_in_use, chosen_queues
from windlass.errors import AccessDenied, KeyConflict, UnsupportedByLayout
from windlass.values.worker_record import WorkerRecord

COLUMNS = ("queue", "ready", "scheduled", "blocked", "running", "dead", "broken", "workers")
WATCH_INTERVAL_S = 1.0
MAX_SEARCHED = 100  # scheduled jobs; parked jobs are due soon, so they are among the first
UNKNOWN_TASK = re.compile("a worker did not know the task (.*); the job waits for one that does")


@click.command()
@queues_argument
@option_of("status")("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@json_option
@with_server
def status(app: Windlass, queues: tuple[str, ...], watch: bool, as_json: bool) -> None:
    """Show the job counts and the problems of each queue.

    Shows all queues, or the queues that you name; a name may be a pattern. Below the table it lists problems: paused
    queues, queues with jobs and no worker, jobs of a task that no worker knows. Exits with 3 if a queue that you name
    is not in use.

    A blocked job waits because a job with the same id is running. A broken job did not run, because a worker could not
    decode its payload: `windlass dead list --broken QUEUE` says why.

    --json also counts the tags of waiting and running jobs, among the first 20,000 or so that have options.

    With --watch, the table is live. Without a terminal, --watch prints one line of JSON per second.

    \b
    Examples:
      windlass status
      windlass status emails media --watch
      windlass status 'mail-*'
      windlass status --json | jq '.queues[] | select(.dead > 0)'
    """
    queues = tuple(chosen_queues(app, queues)) if queues else ()
    if not watch:
        found = survey(app, queues)
        if as_json:
            for queue in found["queues"]:
                queue |= {} if queue["error"] else _tags(app, queue["queue"])
            print_json(found)
        else:
            if found["namespace"]:
                click.echo(f"namespace {found['namespace']}")
            print_table(COLUMNS, _rows(found), "No queue is in use.")
            for problem in _all_problems(found):
                click.echo(problem)
        check_in_use(app, queues)
        return
    try:
        if as_json or not sys.stdout.isatty():
            for found in _surveys(app, queues):
                print_json(found)
        else:
            _draw(app, queues)
    except KeyboardInterrupt:
        pass  # ends --watch


def survey(app: Windlass, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The counts, the workers and the problems of these queues, or of all queues, as a JSON object."""
    try:
        workers = [worker for worker in app.workers() if not worker.is_lost]
    except AccessDenied:  # a user with rights on one queue only
        workers = None
    found = [_survey_queue(app, name, workers) for name in names or app.queues()]
    return {
        "time": time(),
        "namespace": app.namespace or None,
        "workers": None if workers is None else len(workers),
        "queues": found,
    }


def _survey_queue(app: Windlass, name: str, workers: list[WorkerRecord] | None) -> dict[str, Any]:
    serving = None if workers is None else sum(name in worker.queues for worker in workers)
    affected = [worker for worker in workers or () if name in worker.suspended]
    suspended = [{"worker": worker.name, "reason": worker.suspended[name]} for worker in affected]
    try:
        counts = app.queue(name).counts()
        unknown = _unknown_tasks(app, name) if counts.parked else []
    except KeyConflict as error:  # one damaged queue must not hide the others
        return {"queue": name, "error": str(error), "workers": serving}
    return {
        "queue": name,
        "error": None,
        **as_object(counts),
        "workers": serving,
        "unknown_tasks": unknown,
        "suspended": suspended,
        "max_broken": app.max_broken,
    }


def _tags(app: Windlass, name: str) -> dict[str, Any]:
    """How many waiting and running jobs have each tag, or why that is not known. Nothing where a layout has no tags."""
    try:
        tags = app.queue(name).tags()
    except UnsupportedByLayout:
        return {}
    except KeyConflict as error:
        return {"error": str(error)}
    return {"tags": tags.jobs, "tags_complete": tags.complete}


def _unknown_tasks(app: Windlass, name: str) -> list[str]:
    """The tasks of parked jobs."""
    page = app.queue(name).jobs("scheduled", limit=MAX_SEARCHED)
    found = [UNKNOWN_TASK.fullmatch(job.message or "") for job in page.jobs]
    return sorted({match[1] for match in found if match})


def _rows(found: dict[str, Any]) -> list[tuple[object, ...]]:
    return [tuple(queue.get(column) for column in COLUMNS) for queue in found["queues"]]


def _all_problems(found: dict[str, Any]) -> list[str]:
    return [printable(f"{queue['queue']}: {problem}") for queue in found["queues"] for problem in _problems(queue)]


def _problems(queue: dict[str, Any]) -> Iterator[str]:
    if queue["error"]:
        yield queue["error"]
        return
    waiting = queue["ready"] + queue["inbox"]
    if queue["paused"]:
        yield f"paused: workers take no jobs until `windlass resume {queue['queue']}`"
    elif waiting and queue["workers"] == 0:
        yield f"{plural(waiting, 'job')} ready, but no worker serves this queue"
    if queue["parked"]:
        named = f": {', '.join(queue['unknown_tasks'])}" if queue["unknown_tasks"] else ""
        wait, whose = ("waits", "its") if queue["parked"] == 1 else ("wait", "their")
        yield f"{plural(queue['parked'], 'job')} {wait} for a worker that knows {whose} task{named}"
    for each in queue["suspended"]:
        yield f"worker {each['worker']} only tries one job at a time: {each['reason']}"
    if queue["broken"] >= queue["max_broken"]:
        yield (
            f"{plural(queue['broken'], 'job')} cannot be decoded, and the queue keeps no more (max_broken): a worker "
            f"that finds another one only tries one job at a time; see `windlass dead list --broken {queue['queue']}`"
        )
    if queue["dropped"]:
        yield f"{plural(queue['dropped'], 'dead job')} deleted, the oldest first: the queue keeps at most max_dead"
    if queue["inbox"]:
        yield f"{plural(queue['inbox'], 'job')} in the inbox: a worker moves them into the queue"
    if queue["outbox"]:
        yield f"{plural(queue['outbox'], 'job')} in the outbox, on the way to other queues"


def _surveys(app: Windlass, queues: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    while True:
        yield survey(app, queues)
        sleep(WATCH_INTERVAL_S)


def _draw(app: Windlass, queues: tuple[str, ...]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        for found in _surveys(app, queues):
            problems = _all_problems(found) or ([] if found["queues"] else ["No queue is in use."])
            live.update(Group(make_table(COLUMNS, _rows(found)), *map(Text, problems)), refresh=True)
