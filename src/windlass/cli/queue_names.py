"""Queue names that people type: patterns such as `mail-*`, and typos.

An empty queue without workers has no keys, so a queue that nobody ever used looks like one that is idle: both are
"not in use".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec
import rich_click as click

from windlass.app import Windlass
from windlass.cli.exit_codes import NotFound
from windlass.errors import AccessDenied, KeyConflict
from windlass.values.name_patterns import did_you_mean, is_pattern, matching


def chosen_queues(app: Windlass, names: tuple[str, ...]) -> list[str]:
    """The queues of a list: those of these names and patterns, or all. Raises `NotFound` for a pattern without any."""
    if not names:
        return app.queues()
    known = _known(app) if any(map(is_pattern, names)) else set()
    found: list[str] = []
    for name in names:
        matches = matching(name, known)
        if not matches:
            raise NotFound(f"no queue in use matches {name!r}: `windlass queues` lists them")
        found += matches
    return list(dict.fromkeys(found))


def check_in_use(app: Windlass, names: Iterable[str]) -> None:
    """Raise `NotFound` for the first of these queues that is not in use."""
    for name in names:
        if (problem := _not_in_use(app, name)) is not None:
            raise NotFound(problem)


def confirm_unused(app: Windlass, name: str, verb: str, yes: bool) -> None:
    """Before an order to a queue that is not in use: ask a person; without a terminal raise `NotFound`."""
    if yes or (problem := _not_in_use(app, name)) is None:
        return
    if not sys.stdin.isatty():
        raise NotFound(f"{problem} To {verb} it all the same: --yes")
    click.confirm(f"{problem}\n{verb.capitalize()} it all the same?", abort=True, err=True)


def _not_in_use(app: Windlass, name: str) -> str | None:
    """Say that a queue is not in use, and which names are near; None if it is, or if that cannot be known."""
    if app.layout(name).name != "native" or name in app.own_queues():
        return None
    try:
        if any(msgspec.to_builtins(app.queue(name).counts()).values()):
            return None
        known = _known(app)
    except (KeyConflict, AccessDenied):  # a damaged queue; a user with rights on one queue only
        return None
    if name in known:
        return None
    return f"queue {name!r} is not in use: it has no job, schedule or worker.{did_you_mean(name, known)}"


def _known(app: Windlass) -> set[str]:
    serving = {queue for worker in app.workers() if not worker.is_lost for queue in worker.queues}
    return {*app.queues(), *app.own_queues(), *serving}
