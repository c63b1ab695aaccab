"""Time and chance of the client, taken from the simulation instead of the machine.

The client has no seams for this, and should not: what it asks for are plain functions of the standard library. So
for as long as a simulation runs, the few names under which its modules know them stand for functions of the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import windlass.queue
import windlass.storage.native.clock_view
import windlass.transport.session
import windlass.values.backoff
import windlass.values.ids

if TYPE_CHECKING:
    from chaos.simulation.world import World


class _ThisMachine:
    """Stands for the name of the machine on which the program runs that is at work just now."""

    def __init__(self, world: World) -> None:
        self._world = world

    def encode(self) -> bytes:
        return self._world.current.machine.name.encode()


@contextmanager
def taken_over(world: World) -> Iterator[None]:
    """For as long as this lasts, the client lives in this world."""
    vouching: Any = windlass.storage.native.clock_view
    ids: Any = windlass.values.ids
    replaced: list[tuple[Any, str, Any]] = [
        (ids, "urandom", world.chance.randbytes),
        (ids, "_spare", []),  # none of an earlier history
        (windlass.transport.session, "random", world.chance),
        (windlass.values.backoff, "random", world.chance),
        (windlass.transport.session, "monotonic", world.monotonic),
        (windlass.queue, "monotonic", world.monotonic),
        (vouching, "monotonic", world.monotonic),
        (vouching, "uptime_ms", lambda: int(world.monotonic() * 1000)),
        (vouching, "MACHINE", _ThisMachine(world)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, stand_in in replaced:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
