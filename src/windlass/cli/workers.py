"""`windlass workers`: who works."""

from __future__ import annotations

from time import time

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option
from windlass.cli.output import length, say_json, say_table, size
from windlass.values.worker_record import WorkerRecord

COLUMNS = ("name", "host", "pid", "state", "up for", "queues", "running", "slots", "finished", "memory", "seen")


@click.command()
@json_option
@with_server
def workers(app: Windlass, as_json: bool) -> None:
    """List the workers that are there, and what they do.

    A worker tells of itself every few seconds. One that has missed three times is shown as lost?, and after a minute
    it is not listed any more.
    Slots are for coroutines, threads and processes.

    \b
      windlass workers
      windlass workers --json | jq '.[] | select(.state == "stopping")'
    """
    found = app.workers()
    if as_json:
        say_json(found)
    else:
        say_table(COLUMNS, [_row(worker) for worker in found], "No worker was heard of within the last minute.")


def _row(worker: WorkerRecord) -> tuple[object, ...]:
    now = time()
    return (
        worker.name,
        worker.host,
        worker.pid,
        worker.state,
        None if worker.started_at is None else length(now - worker.started_at),
        " ".join(name if weight == 1 else f"{name}={weight}" for name, weight in worker.queues.items()),
        worker.running,
        "/".join(str(worker.slots.get(kind, 0)) for kind in ("loop", "thread", "process")),
        worker.finished,
        size(worker.rss),
        None if worker.seen_at is None else f"{length(now - worker.seen_at)} ago",
    )
