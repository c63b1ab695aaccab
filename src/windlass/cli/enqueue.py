"""`windlass enqueue`: put a job on a queue."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, cast

import msgspec
import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import NotFound, connect, load, typed
from windlass.cli.options import app_option, duration, json_option, layout_option, option_of, url_option
from windlass.cli.output import cell, say_json
from windlass.task import DEFAULT_QUEUE, CallOptions, check_task_name
from windlass.tasks.call import TaskCall
from windlass.tasks.envelope import write_envelope
from windlass.values.options import JobOptions

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_option = option_of("enqueue")


@click.command()
@click.argument("what", metavar="TASK|QUEUE")
@click.argument("arguments", nargs=-1)
@_option("--raw", is_flag=True, help="Put bytes on a queue: its name, and the data or - for standard input.")
@_option("--id", help="The job's id. A job of this id that waits is updated.")
@_option("--delay", type=duration(), metavar="DURATION", help="Run it so much later, like 90s or 1h30m.")
@_option("--priority", type=click.IntRange(0, 9), help="0 comes first, 9 last; 5 is plain.")
@_option("--queue", help="Another queue than the task's own.")
@_option("--durability", help="How safe it must be: memory, everysec, fsync, or replicated(n).")
@app_option("The app that has the task: arguments are checked against its signature, and its server is used.")
@url_option
@layout_option
@json_option
def enqueue(
    what: str,
    arguments: tuple[str, ...],
    raw: bool,
    id: str | None,
    delay: float | None,
    priority: int | None,
    queue: str | None,
    durability: str | None,
    app_name: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Put a job on a queue.

    Arguments are given by place or as name=value. Each is read as JSON; what is no JSON is text, so fr and "fr" are
    the same, while 42 is a number and '"42"' is text. Put -- in front of negative numbers.

    With --app they are checked, as they would be in Python. Without one the job is written as it is: for a task
    that only its worker knows, on the queue that --queue names.

    \b
      windlass enqueue welcome 42 locale=fr --app shop.jobs:app
      windlass enqueue welcome 42 --app shop.jobs:app --id welcome-42 --delay 5m
      windlass enqueue --raw thumbs 'any bytes'
      windlass enqueue --raw thumbs - < picture.png
    """
    given = {"id": id, "delay": delay, "priority": priority, "durability": durability}
    options = cast(JobOptions, {name: value for name, value in given.items() if value is not None})
    if raw:
        if queue or (typed("url") and typed("app_name")):
            raise click.UsageError("--raw has its queue as an argument, and one server: leave --queue, or --app, away")
        call = TaskCall("", what, _bytes(arguments), options)
    elif app_name:
        call = _checked_call(load(app_name), what, arguments, options, queue)
    else:
        call = TaskCall(what, queue or DEFAULT_QUEUE, _envelope(what, arguments), options)
    # A URL from the environment does not count beside an app: that has read it already, if it has none of its own.
    with connect(url, None if typed("url") else app_name) as server:
        (receipt,) = server.enqueue_many([call])
    if not (raw or app_name or queue):
        click.echo(
            f"windlass: the arguments were not checked, and the queue is {call.queue}: name --app, or --queue", err=True
        )
    if as_json:
        told = {"queue": call.queue, "task": call.task or None, "id": receipt.id, "status": receipt.status}
        say_json({**told, "durability": receipt.durability})
    else:
        click.echo(cell(f"{call.queue}/{receipt.id}: {receipt.status}"))


def _bytes(arguments: tuple[str, ...]) -> bytes:
    if len(arguments) != 1:
        raise click.UsageError("--raw takes a queue and its data, or - to read it from standard input")
    return sys.stdin.buffer.read() if arguments == ("-",) else os.fsencode(arguments[0])


def _checked_call(
    app: Windlass, name: str, arguments: tuple[str, ...], options: JobOptions, queue: str | None
) -> TaskCall:
    task = app.find(name)
    if task is None:
        raise NotFound(f"there is no task {name!r}: the app has {', '.join(app.tasks) or 'none at all'}")
    more = cast(CallOptions, {**options, **({"queue": queue} if queue else {})})
    args, kwargs = _read(arguments)
    return task.using(**more).call(*args, **kwargs)


def _envelope(task: str, arguments: tuple[str, ...]) -> bytes:
    args, kwargs = _read(arguments)
    if args and kwargs:
        raise click.UsageError("without --app, give all arguments by place or all by name")
    return write_envelope(check_task_name(task), msgspec.json.encode(args or kwargs))


def _read(arguments: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Those by place, and those by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for place, argument in enumerate(arguments, 1):
        named = _NAMED.fullmatch(argument)
        if named is None and kwargs:
            raise click.UsageError(f"argument {place} stands behind one by name: those by place come first")
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
