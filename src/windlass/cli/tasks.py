"""`windlass tasks`: what an app can run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import rich_click as click

from windlass.cli.connect import load
from windlass.cli.options import app_option, json_option
from windlass.cli.output import say_json, say_table
from windlass.task import Task
from windlass.tasks.declaration import Declaration, place_of
from windlass.tasks.signature import takes_current

COLUMNS = ("task", "queue", "run", "timeout", "failures", "stalls", "on failure", "signature", "what it does")


@click.command()
@app_option("The app, like shop.jobs:app.")
@json_option
def tasks(app_name: str | None, as_json: bool) -> None:
    """List the tasks and handlers of an app.

    With what is said of each: where it runs, how long it may take, how many failures and stalls are forgiven, and who
    is told when it fails for good. A handler has no name; it gets every payload of its queue.

    \b
      windlass tasks --app shop.jobs:app
    """
    if app_name is None:
        raise click.UsageError("which app? Give --app MODULE:APP, or set WINDLASS_APP")
    with load(app_name) as app:
        found = [_facts(each) for each in (*app.tasks.values(), *app.handlers.values())]
    if as_json:
        say_json(found)
    else:
        say_table(COLUMNS, [_row(facts) for facts in found], f"{app_name} has no task and no handler.")


def _facts(declared: Any) -> dict[str, Any]:
    declaration: Declaration[..., Any] = declared
    caught = declaration.failure_handler
    return {
        "task": declared.name if isinstance(declared, Task) else None,
        "queue": declared.queue,
        "run": declaration.run,
        "timeout": declaration.timeout,
        "limits": msgspec.to_builtins(declaration.limits),
        "on_exception": declaration.on_exception,
        "keep_result": declared.keep_result if isinstance(declared, Task) else None,
        "failure_handler": None if caught is None else getattr(caught.function, "__name__", repr(caught.function)),
        "signature": _signature(declaration.function),
        "doc": (inspect.getdoc(declaration.function) or "").partition("\n")[0] or None,
        "place": place_of(declaration.function),
    }


def _signature(function: Callable[..., Any]) -> str:
    """As the caller sees it: types without quotes, and without the job that is filled in."""
    try:
        found = inspect.signature(function, eval_str=True)
    except Exception:  # a type that cannot be found here
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
