"""Replaces the client's time and randomness by those of the simulation.

The client has no hooks for this: it calls plain functions of the standard library. While a simulation runs, the names
under which the client's modules know them refer to functions of the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import windlass.queue
import windlass.storage.native.clock_view
import windlass.transport.routing
import windlass.values.backoff
import windlass.values.ids

if TYPE_CHECKING:
    from chaos.simulation.world import World


class _ThisMachine:
    """Stands for the machine name: that of the machine of the program that currently runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def encode(self) -> bytes:
        return self._world.current.machine.name.encode()


@contextmanager
def taken_over(world: World) -> Iterator[None]:
    """Run the client in this world for the length of the block."""
    clock_view: Any = windlass.storage.native.clock_view
    ids: Any = windlass.values.ids
    replaced: list[tuple[Any, str, Any]] = [
        (ids, "urandom", world.chance.randbytes),
        (ids, "_pool", []),  # no ids left from an earlier run
        (windlass.transport.routing, "random", world.chance),
        (windlass.values.backoff, "random", world.chance),
        (windlass.transport.routing, "monotonic", world.monotonic),
        (windlass.queue, "monotonic", world.monotonic),
        (clock_view, "monotonic", world.monotonic),
        (clock_view, "uptime_ms", lambda: int(world.monotonic() * 1000)),
        (clock_view, "MACHINE", _ThisMachine(world)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, stand_in in replaced:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
