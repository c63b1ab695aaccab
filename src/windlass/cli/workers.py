"""`windlass workers`: the workers, and their state."""

from __future__ import annotations

from time import time

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option
from windlass.cli.output import format_duration, format_size, print_json, print_table
from windlass.values.worker_record import WorkerRecord

COLUMNS = ("name", "host", "pid", "state", "up for", "queues", "running", "slots", "finished", "memory", "seen")


@click.command()
@json_option
@with_server
def workers(app: Windlass, as_json: bool) -> None:
    """List the workers.

    A worker reports its state every few seconds. After three missed reports it is listed as lost?, and after a minute
    it is not listed any more.

    The column slots shows the number of coroutines, threads and processes.

    \b
    Examples:
      windlass workers
      windlass workers --json | jq '.[] | select(.state == "stopping")'
    """
    found = app.workers()
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, [_row(worker) for worker in found], "No worker has reported within the last minute.")


def _row(worker: WorkerRecord) -> tuple[object, ...]:
    now = time()
    return (
        worker.name,
        worker.host,
        worker.pid,
        worker.state,
        None if worker.started_at is None else format_duration(now - worker.started_at),
        " ".join(name if weight == 1 else f"{name}={weight}" for name, weight in worker.queues.items()),
        worker.running,
        "/".join(str(worker.slots.get(kind, 0)) for kind in ("loop", "thread", "process")),
        worker.finished,
        format_size(worker.rss),
        None if worker.seen_at is None else f"{format_duration(now - worker.seen_at)} ago",
    )
