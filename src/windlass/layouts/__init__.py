"""The layouts: how a queue lies in the server, and the atomic steps on it."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from windlass.errors import InvalidOption
from windlass.layout import Layout

# Imported when they are used: most programs speak one of them.
_CLASSES = {
    "native": "NativeLayout",
    "worqr": "WorqrLayout",
    "workqueue": "WorkQueueLayout",
    "queasy": "QueasyLayout",
    "hworker": "HworkerLayout",
    "processor": "ProcessorLayout",
}


def make_layout(name: str, queue: str, max_dead: int) -> Layout:
    """The layout of this name for a queue."""
    module = import_module(f"windlass.layouts.{check_layout(name)}")
    return cast(Layout, getattr(module, _CLASSES[name])(queue, max_dead=max_dead))


def check_layout(name: object) -> str:
    """The name of a layout."""
    if not isinstance(name, str) or name not in _CLASSES:
        raise InvalidOption(f"there is no layout {name!r}: there are {', '.join(_CLASSES)}")
    return name
