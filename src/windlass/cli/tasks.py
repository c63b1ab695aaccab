"""`windlass tasks`: the tasks and handlers of an app."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import rich_click as click

from windlass.cli.connect import load
from windlass.cli.options import app_option, json_option
from windlass.cli.output import print_json, print_table
from windlass.task import Task
from windlass.tasks.declaration import Declaration, place_of
from windlass.tasks.signature import takes_current

COLUMNS = ("task", "queue", "run", "timeout", "failures", "stalls", "on failure", "signature", "description")


@click.command()
@app_option("The app, like shop.jobs:app.")
@json_option
def tasks(app_name: str | None, as_json: bool) -> None:
    """List the tasks and handlers of an app.

    Shows for each task its queue, executor, timeout, limits of failures and stalls, failure handler and signature. A
    handler has no name: it gets every payload of its queue.

    \b
    Examples:
      windlass tasks --app shop.jobs:app
    """
    if app_name is None:
        raise click.UsageError("no app is named: give --app MODULE:APP, or set WINDLASS_APP")
    with load(app_name) as app:
        found = [_facts(each) for each in (*app.tasks.values(), *app.handlers.values())]
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, [_row(facts) for facts in found], f"{app_name} has no tasks and no handlers.")


def _facts(declared: Any) -> dict[str, Any]:
    declaration: Declaration[..., Any] = declared
    handler = declaration.failure_handler
    return {
        "task": declared.name if isinstance(declared, Task) else None,
        "queue": declared.queue,
        "run": declaration.run,
        "timeout": declaration.timeout,
        "limits": msgspec.to_builtins(declaration.limits),
        "on_exception": declaration.on_exception,
        "keep_result": declared.keep_result if isinstance(declared, Task) else None,
        "failure_handler": None if handler is None else getattr(handler.function, "__name__", repr(handler.function)),
        "signature": _signature(declaration.function),
        "doc": (inspect.getdoc(declaration.function) or "").partition("\n")[0] or None,
        "place": place_of(declaration.function),
    }


def _signature(function: Callable[..., Any]) -> str:
    """The signature that callers see: without quotes around types, and without parameters that Windlass fills in."""
    try:
        found = inspect.signature(function, eval_str=True)
    except Exception:  # a type that is imported for type checkers only
        found = inspect.signature(function)
    shown = [each for each in found.parameters.values() if not takes_current(each)]
    return str(found.replace(parameters=shown))


def _row(facts: dict[str, Any]) -> tuple[object, ...]:
    timeout, limits = facts["timeout"], facts["limits"]
    return (
        facts["task"] or "(handler)",
        facts["queue"],
        facts["run"],
        None if timeout is None else f"{timeout:g} s",
        limits["max_failures"],
        limits["max_stalls"],
        facts["failure_handler"],
        facts["signature"],
        facts["doc"],
    )
