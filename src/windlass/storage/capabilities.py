"""The capabilities of each layout. `windlass layouts` prints this table; other operations are refused."""

from __future__ import annotations

from windlass.errors import UnsupportedByLayout
from windlass.storage.port import Capability as C
from windlass.storage.port import Layout

CAPABILITIES: dict[str, frozenset[C]] = {
    "native": frozenset(C),
    "worqr": frozenset({C.BYTES, C.ORDER, C.FRONT, C.CANCEL, C.CANCEL_RUNNING}),
    "workqueue": frozenset({C.BYTES, C.ORDER, C.IDS, C.CANCEL, C.PIPELINE}),
    "queasy": frozenset({C.IDS, C.UPDATE, C.SINGLETON, C.RUN_TIME, C.LIMITS, C.CANCEL, C.FAILURE_HANDLERS, C.CLUSTER}),
    "hworker": frozenset({C.ORDER, C.FRONT, C.DEAD, C.BROKEN}),
    "processor": frozenset({C.ORDER, C.FRONT, C.IDS, C.PRIORITY, C.CANCEL, C.PROGRESS}),
}


def unsupported(layout: str, queue: str, operation: str, capability: C) -> UnsupportedByLayout:
    """The error for an operation that the layout does not support. It names the layouts that do."""
    able = [name for name, can in CAPABILITIES.items() if capability in can]
    return UnsupportedByLayout(
        f"{operation}: queue {queue!r} has layout {layout!r}, which does not support: {capability}. "
        f"Use a queue with layout {' or '.join(able)}"
    )


def need(layout: Layout, capability: C, operation: str) -> None:
    """Raise `UnsupportedByLayout` unless the queue's layout has this capability."""
    if capability not in layout.can:
        raise unsupported(layout.name, layout.queue, operation, capability)
