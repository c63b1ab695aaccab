"""`windlass enqueue`: put a job on a queue."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, cast

import msgspec
import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import connect, is_typed, load
from windlass.cli.exit_codes import NotFound
from windlass.cli.options import (
    app_option,
    duration,
    json_option,
    layout_option,
    namespace_option,
    option_of,
    url_option,
)
from windlass.cli.output import print_json, printable
from windlass.task import DEFAULT_QUEUE, CallOptions
from windlass.tasks.call import TaskCall
from windlass.tasks.envelope import write_envelope
from windlass.tasks.names import check_task_name
from windlass.values.options import JobOptions

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_option = option_of("enqueue")


@click.command()
@click.argument("what", metavar="TASK|QUEUE")
@click.argument("arguments", nargs=-1)
@_option("--raw", is_flag=True, help="Enqueue bytes: give the queue and the data, or - to read standard input.")
@_option("--id", metavar="ID", help="The job's id. If a job with this id waits, it is updated.")
@_option("--delay", type=duration(), metavar="DURATION", help="Delay the job, like 90s or 1h30m.")
@_option("--priority", type=click.IntRange(0, 9), metavar="0-9", help="0 runs first, 9 last. The default is 5.")
@_option("--tag", "tags", multiple=True, metavar="TAG", help="Tag the job. Repeat it for several tags.")
@_option(
    "--expires",
    type=duration(),
    metavar="DURATION",
    help="Drop the job if it has not started so long after its run time.",
)
@_option("--queue", metavar="NAME", help="Use this queue instead of the task's queue.")
@_option("--durability", metavar="LEVEL", help="Required durability: memory, everysec, fsync, or replicated(n).")
@app_option("The app of the task. Its signature checks the arguments, and its server gets the job.")
@url_option
@namespace_option
@layout_option
@json_option
def enqueue(
    what: str,
    arguments: tuple[str, ...],
    raw: bool,
    id: str | None,
    delay: float | None,
    priority: int | None,
    tags: tuple[str, ...],
    expires: float | None,
    queue: str | None,
    durability: str | None,
    app_name: str | None,
    url: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Put a job on a queue.

    Give arguments by position or as name=value. Each argument is JSON, or else text: fr and "fr" are the same text, 42
    is a number, and '"42"' is text. Write -- before negative numbers.

    With --app, the arguments are checked against the task's signature. Without it, the job goes unchecked to the queue
    of --queue.

    \b
    Examples:
      windlass enqueue welcome 42 locale=fr --app shop.jobs:app
      windlass enqueue welcome 42 --app shop.jobs:app --id welcome-42 --delay 5m
      windlass enqueue --raw thumbs 'any bytes'
      windlass enqueue --raw thumbs - < picture.png
    """
    given = {"id": id, "delay": delay, "priority": priority, "tags": tags or None, "expires": expires}
    given["durability"] = durability
    options = cast(JobOptions, {name: value for name, value in given.items() if value is not None})
    if raw:
        if queue:
            raise click.UsageError("--raw takes its queue as an argument: omit --queue")
        if is_typed("url") and is_typed("app_name"):
            raise click.UsageError("--url and --app both name a server: give one of them")
        call = TaskCall("", what, _bytes(arguments), options)
    elif app_name:
        app = load(app_name)
        call, namespace = _checked_call(app, what, arguments, options, queue), namespace or app.namespace
    else:
        call = TaskCall(what, queue or DEFAULT_QUEUE, _envelope(what, arguments), options)
    # WINDLASS_URL does not override an app: an app without a URL of its own has read it already.
    with connect(url, namespace, None if is_typed("url") else app_name) as server:
        (receipt,) = server.enqueue_many([call])
    if not (raw or app_name or queue):
        click.echo(
            f"windlass: the arguments were not checked, and the queue is {call.queue}: give --app or --queue", err=True
        )
    if as_json:
        made = {"queue": call.queue, "task": call.task or None, "id": receipt.id, "status": receipt.status}
        print_json({**made, "durability": receipt.durability})
    else:
        click.echo(printable(f"{call.queue}/{receipt.id}: {receipt.status}"))


def _bytes(arguments: tuple[str, ...]) -> bytes:
    if len(arguments) != 1:
        raise click.UsageError("--raw takes a queue and one piece of data, or - to read standard input")
    return sys.stdin.buffer.read() if arguments == ("-",) else os.fsencode(arguments[0])


def _checked_call(
    app: Windlass, name: str, arguments: tuple[str, ...], options: JobOptions, queue: str | None
) -> TaskCall:
    task = app.find_task(name)
    if task is None:
        raise NotFound(f"the app has no task {name!r}; its tasks: {', '.join(app.tasks) or 'none'}")
    more = cast(CallOptions, {**options, **({"queue": queue} if queue else {})})
    args, kwargs = _read(arguments)
    return task.using(**more).call(*args, **kwargs)


def _envelope(task: str, arguments: tuple[str, ...]) -> bytes:
    args, kwargs = _read(arguments)
    if args and kwargs:
        raise click.UsageError("without --app, give all arguments by position or all by name")
    return write_envelope(check_task_name(task), msgspec.json.encode(args or kwargs))


def _read(arguments: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments, then arguments by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for place, argument in enumerate(arguments, 1):
        named = _NAMED.fullmatch(argument)
        if named is None and kwargs:
            raise click.UsageError(f"argument {place} follows an argument by name: give positional arguments first")
        if named is None:
            args.append(_value(argument))
        elif named[1] in kwargs:
            raise click.UsageError(f"argument {named[1]!r} is given twice")
        else:
            kwargs[named[1]] = _value(named[2])
    return args, kwargs


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return text
