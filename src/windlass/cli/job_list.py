"""How commands show jobs: many in a table, one in full, or as JSON. Payloads are shown only on request."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
import rich_click as click
from msgspec import Raw, structs

from windlass.cli.options import Command, option_of
from windlass.cli.output import (
    first_line,
    format_relative,
    format_size,
    format_time,
    print_facts,
    print_json,
    print_table,
    printable,
)
from windlass.errors import Undecodable
from windlass.queue import MAX_TAG_STEPS, Queue
from windlass.tasks.envelope import read_envelope
from windlass.values.job import JobRecord, Page, State

STATES = [state.value for state in State]
BROKEN_IN_WORDS = "broken: a worker could not decode its payload, so this attempt did not run"
COLUMNS = ("state", "id", "task", "priority", "when", "failures", "stalls", "holder", "progress", "message")
DEAD_COLUMNS = ("id", "task", "died", "reason", "failures", "stalls", "message")


def listing_options(command: str) -> Command:
    """`--limit`, `--cursor` and `--data`."""
    option = option_of(command)

    def decorate(function: Command) -> Command:
        for decorator in (
            option("--data", "with_data", is_flag=True, help="Show payloads, too. They may contain secrets."),
            option(
                "--cursor", metavar="CURSOR", help="Continue after an earlier page, with the cursor that it printed."
            ),
            option(
                "--limit",
                type=click.IntRange(1, 1000),
                metavar="N",
                default=20,
                show_default=True,
                help="Most jobs of each state, 1 to 1000.",
            ),
        ):
            function = decorator(function)
        return function

    return decorate


def list_jobs(
    queue: Queue,
    states: Sequence[State],
    limit: int,
    cursor: str | None,
    with_data: bool,
    as_json: bool,
    tag: str | None = None,
) -> None:
    """Print one page of each state, and the cursors of the next pages."""
    found: list[JobRecord] = []
    cursors: dict[str, str] = {}
    for state in states:
        page = _read_page(queue, state, cursor, limit, tag)
        found += page.jobs
        if page.cursor:
            cursors[state.value] = page.cursor
    if as_json:
        print_json({"queue": queue.name, "jobs": [job_facts(job, with_data) for job in found], "cursors": cursors})
        return
    all_dead = set(states) <= {State.DEAD, State.BROKEN}
    columns = list(DEAD_COLUMNS if all_dead else COLUMNS)
    rows = [list(_dead_row(job) if all_dead else _row(job)) for job in found]
    _add_column("snoozes", columns, rows, [str(job.snoozes or "") for job in found])
    _add_column("tags", columns, rows, [" ".join(job.tags) for job in found])
    _add_column("data", columns, rows, [_shown(job.data) if with_data else "" for job in found])
    named = " or ".join(states) if len(states) < len(State) else "jobs"
    print_table(columns, rows, f"No {named} on {queue.name}" + (f" with the tag {tag}." if tag else "."))
    for name, following in cursors.items():
        click.echo(
            f"More jobs: --cursor {following}"
            if all_dead
            else f"More {name} jobs: --state {name} --cursor {following}",
            err=True,
        )


def _read_page(queue: Queue, state: State, cursor: str | None, limit: int, tag: str | None) -> Page:
    """One page of jobs. With a tag, the first jobs that have it among a bounded number of jobs."""
    page = queue.jobs(state, tag=tag, cursor=cursor, limit=limit)
    for _ in range(MAX_TAG_STEPS - 1):
        if tag is None or page.cursor is None or len(page.jobs) == limit:
            break
        following = queue.jobs(state, tag=tag, cursor=page.cursor, limit=limit - len(page.jobs))
        page = Page(page.jobs + following.jobs, following.cursor)
    return page


def _add_column(name: str, columns: list[str], rows: list[list[object]], values: Sequence[str]) -> None:
    """Add a column to a table, if any of its values is not empty."""
    if any(values):
        columns.append(name)
        for row, value in zip(rows, values, strict=True):
            row.append(value)


def list_dead_jobs(queues: Sequence[Queue], state: State, limit: int, with_data: bool, as_json: bool) -> None:
    """Print the dead or broken jobs of several queues, at most `limit` of each."""
    pages = [(queue.name, queue.jobs(state, limit=limit)) for queue in queues]
    if as_json:
        print_json(
            [
                {
                    "queue": name,
                    "jobs": [job_facts(job, with_data) for job in page.jobs],
                    "cursors": {state.value: page.cursor} if page.cursor else {},
                }
                for name, page in pages
                if page.jobs
            ]
        )
        return
    shown = [(name, job) for name, page in pages for job in page.jobs]
    rows = [(name, *_dead_row(job), *([_shown(job.data)] if with_data else [])) for name, job in shown]
    print_table(("queue", *DEAD_COLUMNS, *(["data"] if with_data else [])), rows, f"No {state} job on any queue.")
    for name, page in pages:
        if page.cursor:
            click.echo(f"More jobs of {name}: `windlass dead list {name} --cursor {page.cursor}`", err=True)


def show_job(job: JobRecord, with_data: bool, as_json: bool) -> None:
    """Print all about one job."""
    if as_json:
        print_json(job_facts(job, with_data))
        return
    limits = job.limits
    print_facts(
        [
            ("queue", job.queue),
            ("id", job.id),
            ("task", task_of(job)),
            ("handles", None if job.failed is None else f"the failure of {job.failed.id}"),
            ("state", BROKEN_IN_WORDS if job.state is State.BROKEN else job.state.value),
            ("priority", job.priority),
            ("tags", " ".join(job.tags) or None),
            ("runs at", format_time(job.run_at)),
            ("expires at", format_time(job.expires_at)),
            ("failures", f"{job.failures} (max_failures {limits.max_failures})"),
            ("stalls", f"{job.stalls} (max_stalls {limits.max_stalls})"),
            ("snoozes", f"{job.snoozes} (max_snoozes {limits.max_snoozes})" if job.snoozes else None),
            ("backoff", f"{limits.min_backoff:g} s to {limits.max_backoff:g} s"),
            ("progress", None if job.progress is None else f"{job.progress:.0%}"),
            ("holder", job.holder),
            ("fence", job.fence),
            ("cancelled", "yes, the worker was told to stop it" if job.cancelled else None),
            ("reason", job.reason),
            ("died at", format_time(job.died_at)),
            ("data", None if with_data else f"{format_size(len(job.data))}; --data shows it"),
        ]
    )
    for title, text in (("message", job.message), ("data", _shown(job.data) if with_data else None)):
        if text:
            click.echo(f"\n{title}:")
            for line in text.splitlines():
                click.echo(f"  {printable(line)}")


def job_facts(job: JobRecord, with_data: bool) -> dict[str, Any]:
    """A job as a JSON object."""
    failed = job.failed
    facts = structs.asdict(job) | {"tags": job.tags, "expires_at": job.expires_at, "snoozes": job.snoozes}
    facts |= {"task": task_of(job), "failed": None if failed is None else failed.id}
    del facts["data"], facts["extras"], facts["marks"]
    return facts | ({"data": payload(job.data)} if with_data else {})


def task_of(job: JobRecord) -> str | None:
    """The name of the job's task; for a failure job, the task of the job that failed. None for raw payloads."""
    try:
        return read_envelope((job.failed or job).data).task
    except Undecodable:
        return None


def payload(data: bytes) -> dict[str, object]:
    """A payload in JSON: `{"json": …}` if it is JSON, else `{"text": …}`, else `{"base64": …}`."""
    try:
        msgspec.json.decode(data)
        return {"json": Raw(data)}
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _shown(data: bytes) -> str:
    ((kind, value),) = payload(data).items()
    if isinstance(value, Raw):
        return bytes(value).decode()
    return f"base64:{value}" if kind == "base64" else str(value)


def _row(job: JobRecord) -> tuple[object, ...]:
    return (
        job.state.value,
        job.id,
        task_of(job),
        job.priority,
        format_relative(job.died_at or job.run_at),
        job.failures,
        job.stalls,
        job.holder,
        None if job.progress is None else f"{job.progress:.0%}",
        first_line(job.message) or (None if job.failed is None else f"handles the failure of {job.failed.id}"),
    )


def _dead_row(job: JobRecord) -> tuple[object, ...]:
    died = format_relative(job.died_at)
    return job.id, task_of(job), died, job.reason, job.failures, job.stalls, first_line(job.message)
