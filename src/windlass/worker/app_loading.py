"""Finding an app by its name, `module:attribute`, for those who run it or look into it."""

from __future__ import annotations

import importlib
import os
import sys

from windlass.errors import WindlassError


class AppNotLoadable(WindlassError):
    """The app could not be imported; the message has the traceback."""


def load_app(name: str) -> object:
    """Import `module:attribute`, with the current folder first in the path; it must be a `Windlass`."""
    # Here and not above: the keeper has no use for the app's class.
    from windlass.app import Windlass

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise AppNotLoadable(f"{name!r} does not name an app: write module:attribute, such as jobs:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = importlib.import_module(module_name)
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
