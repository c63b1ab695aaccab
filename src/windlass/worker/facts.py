"""What the keeper must know of an app that it never imports: told by the nursery, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from windlass.app import Given, Windlass
from windlass.declaration import Declaration
from windlass.job import Limits


class QueueFacts(Struct, frozen=True):
    """What an app runs on one queue. `catcher`: the limits of jobs for its failure handlers, if it has any."""

    tasks: tuple[str, ...] = ()
    handler: bool = False
    catcher: Limits | None = None


class AppFacts(Struct, frozen=True):
    """How to make an app like it, and what it runs."""

    app: Given
    queues: dict[str, QueueFacts]


def describe(app: Windlass) -> dict[str, Any]:
    """The facts of an app; called in the nursery."""
    names = {task.queue for task in app.tasks.values()} | set(app.handlers)
    facts = AppFacts(app.given, {name: describe_queue(app, name) for name in sorted(names)})
    return {"windlass": msgspec.to_builtins(facts)}


def describe_queue(app: Windlass, name: str) -> QueueFacts:
    """What an app runs on one queue."""
    tasks = [task for task in app.tasks.values() if task.queue == name]
    handler = app.handlers.get(name)
    declared: list[Declaration[..., Any]] = [*tasks, *([handler] if handler else [])]
    catchers = [each.failure_handler.limits for each in declared if each.failure_handler is not None]
    return QueueFacts(
        tuple(task.name for task in tasks), handler is not None, max(catchers, key=_patience) if catchers else None
    )


def _patience(limits: Limits) -> tuple[int, int]:
    """Failure jobs of one queue share what the server must know; each handler's own limits count when it is run."""
    return (limits.max_stalls, limits.max_failures)
