"""The facts about an app that the forkserver sends to the supervisor, which never imports the app."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from windlass.app import AppConfig, Windlass
from windlass.errors import InvalidOption
from windlass.storage.port import Capability
from windlass.tasks.declaration import Declaration
from windlass.values.job import Lease, Limits
from windlass.worker.server_check import apply_allow_unsafe

DIGEST_DIGITS = 12  # enough to tell the apps of one queue apart
NAMES_IN_RECORD = 3  # enough for a person to recognise the app; a worker writes its record every few seconds

GivenLimits = dict[str, int | float]  # some fields of `Limits`


class QueueFacts(Struct, frozen=True):
    """What an app runs on one queue. `failure_handler`: the limits of its failure jobs, if it has failure handlers.

    `given_limits`: the limits that the queue's handler gives.
    """

    tasks: tuple[str, ...] = ()
    failure_handler: Limits | None = None
    given_limits: GivenLimits = {}


class KnownTasks(Struct, frozen=True):
    """The tasks of an app in short, for its worker's record: a digest of all names, empty without tasks, and a few."""

    digest: str = ""
    some: tuple[str, ...] = ()

    @classmethod
    def of(cls, app: Windlass) -> KnownTasks:
        """Sum up the tasks of an app."""
        names = sorted(app.tasks)
        digest = sha256("\n".join(names).encode()).hexdigest()[:DIGEST_DIGITS] if names else ""
        return cls(digest, tuple(names[:NAMES_IN_RECORD]))


class AppFacts(Struct, frozen=True):
    """The app's configuration, its own queues, and `elsewhere`: what it runs on any other queue (all its tasks).

    `given_limits`: the limits that each task gives, if it gives any.
    """

    app: AppConfig
    queues: dict[str, QueueFacts]
    elsewhere: QueueFacts
    given_limits: dict[str, GivenLimits] = {}
    known: KnownTasks = KnownTasks()

    def of(self, queue: str) -> QueueFacts:
        """Return what the app runs on a queue."""
        return self.queues.get(queue, self.elsewhere)

    def limits_of(self, lease: Lease, task: str | None) -> Limits:
        """Return the limits of a job: its own, or those that its task or handler gives, as in `attempt.plan`."""
        if lease.limited or lease.is_failure_job:
            return lease.limits
        given = self.of(lease.queue).given_limits if task is None else self.given_limits.get(task, {})
        return msgspec.structs.replace(lease.limits, **given)


def describe(app: Windlass) -> dict[str, Any]:
    """Return the facts of an app as plain JSON values. The forkserver calls this."""
    if app.closed:
        raise InvalidOption(
            "the app was closed while its module was imported: move the code that closes it under "
            '`if __name__ == "__main__":`'
        )
    apply_allow_unsafe(app)
    queues = {name: describe_queue(app, name) for name in app.own_queues()}
    limits = {name: task.given_limits for name in app.task_names if (task := app.find_task(name)) and task.given_limits}
    facts = AppFacts(app.given, queues, describe_queue(app, ""), limits, KnownTasks.of(app))
    return {"windlass": msgspec.to_builtins(facts)}


def describe_queue(app: Windlass, name: str, *, processes: bool = True) -> QueueFacts:
    """Return what an app runs on a queue: its handler, or all its tasks, because any queue may receive a call.

    Without `processes`, tasks that need one are left out.
    """
    handler = app.handlers.get(name)
    declared: list[Declaration[..., Any]] = [handler] if handler else list(app.tasks.values())
    supported = not name or Capability.FAILURE_HANDLERS in app.layout(name).can
    limits = [each.failure_handler.limits for each in declared if supported and each.failure_handler is not None]
    return QueueFacts(
        () if handler else tuple(_task_names(app, processes=processes)),
        max(limits, key=_forgiveness) if limits else None,
        handler.given_limits if handler else {},
    )


def _task_names(app: Windlass, *, processes: bool) -> list[str]:
    names = app.task_names
    if processes:
        return names
    return [name for name in names if (task := app.find_task(name)) is not None and "process" not in task.kinds]


def _forgiveness(limits: Limits) -> tuple[int, int]:
    """Sort limits: the server has one set for a queue's failure jobs; a handler's own limits apply when it runs."""
    return (limits.max_stalls, limits.max_failures)
