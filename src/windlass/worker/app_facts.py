"""The facts about an app that the forkserver sends to the supervisor, which never imports the app."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from windlass.app import AppConfig, Windlass
from windlass.errors import InvalidOption
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
    """The app's configuration, its own queues, and what it runs: on a queue with a handler, and on any other queue.

    The names of the tasks stand here once, whatever the number of queues: a worker may serve thousands.
    `given_limits`: the limits that each task gives, if it gives any.
    """

    app: AppConfig
    queues: tuple[str, ...]
    handlers: dict[str, QueueFacts]
    elsewhere: QueueFacts
    given_limits: dict[str, GivenLimits] = {}
    known: KnownTasks = KnownTasks()

    def of(self, queue: str) -> QueueFacts:
        """Return what the app runs on a queue: its handler, or all tasks, because any queue may receive a call."""
        return self.handlers.get(queue, self.elsewhere)

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
    return {"windlass": msgspec.to_builtins(facts_of(app))}


def facts_of(app: Windlass, *, with_processes: bool = True) -> AppFacts:
    """Return what an app runs, and where. Without processes, it knows no task that needs one."""
    handlers = {
        queue: QueueFacts(failure_handler=_failure_limits([handler]), given_limits=handler.given_limits)
        for queue, handler in list(app.handlers.items())  # another thread may declare more meanwhile
    }
    by_name = {name: task for name in app.task_names if (task := app.find_task(name)) is not None}
    tasks = tuple(name for name, task in by_name.items() if with_processes or not is_for_processes(task))
    limits = {name: task.given_limits for name, task in by_name.items() if task.given_limits}
    elsewhere = QueueFacts(tasks, _failure_limits(list(app.tasks.values())))
    return AppFacts(app.given, tuple(app.own_queues()), handlers, elsewhere, limits, KnownTasks.of(app))


def is_for_processes(declared: Declaration[..., Any]) -> bool:
    """Whether the function or its failure handler has run="process"."""
    return "process" in declared.kinds


def needs_processes(app: Windlass, queue: str) -> bool:
    """Whether a queue is of no use to a worker without processes: its handler or all of its tasks need one."""
    if (handler := app.handlers.get(queue)) is not None:
        return is_for_processes(handler)
    own = [task for task in app.tasks.values() if task.queue == queue]
    return bool(own) and all(map(is_for_processes, own))


def _failure_limits(declared: Iterable[Declaration[..., Any]]) -> Limits | None:
    """The largest limits of these failure handlers, or None. `send_heartbeat` skips layouts that have none."""
    limits = [each.failure_handler.limits for each in declared if each.failure_handler is not None]
    return max(limits, key=_forgiveness) if limits else None


def _forgiveness(limits: Limits) -> tuple[int, int]:
    """Sort limits: the server has one set for a queue's failure jobs; a handler's own limits apply when it runs."""
    return (limits.max_stalls, limits.max_failures)
