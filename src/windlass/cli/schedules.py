"""`windlass schedules …`: what is enqueued by the clock."""

from __future__ import annotations

from typing import Any

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import NotFound, with_server
from windlass.cli.job_list import payload
from windlass.cli.options import json_option, option_of, yes_option
from windlass.cli.output import distance, plain, say_json, say_table
from windlass.values.schedule import Cron, ScheduleRecord

COLUMNS = ("queue", "name", "when", "state", "next", "last", "fired", "dropped", "missed")


@click.group()
def schedules() -> None:
    """Look after schedules: what is enqueued by the clock.

    A schedule lies beside the queue that it feeds, so it is named by that queue and its own name.

    \b
      windlass schedules list
      windlass schedules pause emails digest
      windlass schedules run emails digest      enqueue its job now
    """


@schedules.command("list")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@option_of("schedules")("--data", "with_data", is_flag=True, help="Show payloads in the JSON, too.")
@json_option
@with_server
def list_(app: Windlass, queues: tuple[str, ...], with_data: bool, as_json: bool) -> None:
    """List the schedules of all queues, or of those that are named."""
    found = [record for queue in queues or app.queues() for record in app.schedules.list(queue)]
    if as_json:
        say_json([_facts(record, with_data) for record in found])
    else:
        say_table(COLUMNS, [_row(record) for record in found], "There is no schedule.")


@schedules.command()
@click.argument("queue")
@click.argument("name")
@json_option
@with_server
def pause(app: Windlass, queue: str, name: str, as_json: bool) -> None:
    """No more ticks until it is resumed."""
    _check(app, queue, name)
    changed = app.schedules.pause(name, queue)
    if as_json:
        say_json({"queue": queue, "name": name, "paused": True, "changed": changed})
    else:
        click.echo(f"{queue}/{name} {'is paused' if changed else 'was paused already'}.")


@schedules.command()
@click.argument("queue")
@click.argument("name")
@json_option
@with_server
def resume(app: Windlass, queue: str, name: str, as_json: bool) -> None:
    """Go on with the next tick from now."""
    _check(app, queue, name)
    changed = app.schedules.resume(name, queue)
    if as_json:
        say_json({"queue": queue, "name": name, "paused": False, "changed": changed})
    else:
        click.echo(f"{queue}/{name} {'goes on' if changed else 'was not paused'}.")


@schedules.command()
@click.argument("queue")
@click.argument("name")
@json_option
@with_server
def run(app: Windlass, queue: str, name: str, as_json: bool) -> None:
    """Enqueue its job now, paused or not."""
    receipt = app.schedules.run_now(name, queue)
    if receipt is None:
        raise _missing(queue, name)
    if as_json:
        say_json({"queue": queue, **plain(receipt)})
    else:
        click.echo(f"{queue}/{receipt.id}: {receipt.status}")


@schedules.command()
@click.argument("queue")
@click.argument("name")
@yes_option
@json_option
@with_server
def delete(app: Windlass, queue: str, name: str, yes: bool, as_json: bool) -> None:
    """Take it away; jobs that it has enqueued stay.

    One that is declared in code comes back with the next worker that has the declaration: pause it instead.
    """
    _check(app, queue, name)
    if not yes:
        click.confirm(f"Delete schedule {name} of queue {queue}?", abort=True, err=True)
    app.schedules.delete(name, queue)
    if as_json:
        say_json({"queue": queue, "name": name, "deleted": True})
    else:
        click.echo(f"{queue}/{name} is deleted.")


def _check(app: Windlass, queue: str, name: str) -> None:
    if app.schedules.get(name, queue) is None:
        raise _missing(queue, name)


def _missing(queue: str, name: str) -> NotFound:
    return NotFound(f"queue {queue!r} has no schedule {name!r}: `windlass schedules list` names all")


def _facts(record: ScheduleRecord, with_data: bool) -> dict[str, Any]:
    schedule = record.schedule
    facts: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__ if name != "schedule"}
    if schedule is None:
        return facts
    facts |= {
        "when": _when(record),
        "declared": schedule.declared,
        "paused": schedule.paused,
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
    }
    return facts | ({"data": payload(schedule.data)} if with_data else {})


def _when(record: ScheduleRecord) -> str | None:
    if record.schedule is None:
        return None
    timing = record.schedule.timing
    return f"{timing.expression} {timing.zone}" if isinstance(timing, Cron) else f"every {timing.interval / 1000:g} s"


def _row(record: ScheduleRecord) -> tuple[object, ...]:
    schedule = record.schedule
    state = f"unreadable: {record.problem}" if schedule is None else "paused" if schedule.paused else "on"
    return (
        record.queue,
        record.name,
        _when(record),
        state,
        distance(record.next_at),
        distance(record.last_at),
        record.fired,
        record.dropped,
        record.missed,
    )
