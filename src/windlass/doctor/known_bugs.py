"""Known server bugs, by release line: those that matter to a queue, which depends on Lua scripts and on persistence.

Each entry is confirmed by release notes, CVE records or distributions' change logs. A release line that an entry does
not list is not affected, as far as is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Line = tuple[int, int]

NEVER = None  # no release of that line has the fix


@dataclass(frozen=True, slots=True)
class KnownBug:
    """One bug: for each release line of Redis and Valkey, the first patch release with the fix."""

    id: str
    title: str
    redis: dict[Line, int | None]
    valkey: dict[Line, int | None]

    def fixed_in(self, kind: str, version: tuple[int, ...]) -> str | None:
        """The version to upgrade to if this version has the bug, else `None`."""
        lines = self.valkey if kind == "valkey" else self.redis
        line = (version[0], version[1]) if len(version) > 1 else (0, 0)
        if line not in lines:
            return None
        patch = lines[line]
        if patch is NEVER:
            return "a newer release line"
        return f"{line[0]}.{line[1]}.{patch}" if version[2:] < (patch,) else None


KNOWN_BUGS = (
    KnownBug(
        "CVE-2025-49844",
        "a Lua script can run code on the server",
        redis={(6, 2): 20, (7, 0): NEVER, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
        valkey={(7, 2): 11, (8, 0): 6, (8, 1): 4},
    ),
    KnownBug(
        "CVE-2025-46817, CVE-2025-46818",
        "a Lua script can run code on the server, or as another user",
        redis={(6, 2): 20, (7, 0): NEVER, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
        valkey={(7, 2): 11, (8, 0): 6, (8, 1): 4},
    ),
    KnownBug(
        "CVE-2026-23479",
        "a blocked client that is disconnected can run code on the server",
        redis={(7, 2): 14, (7, 4): 9, (8, 0): NEVER, (8, 2): 6, (8, 4): 3, (8, 6): 3},
        valkey={(8, 1): 7, (9, 0): 4},
    ),
    KnownBug(
        "CVE-2024-46981",
        "a Lua script can run code on the server",
        redis={(6, 2): 17, (7, 0): NEVER, (7, 2): 7, (7, 4): 2},
        valkey={(8, 0): 2},
    ),
    KnownBug(
        "CVE-2024-31449",
        "a Lua script can overflow the stack of the server",
        redis={(6, 2): 16, (7, 0): NEVER, (7, 2): 6, (7, 4): 1},
        valkey={},
    ),
    KnownBug("CVE-2022-24735", "a Lua script can run as another user", redis={(6, 2): 7}, valkey={}),
    KnownBug(
        "redis#13793",
        "WAITAOF replies before the data is on disk, with appendfsync everysec",
        redis={(7, 4): 3},
        valkey={},
    ),
    KnownBug(
        "valkey#4342",
        "after it loads a log that ends inside a transaction, its next writes may be lost at a restart",
        redis={},
        valkey={(8, 0): 11, (8, 1): 10},
    ),
)


def known_bugs_of(kind: str, version: tuple[int, ...]) -> Iterator[tuple[KnownBug, str]]:
    """The bugs of a version, each with the version to upgrade to."""
    for bug in KNOWN_BUGS:
        fixed = bug.fixed_in(kind, version)
        if fixed is not None:
            yield bug, fixed
