"""A queue's stored clock, moved by hand: time passes without waiting."""

from __future__ import annotations

from typing import Any, NamedTuple

from windlass.storage.formats import CORE
from windlass.storage.native.keys import queue_key

FIELDS = ("skew", "skew_until", "belief", "leap", "behind", "frame", "grace", "grace_from")  # as in clock.lua
NEVER = 2**52  # ms


class Core(NamedTuple):
    """The field `core` of a queue's state: the counters and the clock."""

    version: int
    marks: int
    seq: int
    fence: int
    clock: int
    wall: int
    step: int
    epoch: int

    def pack(self) -> bytes:
        """Pack the record as the server stores it."""
        return CORE.pack(*self)


def unpack_core(packed: bytes) -> Core:
    """Unpack the field `core`."""
    return Core(*CORE.unpack_from(packed))


def read_core(client: Any, queue: str) -> Core:
    """The counters and the clock."""
    packed = client.hget(queue_key(queue, "state"), "core")
    assert packed, "the queue has no clock yet: make a call on it first"
    return unpack_core(packed)


def change_core(client: Any, queue: str, **changes: int) -> None:
    """Change some of the counters or the clock."""
    client.hset(queue_key(queue, "state"), "core", read_core(client, queue)._replace(**changes).pack())


def read_drift(client: Any, queue: str) -> dict[str, int]:
    """The stored state about clock jumps and silences."""
    text = client.hget(queue_key(queue, "state"), "drift") or b"0 " * len(FIELDS)
    return dict(zip(FIELDS, map(int, text.split()), strict=True))


def change_drift(client: Any, queue: str, **changes: int) -> None:
    """Change some of that state."""
    drift = read_drift(client, queue) | changes
    client.hset(queue_key(queue, "state"), "drift", " ".join(str(drift[name]) for name in FIELDS))


def pass_time(client: Any, queue: str, seconds: float) -> None:
    """Let time pass, for leases and for run times."""
    ms = round(seconds * 1000)
    change_core(client, queue, clock=read_core(client, queue).clock + ms)
    change_drift(client, queue, skew=read_drift(client, queue)["skew"] - ms, skew_until=NEVER)
