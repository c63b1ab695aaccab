"""The durability levels of an acknowledged job.

    memory         in the server's memory: lost when its process dies
    everysec       in the server's log, synced every second: a crash may lose up to the last two seconds
    fsync          on the server's disk: survives a killed process and a power cut, but maybe not a failover
    replicated(n)  on the primary's disk and in the memory of n replicas: survives a failover to one of them

If a level is asked for, the server confirms it for every enqueue. The receipt states the level reached.
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
    """One level. A greater one is safer."""

    rank: int
    replicas: int = 0

    @classmethod
    def parse(cls, level: object) -> Durability:
        """Parse a level, such as "fsync". Raises `InvalidOption`."""
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
    """The level `replicated(n)`."""
    return Durability(_RANKS["replicated"], replicas)


MEMORY, EVERYSEC, FSYNC = (Durability.parse(name) for name in ("memory", "everysec", "fsync"))


def levels_by_queue(given: str | Mapping[str, str] | None) -> dict[str, Durability]:
    """Parse one level for all queues, or levels by queue. "*" means all other queues."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {EVERY_QUEUE: Durability.parse(given)}
    return {_queue_name(queue): Durability.parse(level) for queue, level in given.items()}


def _queue_name(queue: Any) -> str:
    return EVERY_QUEUE if queue == EVERY_QUEUE else check_name(queue)
