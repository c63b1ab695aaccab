"""What each layout can do. `windlass layouts` prints this table, and an operation that is not in it is refused."""

from __future__ import annotations

from windlass.errors import UnsupportedByLayout
from windlass.storage.port import Capability as C
from windlass.storage.port import Layout

CAPABILITIES: dict[str, frozenset[C]] = {
    "native": frozenset(C),
    "worqr": frozenset({C.BYTES, C.ORDER, C.FRONT, C.CANCEL, C.CANCEL_RUNNING}),
    "workqueue": frozenset({C.BYTES, C.ORDER, C.IDS, C.CANCEL}),
    "queasy": frozenset({C.IDS, C.UPDATE, C.SINGLETON, C.RUN_TIME, C.LIMITS, C.CANCEL, C.FAILURE_HANDLERS, C.CLUSTER}),
    "hworker": frozenset({C.ORDER, C.FRONT, C.DEAD, C.BROKEN}),
    "processor": frozenset({C.ORDER, C.FRONT, C.IDS, C.PRIORITY, C.CANCEL, C.PROGRESS}),
}


def unsupported(layout: str, queue: str, operation: str, capability: C) -> UnsupportedByLayout:
    """The error that says so, and which layouts can."""
    able = [name for name, can in CAPABILITIES.items() if capability in can]
    return UnsupportedByLayout(
        f"{operation}: queue {queue!r} has the layout {layout!r}, which has no {capability}; use a queue with the "
        f"layout {' or '.join(able)}"
    )


def need(layout: Layout, capability: C, operation: str) -> None:
    """Refuse an operation that the layout of a queue does not have."""
    if capability not in layout.can:
        raise unsupported(layout.name, layout.queue, operation, capability)
