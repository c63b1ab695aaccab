"""`windlass schedules …`: the schedules of all queues."""

from __future__ import annotations

from typing import Any

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.exit_codes import NotFound
from windlass.cli.job_list import payload
from windlass.cli.options import Command, json_option, option_of, queues_argument, yes_option
from windlass.cli.output import as_object, format_relative, print_json, print_table, printable
from windlass.cli.queue_names import check_in_use, chosen_queues
from windlass.values.name_patterns import is_pattern
from windlass.values.schedule import Cron, ScheduleRecord

COLUMNS = ("queue", "name", "when", "state", "next", "last", "fired", "dropped", "missed")


def _schedule_arguments(command: Command) -> Command:
    return click.argument("queue")(click.argument("name")(command))


@click.group()
def schedules() -> None:
    """List schedules; pause, resume, run or delete one.

    A schedule belongs to the queue of its jobs: name it by that queue and its own name.

    \b
    Examples:
      windlass schedules list
      windlass schedules pause emails digest
      windlass schedules run emails digest      enqueue its job now
    """


@schedules.command("list")
@queues_argument
@option_of("schedules")("--data", "with_data", is_flag=True, help="Include payloads in the JSON.")
@json_option
@with_server
def list_(app: Windlass, queues: tuple[str, ...], with_data: bool, as_json: bool) -> None:
    """List the schedules of all queues, or of the queues that you name."""
    found = [record for queue in chosen_queues(app, queues) for record in app.schedules.list(queue)]
    if as_json:
        print_json([_facts(record, with_data) for record in found])
    else:
        print_table(COLUMNS, [_row(record) for record in found], "No queue has a schedule.")
    check_in_use(app, [name for name in queues if not is_pattern(name)])


@schedules.command()
@_schedule_arguments
@json_option
@with_server
def pause(app: Windlass, queue: str, name: str, as_json: bool) -> None:
    """Pause a schedule: it enqueues no job until it is resumed."""
    _check(app, queue, name)
    changed = app.schedules.pause(queue, name)
    if as_json:
        print_json({"queue": queue, "name": name, "paused": True, "changed": changed})
    else:
        click.echo(f"{queue}/{name} {'is paused' if changed else 'was paused already'}.")


@schedules.command()
@_schedule_arguments
@json_option
@with_server
def resume(app: Windlass, queue: str, name: str, as_json: bool) -> None:
    """Resume a schedule: it enqueues its next job at its next time from now."""
    _check(app, queue, name)
    changed = app.schedules.resume(queue, name)
    if as_json:
        print_json({"queue": queue, "name": name, "paused": False, "changed": changed})
    else:
        click.echo(f"{queue}/{name} {'is resumed' if changed else 'was not paused'}.")


@schedules.command()
@_schedule_arguments
@json_option
@with_server
def run(app: Windlass, queue: str, name: str, as_json: bool) -> None:
    """Enqueue the job of a schedule now, even if the schedule is paused."""
    receipt = app.schedules.run_now(queue, name)
    if receipt is None:
        raise _missing(queue, name)
    if as_json:
        print_json({"queue": queue, **as_object(receipt)})
    else:
        click.echo(printable(f"{queue}/{receipt.id}: {receipt.status}"))


@schedules.command()
@_schedule_arguments
@yes_option
@json_option
@with_server
def delete(app: Windlass, queue: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete a schedule; the jobs that it has enqueued stay.

    A schedule in the code of an app comes back with the next worker of that app: pause it instead.
    """
    _check(app, queue, name)
    if not yes:
        click.confirm(f"Delete schedule {name} of queue {queue}?", abort=True, err=True)
    app.schedules.delete(queue, name)
    if as_json:
        print_json({"queue": queue, "name": name, "deleted": True})
    else:
        click.echo(f"{queue}/{name} is deleted.")


def _check(app: Windlass, queue: str, name: str) -> None:
    if app.schedules.get(queue, name) is None:
        raise _missing(queue, name)


def _missing(queue: str, name: str) -> NotFound:
    return NotFound(f"queue {queue!r} has no schedule {name!r}: `windlass schedules list` lists all")


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
        format_relative(record.next_at),
        format_relative(record.last_at),
        record.fired,
        record.dropped,
        record.missed,
    )
