"""`windlass doctor`: check whether the server is safe for jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.exit_codes import FAILED
from windlass.cli.options import json_option, option_of
from windlass.cli.output import as_object, print_json, print_table, printable
from windlass.cli.status import survey
from windlass.doctor import SEVERITY, Finding, can_read_queues, examine
from windlass.doctor.finding import warning
from windlass.errors import WindlassError
from windlass.values.worker_record import WorkerRecord


@click.command()
@option_of("doctor")("--strict", is_flag=True, help="Exit with 1 on warnings, too.")
@json_option
@with_server
def doctor(app: Windlass, strict: bool, as_json: bool) -> None:
    """Check whether the server is safe for jobs.

    The doctor checks eviction, persistence, fsync, memory, replicas, version and known bugs, clock, latency, access
    rights and more. It changes nothing. In a cluster it checks every primary; with Sentinel, the primary. If this user
    has no right to a check, the doctor reports the check as unseen, with the ACL rule that allows it.

    A danger means that the server can lose jobs, or that no worker can run them. The doctor then exits with 1. A
    worker refuses to start on the worst dangers.

    \b
    Examples:
      windlass doctor
      windlass doctor --url redis://localhost:6379/0 --strict
      windlass doctor --json | jq '.findings[] | select(.level == "danger")'
    """
    found = [*app._flows.run(partial(examine, namespace=app.namespace)), *_queue_findings(app)]
    worst = max(found, key=lambda finding: SEVERITY[finding.level]).level if found else "ok"
    if as_json:
        print_json({"worst": worst, "findings": [as_object(finding) for finding in found]})
    else:
        _print(found)
    if SEVERITY[worst] >= SEVERITY["warning" if strict else "danger"]:
        sys.exit(FAILED)


def _queue_findings(app: Windlass) -> Iterator[Finding]:
    """Queues that are suspended, or full of broken jobs."""
    if not app._flows.run(partial(can_read_queues, namespace=app.namespace)):
        yield Finding("queues", "unseen", "this user may not read the queues", "the line in docs/acl/reader.acl")
        return
    try:
        found = survey(app)["queues"]
        yield from _queues_of_several_apps(app.workers())
    except WindlassError:
        return  # another finding says which server cannot be reached, or that a right is missing
    for queue in found:
        for each in queue.get("suspended", ()):
            yield warning(
                "queues",
                f"{queue['queue']}: worker {each['worker']} only tries one job at a time: {each['reason']}",
                f"check the code and the keys of that worker; see windlass dead list --broken {queue['queue']}",
            )
        if queue.get("broken", 0) >= app.max_broken:
            yield warning(
                "queues",
                f"{queue['queue']}: {queue['broken']} jobs cannot be decoded; the queue keeps no more (max_broken)",
                f"retry or delete them: windlass dead retry --broken --all {queue['queue']}",
            )


def _queues_of_several_apps(workers: list[WorkerRecord]) -> Iterator[Finding]:
    """Queues whose living workers know different tasks."""
    by_queue: dict[str, dict[str, WorkerRecord]] = {}
    for worker in workers:
        if worker.tasks_digest and not worker.is_lost:
            for queue in worker.queues:
                by_queue.setdefault(queue, {}).setdefault(worker.tasks_digest, worker)
    for queue, apps in sorted(by_queue.items()):
        if len(apps) > 1:
            named = " and ".join(f"{worker.name} ({', '.join(worker.tasks)}, …)" for worker in list(apps.values())[:2])
            yield warning(
                "queues",
                f"{queue}: the workers {named} have different tasks; each passes on the jobs that it does not know",
                "if these are different projects, give each a namespace (Windlass(namespace=…) or WINDLASS_NAMESPACE) "
                "or queues of its own; after a deployment, restart the workers that run old code",
            )


def _print(found: list[Finding]) -> None:
    """Print a table of all findings, then the remedies."""
    several = len({finding.server for finding in found}) > 1
    place = ("server",) if several else ()
    rows = [(*((finding.server,) if several else ()), finding.level, finding.check, finding.what) for finding in found]
    print_table((*place, "level", "check", "what"), rows, "No server to check.")
    todo = (finding for finding in found if finding.remedy and finding.level in ("warning", "danger", "unseen"))
    for line in dict.fromkeys(f"{each.server + ' ' if several else ''}{each.check}: {each.remedy}" for each in todo):
        click.echo(printable(line))
