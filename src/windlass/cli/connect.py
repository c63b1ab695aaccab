"""The app of a command: one on the server at a URL, or an app in Python by its name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import rich_click as click
from click.core import ParameterSource

from windlass.app import Windlass
from windlass.cli.options import Command, app_option, layout_option, namespace_option, url_option

RETRY_FOR_S = 3.0  # for a server that does not answer; short, because a person waits at a terminal


def with_server(command: Command) -> Command:
    """Add `--url`, `--namespace`, `--app` and `--layout` to a command, and pass it an open app."""

    @url_option
    @namespace_option
    @app_option("Use the server of this app.")
    @layout_option
    @functools.wraps(command)
    def call_with_app(
        *args: object, url: str | None, namespace: str | None, app_name: str | None, **options: object
    ) -> object:
        if is_typed("url") and is_typed("app_name"):
            raise click.UsageError("--url and --app both name a server: give one of them")
        with connect(url, namespace, None if is_typed("url") else app_name) as app:
            return command(app, *args, **options)

    return call_with_app


@contextmanager
def connect(url: str | None, namespace: str | None, app_name: str | None) -> Iterator[Windlass]:
    """The app of this name with its own server and namespace; without a name, an app on the server at `url`."""
    with load(app_name) if app_name else Windlass(url, namespace=namespace, retry_for=RETRY_FOR_S) as app:
        if is_typed("namespace") and app.namespace != namespace:
            own = f"has namespace {app.namespace!r}" if app.namespace else "has no namespace"
            raise click.UsageError(
                f"the app {app_name} {own}, so --namespace {namespace} cannot be used: omit one of them"
            )
        yield app


def is_typed(option: str) -> bool:
    """Whether an option stands on the command line, rather than in its variable."""
    context = click.get_current_context()
    assert context is not None, "only within a command"
    return context.get_parameter_source(option) is ParameterSource.COMMANDLINE


def load(name: str) -> Windlass:
    """Import the app that `module:attribute` names."""
    from windlass.worker.app_loading import load_app

    return cast(Windlass, load_app(name))
