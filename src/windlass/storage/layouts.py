"""The table of layouts, and the factory that creates one for a queue."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from windlass.errors import InvalidOption, UnsupportedByLayout
from windlass.storage.native.sealing import UNSEALED, Seal
from windlass.storage.port import Layout
from windlass.values.validation import MAX_BROKEN, MAX_DEAD

# Imported on first use: most programs need one of them.
_CLASSES = {
    "native": "SealedLayout",
    "worqr": "WorqrLayout",
    "workqueue": "WorkQueueLayout",
    "queasy": "QueasyLayout",
    "hworker": "HworkerLayout",
    "processor": "ProcessorLayout",
}


def make_layout(
    name: str,
    queue: str,
    *,
    max_dead: int = MAX_DEAD,
    max_broken: int = MAX_BROKEN,
    namespace: str = "",
    seal: Seal = UNSEALED,
) -> Layout:
    """Create the layout with this name for a queue.

    Only native queues have namespaces and sealed payloads: other systems know neither.
    """
    check_layout(name)
    if name == "native":
        from windlass.storage.native.sealed_layout import SealedLayout

        return SealedLayout(queue, max_dead=max_dead, max_broken=max_broken, namespace=namespace, seal=seal)
    if namespace:
        raise UnsupportedByLayout(
            f"queue {queue!r} has layout {name!r}, whose peers know no namespaces. Use a native queue, or an app "
            f"without the namespace {namespace!r} for this queue (Windlass(namespace=…) or WINDLASS_NAMESPACE)"
        )
    if seal.is_on:
        raise UnsupportedByLayout(
            f"queue {queue!r} has layout {name!r}, whose peers cannot read signed or encrypted jobs. Use a native "
            "queue, or an app without signing_keys and encryption_keys for this queue"
        )
    module = import_module(f"windlass.storage.compat.{name}")
    return cast(Layout, getattr(module, _CLASSES[name])(queue, max_dead=max_dead))


def check_layout(name: object) -> str:
    """Return the name if it is a layout, else raise `InvalidOption`."""
    if not isinstance(name, str) or name not in _CLASSES:
        raise InvalidOption(f"unknown layout {name!r}. Use one of: {', '.join(_CLASSES)}")
    return name
