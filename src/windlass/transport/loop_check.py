"""Warns of a blocking verb inside a running event loop, which stops all its coroutines until the server has answered.

Python shows a warning once for each line that causes it.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from windlass.errors import BlockingCallWarning


def warn_of_blocking() -> None:
    """Name the awaitable twin of the public verb that the program called, at the line of the program."""
    verb: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    level = 2  # of `frame`, as `warnings.warn` counts
    while frame is not None and frame.f_globals.get("__name__", "").startswith("windlass."):
        verb, frame, level = frame, frame.f_back, level + 1
    if verb is None or frame is None:
        return
    name = verb.f_code.co_name
    twin = f"a{name}"
    known = hasattr(type(verb.f_locals.get("self")), twin)
    warnings.warn(
        f"{name}() blocks the running event loop: "
        + (f"await {twin}() instead" if known else "call its awaitable twin, whose name begins with a, instead"),
        BlockingCallWarning,
        stacklevel=level,
    )
