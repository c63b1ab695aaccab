"""The layouts: how a queue lies in the server, and the atomic steps on it."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from windlass.errors import InvalidOption, UnsupportedByLayout
from windlass.storage.native.sealing import UNSEALED, Seal
from windlass.storage.port import Layout
from windlass.values.validation import MAX_BROKEN, MAX_DEAD

# Imported when they are used: most programs speak one of them.
_CLASSES = {
    "native": "SealedLayout",
    "worqr": "WorqrLayout",
    "workqueue": "WorkQueueLayout",
    "queasy": "QueasyLayout",
    "hworker": "HworkerLayout",
    "processor": "ProcessorLayout",
}


def make_layout(
    name: str, queue: str, *, max_dead: int = MAX_DEAD, max_broken: int = MAX_BROKEN, seal: Seal = UNSEALED
) -> Layout:
    """The layout of this name for a queue. Only native payloads can be sealed: peers of another make know no seals."""
    check_layout(name)
    if name == "native":
        from windlass.storage.native.sealed_layout import SealedLayout

        return SealedLayout(queue, max_dead=max_dead, max_broken=max_broken, seal=seal)
    if seal.is_on:
        raise UnsupportedByLayout(
            f"queue {queue!r} has the layout {name!r}, whose peers cannot read signed or encrypted jobs: use a native "
            "queue, or an app without signing_keys and encryption_keys for this one"
        )
    module = import_module(f"windlass.storage.compat.{name}")
    return cast(Layout, getattr(module, _CLASSES[name])(queue, max_dead=max_dead))


def check_layout(name: object) -> str:
    """The name of a layout."""
    if not isinstance(name, str) or name not in _CLASSES:
        raise InvalidOption(f"there is no layout {name!r}: there are {', '.join(_CLASSES)}")
    return name
