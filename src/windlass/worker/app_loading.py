"""Loads an app by its name, `module:attribute`, for the forkserver and for the CLI."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from itertools import dropwhile, takewhile
from pathlib import Path

from windlass.errors import InvalidOption, WindlassError

NAME_HINT = "Name it as module:attribute, like shop.jobs:app, and run the command in the folder that the module is in."
_WINDLASS_FOLDER = str(Path(__file__).parent.parent) + os.sep
_IMPORTLIB_FILES = (importlib.__file__, "<frozen importlib")


class AppNotLoadable(WindlassError):
    """The app could not be imported. The message says why and shows the lines of the user's own code."""


def check_app_name(name: str) -> tuple[str, str]:
    """Split an app's name into module and attribute."""
    module_name, _, attribute = name.partition(":")
    module = module_name.removesuffix(".py").replace(os.sep, ".") or "jobs"
    if not module_name or not attribute or module_name.endswith(".py"):
        raise InvalidOption(
            f"{name!r} does not name an app: write module:attribute, such as {module}:{attribute or 'app'}"
        )
    return module_name, attribute


def load_app(name: str) -> object:
    """Import the `Windlass` at `module:attribute`, with the current folder first in the path."""
    # Imported here: the supervisor imports this module and must not pay for the app's class.
    from windlass.app import Windlass

    module_name, attribute = check_app_name(name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise AppNotLoadable(_import_problem(module_name, error)) from error
    app: object = module
    for part in attribute.split("."):
        app = getattr(app, part, None)
    if not isinstance(app, Windlass):
        problem = "does not exist" if app is None else f"has type {type(app).__name__}, not Windlass,"
        names = [name for name, value in vars(module).items() if isinstance(value, Windlass)]
        known = " or ".join(f"{module_name}:{name}" for name in names)
        raise AppNotLoadable(
            f"{attribute!r} {problem} in module {module_name!r} ({module.__file__}). "
            + (f"Its apps are: {known}." if known else "It has no app: put `app = windlass.Windlass()` in it.")
        )
    return app


def _import_problem(module_name: str, error: BaseException) -> str:
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module_name}.".startswith(f"{missing}."):
        return f"{error} in {os.getcwd()} or in Python's path. {NAME_HINT}"
    return f"{module_name} cannot be imported from {os.getcwd()}:\n{explain(error)}"


def _is_windlass_frame(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_WINDLASS_FOLDER)


def explain(error: BaseException) -> str:
    """Format an error with the user's own frames only: frames of Windlass and importlib do not help the user."""
    report = traceback.TracebackException.from_exception(error)
    links = [report]
    for link in links:
        links += [other for other in (link.__cause__, link.__context__) if other is not None]
        kept = [frame for frame in link.stack if not frame.filename.startswith(_IMPORTLIB_FILES)]
        kept = list(dropwhile(_is_windlass_frame, kept))
        if isinstance(error, WindlassError):  # the user's call matters, not the line of Windlass that refused it
            kept = list(takewhile(lambda frame: not _is_windlass_frame(frame), kept))
        link.stack = traceback.StackSummary.from_list(kept)
    lines = list(
        report.format() if report.stack or report.__cause__ or report.__context__ else report.format_exception_only()
    )
    return "".join(lines)[-64 * 1024 :].rstrip()
