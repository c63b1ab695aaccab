"""The exit codes of all commands, and which error leads to which code."""

from __future__ import annotations

import rich_click as click

from windlass.errors import EmbeddedError, InvalidInput, NoSuchQueue, ServerLoading, ServerUnreachable, WindlassError

FAILED, USAGE, NOT_FOUND, UNREACHABLE = 1, 2, 3, 4
INTERRUPTED = 130  # as shells report a program that Ctrl-C ended


class NotFound(click.ClickException):
    """No such job, task, schedule, script or server."""

    exit_code = NOT_FOUND


class Unreachable(click.ClickException):
    """The server does not answer."""

    exit_code = UNREACHABLE


def exit_code(error: WindlassError) -> int:
    """The exit code of a command that ends with this error."""
    if isinstance(error, ServerUnreachable | ServerLoading | EmbeddedError):
        return UNREACHABLE
    if isinstance(error, NoSuchQueue):
        return NOT_FOUND
    return USAGE if isinstance(error, InvalidInput) else FAILED
