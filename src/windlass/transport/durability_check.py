"""Confirms a durability level: sends `WAITAOF`, `WAIT` or `CONFIG GET` after a call, and reads their replies.

`WAITAOF` and `WAIT` cover the writes of the connection that sends them. On a timeout they reply with the count reached,
so the count is compared; and a repeated call writes again (see lua/shared/operations.lua). Where `WAITAOF` is missing
or wrong, each call asks for the settings instead: with `appendfsync always` the server syncs its log before it replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from windlass.transport.errors import WireLost
from windlass.transport.io_steps import pack
from windlass.transport.server_facts import ServerFacts
from windlass.values.durability import EVERYSEC, FSYNC, MEMORY, Durability, replicated

SETTINGS = ("CONFIG", "GET", "*append*")  # one pattern: Redis 7.0 and others alike

# These errors mean that the level cannot be confirmed. After any other one (such as READONLY) the call is repeated.
_CANNOT_CONFIRM = ("NOPERM", "ERR unknown command", "appendonly is disabled")


def confirm_commands(level: Durability | None, facts: ServerFacts, ms: int) -> list[tuple[str, ...]]:
    """The commands that confirm a level. Each waits `ms` milliseconds at most."""
    commands: list[tuple[str, ...]] = []
    if level is not None and level >= EVERYSEC:
        commands.append(("WAITAOF", "1", "0", str(ms)) if _waits_for_disk(level, facts) else SETTINGS)
    if level is not None and level.replicas:
        commands.append(("WAIT", str(level.replicas), str(ms)))
    return commands


def packed(commands: Sequence[tuple[str, ...]]) -> bytes:
    """Encode the commands."""
    return b"".join(pack(*command) for command in commands)


def confirmed_level(level: Durability | None, facts: ServerFacts, answers: Sequence[Any]) -> Durability:
    """The level that the replies confirm. Raises WireLost if the call must be repeated to know."""
    for answer in answers:
        if isinstance(answer, RedisError) and not any(words in _text(answer) for words in _CANNOT_CONFIRM):
            raise WireLost(_text(answer))
    if level is None or level < EVERYSEC:
        return facts.known_level
    disk, *replicas = answers
    if _waits_for_disk(level, facts):
        safe = FSYNC if not isinstance(disk, RedisError) and disk[0] >= 1 else MEMORY
    else:
        safe = level_from_settings(disk)
    (count,) = replicas or (0,)
    on_replicas = 0 if isinstance(count, RedisError) else count
    return replicated(on_replicas) if safe >= FSYNC and on_replicas else safe


def level_from_settings(settings: Any) -> Durability:
    """The level that the reply to `SETTINGS` guarantees: `MEMORY` if the user may not read the settings."""
    if isinstance(settings, RedisError):
        return MEMORY
    values = dict(zip(settings[::2], settings[1::2], strict=True))
    if values.get(b"appendonly") != b"yes" or values.get(b"no-appendfsync-on-rewrite") == b"yes":
        return MEMORY
    return {b"always": FSYNC, b"everysec": EVERYSEC}.get(values.get(b"appendfsync", b""), MEMORY)


def _waits_for_disk(level: Durability, facts: ServerFacts) -> bool:
    return level >= FSYNC and facts.waits_for_disk


def _text(error: RedisError) -> str:
    return f"{getattr(error, 'status_code', None) or ''} {error}"
