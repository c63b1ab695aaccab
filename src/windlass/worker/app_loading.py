"""Finding an app by its name, `module:attribute`, for those who run it or look into it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from itertools import dropwhile, takewhile
from pathlib import Path

from windlass.errors import InvalidOption, WindlassError

REMEDY = "Name it as module:attribute, like shop.jobs:app, and run the command in the folder that the module is in."
_OURS = str(Path(__file__).parent.parent) + os.sep
_IMPORTING = (importlib.__file__, "<frozen importlib")


class AppNotLoadable(WindlassError):
    """The app could not be imported; the message says why, with the lines of the user's own code."""


def check_app_name(name: str) -> tuple[str, str]:
    """Module and attribute of an app's name."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidOption(f"{name!r} does not name an app: write module:attribute, such as jobs:app")
    return module_name, attribute


def load_app(name: str) -> object:
    """Import `module:attribute`, with the current folder first in the path; it must be a `Windlass`."""
    # Here and not above: the supervisor has no use for the app's class.
    from windlass.app import Windlass

    module_name, attribute = check_app_name(name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise AppNotLoadable(_why_not(module_name, error)) from error
    app: object = module
    for part in attribute.split("."):
        app = getattr(app, part, None)
    if not isinstance(app, Windlass):
        what = "is not there" if app is None else f"is {type(app).__name__}, no Windlass app"
        known = [known for known, value in vars(module).items() if isinstance(value, Windlass)]
        there = " or ".join(f"{module_name}:{known}" for known in known)
        raise AppNotLoadable(
            f"{attribute!r} {what} in module {module_name!r} ({module.__file__}). "
            + (f"Its apps are: {there}." if there else "It has no app: put `app = windlass.Windlass()` in it.")
        )
    return app


def _why_not(module_name: str, error: BaseException) -> str:
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module_name}.".startswith(f"{missing}."):
        return f"{error}, looked for in {os.getcwd()} and in Python's path. {REMEDY}"
    return f"{module_name} cannot be imported from {os.getcwd()}:\n{explain(error)}"


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def explain(error: BaseException) -> str:
    """An error with the lines of the user's code that lead to it: how we and importlib came there is of no help."""
    told = traceback.TracebackException.from_exception(error)
    links = [told]
    for link in links:
        links += [other for other in (link.__cause__, link.__context__) if other is not None]
        kept = [frame for frame in link.stack if not frame.filename.startswith(_IMPORTING)]
        kept = list(dropwhile(_is_ours, kept))
        if isinstance(error, WindlassError):  # where we refuse something does not matter, but what was asked
            kept = list(takewhile(lambda frame: not _is_ours(frame), kept))
        link.stack = traceback.StackSummary.from_list(kept)
    lines = list(told.format() if told.stack or told.__cause__ or told.__context__ else told.format_exception_only())
    return "".join(lines)[-64 * 1024 :].rstrip()
