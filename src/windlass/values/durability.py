"""How safe an acknowledged job is: the levels, from the memory of one server to the memory of several.

    memory         the server has it in memory: lost when its process dies
    everysec       it writes a log, and to the disk every second: what was acknowledged in its last two seconds may go
    fsync          it is on the server's disk: neither a killed process nor a power cut loses it, but a failover may
    replicated(n)  it is on the primary's disk, and n replicas have it in memory: a failover to one of them keeps it

A level that is asked for is confirmed by the server for every enqueue, and the receipt states what was reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from windlass.errors import InvalidOption
from windlass.values.validation import check_name

_RANKS = {"memory": 0, "everysec": 1, "fsync": 2, "replicated": 3}
_REPLICATED = re.compile(r"replicated\(([1-9]\d{0,2})\)")
EVERY_QUEUE = "*"


class Durability(Struct, frozen=True, order=True):
    """One level; the greater is the safer."""

    rank: int
    replicas: int = 0

    @classmethod
    def parse(cls, level: object) -> Durability:
        """Read a level as people write it."""
        if isinstance(level, str) and (found := _REPLICATED.fullmatch(level)):
            return replicated(int(found[1]))
        if isinstance(level, str) and level in _RANKS and level != "replicated":
            return cls(_RANKS[level])
        raise InvalidOption(
            'durability must be "memory", "everysec", "fsync" or "replicated(n)" with the number of replicas, '
            f"not {level!r}"
        )

    def __str__(self) -> str:
        name = list(_RANKS)[self.rank]
        return f"{name}({self.replicas})" if self.replicas else name


def replicated(replicas: int) -> Durability:
    """So many replicas have it."""
    return Durability(_RANKS["replicated"], replicas)


MEMORY, EVERYSEC, FSYNC = (Durability.parse(name) for name in ("memory", "everysec", "fsync"))


def levels_by_queue(given: str | Mapping[str, str] | None) -> dict[str, Durability]:
    """One level for all queues, or levels by queue; "*" is for all others."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {EVERY_QUEUE: Durability.parse(given)}
    return {_queue_name(queue): Durability.parse(level) for queue, level in given.items()}


def _queue_name(queue: Any) -> str:
    return EVERY_QUEUE if queue == EVERY_QUEUE else check_name(queue)
