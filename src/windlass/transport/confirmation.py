"""How a level of durability is confirmed: commands behind a call on the same connection, and what their answers say.

`WAITAOF` and `WAIT` count for the writes of the connection that sends them, and answer with what was reached when their
time is over: so the counts are compared, and a repeat of a call writes again (see lua/shared/operations.lua). Where
`WAITAOF` cannot be had or trusted, the settings are asked for instead, each time anew: with `appendfsync always` the
server writes to its disk before it answers at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from windlass.transport.errors import WireLost
from windlass.transport.server_facts import ServerFacts
from windlass.transport.wire import pack
from windlass.values.durability import EVERYSEC, FSYNC, MEMORY, Durability, replicated

SETTINGS = ("CONFIG", "GET", "*append*")  # one pattern: Redis 7.0 and others alike

# Errors that say that it cannot be known. Any other, such as that the server is a replica by now, is not an answer.
_NO_ANSWER = ("NOPERM", "ERR unknown command", "appendonly is disabled")


def confirming(level: Durability | None, facts: ServerFacts, ms: int) -> list[tuple[str, ...]]:
    """The commands that confirm a level; each waits this long at most."""
    commands: list[tuple[str, ...]] = []
    if level is not None and level >= EVERYSEC:
        commands.append(("WAITAOF", "1", "0", str(ms)) if _waits_for_disk(level, facts) else SETTINGS)
    if level is not None and level.replicas:
        commands.append(("WAIT", str(level.replicas), str(ms)))
    return commands


def packed(commands: Sequence[tuple[str, ...]]) -> bytes:
    """The commands as they are sent."""
    return b"".join(pack(*command) for command in commands)


def reached(level: Durability | None, facts: ServerFacts, answers: Sequence[Any]) -> Durability:
    """How safe a call is by what the server answered. Raises WireLost if that was no answer: it must be asked again."""
    for answer in answers:
        if isinstance(answer, RedisError) and not any(words in _text(answer) for words in _NO_ANSWER):
            raise WireLost(_text(answer))
    if level is None or level < EVERYSEC:
        return facts.known_level
    disk, *replicas = answers
    if _waits_for_disk(level, facts):
        safe = FSYNC if not isinstance(disk, RedisError) and disk[0] >= 1 else MEMORY
    else:
        safe = promised(disk)
    (count,) = replicas or (0,)
    on_replicas = 0 if isinstance(count, RedisError) else count
    return replicated(on_replicas) if safe >= FSYNC and on_replicas else safe


def promised(settings: Any) -> Durability:
    """What the answer to `SETTINGS` promises; nothing where the user may not ask."""
    if isinstance(settings, RedisError):
        return MEMORY
    told = dict(zip(settings[::2], settings[1::2], strict=True))
    if told.get(b"appendonly") != b"yes" or told.get(b"no-appendfsync-on-rewrite") == b"yes":
        return MEMORY
    return {b"always": FSYNC, b"everysec": EVERYSEC}.get(told.get(b"appendfsync", b""), MEMORY)


def _waits_for_disk(level: Durability, facts: ServerFacts) -> bool:
    return level >= FSYNC and facts.waits_for_disk


def _text(error: RedisError) -> str:
    return f"{getattr(error, 'status_code', None) or ''} {error}"
