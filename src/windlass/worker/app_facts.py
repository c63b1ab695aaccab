"""What the supervisor must know of an app that it never imports: told by the forkserver, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from windlass.app import AppConfig, Windlass
from windlass.errors import InvalidOption
from windlass.storage.port import Capability
from windlass.tasks.declaration import Declaration
from windlass.values.job import Limits
from windlass.worker.safety import heed_supervisor


class QueueFacts(Struct, frozen=True):
    """What an app runs on one queue. `failure_handler`: the limits of jobs for its failure handlers, if it has any."""

    tasks: tuple[str, ...] = ()
    failure_handler: Limits | None = None


class AppFacts(Struct, frozen=True):
    """How to make an app like it, its own queues, and what it runs on any other: all its tasks may be sent there."""

    app: AppConfig
    queues: dict[str, QueueFacts]
    elsewhere: QueueFacts

    def of(self, queue: str) -> QueueFacts:
        """What the app runs on a queue."""
        return self.queues.get(queue, self.elsewhere)


def describe(app: Windlass) -> dict[str, Any]:
    """The facts of an app; called in the forkserver."""
    if app.closed:
        raise InvalidOption(
            "the app was closed when its module was imported: put what is to happen only when the module is run as a "
            'program under `if __name__ == "__main__":`'
        )
    heed_supervisor(app)
    queues = {name: describe_queue(app, name) for name in app.own_queues()}
    return {"windlass": msgspec.to_builtins(AppFacts(app.given, queues, describe_queue(app, "")))}


def describe_queue(app: Windlass, name: str) -> QueueFacts:
    """What an app runs on a queue: its handler, or any of its tasks, for a call can be sent to any queue."""
    handler = app.handlers.get(name)
    declared: list[Declaration[..., Any]] = [handler] if handler else list(app.tasks.values())
    able = not name or Capability.FAILURE_HANDLERS in app.layout(name).can
    catchers = [each.failure_handler.limits for each in declared if able and each.failure_handler is not None]
    return QueueFacts(() if handler else tuple(app.tasks), max(catchers, key=_patience) if catchers else None)


def _patience(limits: Limits) -> tuple[int, int]:
    """Failure jobs of one queue share what the server must know; each handler's own limits count when it is run."""
    return (limits.max_stalls, limits.max_failures)
