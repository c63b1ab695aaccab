"""How a command comes to its app: by a URL, or by a name in Python."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import rich_click as click
from click.core import ParameterSource

from windlass.app import Windlass
from windlass.cli.options import Command, app_option, layout_option, url_option

PATIENCE = 3.0  # seconds in which a server that cannot be reached is asked again: somebody waits at a terminal


class NotFound(click.ClickException):
    """What was asked for is not there."""

    exit_code = 3


def with_server(command: Command) -> Command:
    """Gives a command, as its first argument, an app on the server that is asked for; it is closed in the end."""

    @url_option
    @app_option("Use the server of this app.")
    @layout_option
    @functools.wraps(command)
    def reach(*args: object, url: str | None, app_name: str | None, **options: object) -> object:
        if typed("url") and typed("app_name"):
            raise click.UsageError("--url and --app both name a server: give one of them")
        with connect(url, None if typed("url") else app_name) as app:
            return command(app, *args, **options)

    return reach


@contextmanager
def connect(url: str | None, app_name: str | None) -> Iterator[Windlass]:
    """An app in Python if one is named, with its own server; else one on the server at a URL."""
    with load(app_name) if app_name else Windlass(url, retry_for=PATIENCE) as app:
        yield app


def typed(option: str) -> bool:
    """Whether an option was given on the command line itself, not by its variable."""
    context = click.get_current_context()
    assert context is not None, "only within a command"
    return context.get_parameter_source(option) is ParameterSource.COMMANDLINE


def load(name: str) -> Windlass:
    """The app that `module:attribute` names."""
    from windlass.worker.app_loading import load_app

    return cast(Windlass, load_app(name))
