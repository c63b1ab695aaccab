"""Reads the facts that the checks judge, over one connection, without writing anything.

It first asks which commands the user may run, and sends no others: each refused command would be an entry in the
server's ACL LOG. For a fact that the user may not read, it records the ACL rule that would allow it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Any

from redis.exceptions import RedisError

from windlass.storage.native import keys, scripts
from windlass.transport.endpoint import Address, Endpoint
from windlass.transport.io_steps import Exchange, Flow, Wire, pack
from windlass.transport.server_facts import version_of

SAMPLES = 50  # timed round trips: enough for a p99 within a fraction of a second
SETTINGS = (
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "timeout",
    "dir",
)

# The commands that the checks send besides INFO, and the ACL rules that allow them.
_CONFIG, _WHOAMI, _SLOWLOG = "CONFIG GET save", "ACL WHOAMI", "SLOWLOG GET 1"
_PING, _TIME, _CLUSTER = "PING", "TIME", "CLUSTER INFO"
_SLOTS = "CLUSTER SLOTS"
RULES = {
    _CONFIG: "+config|get",
    _WHOAMI: "+acl|whoami",
    _SLOWLOG: "+slowlog|get",
    _PING: "+ping",
    _TIME: "+time",
    _CLUSTER: "+cluster|info",
    _SLOTS: "+cluster|slots",
}

_ON_KEYS = (
    "DEL", "EXISTS", "GET", "HDEL", "HEXISTS", "HGET", "HKEYS", "HLEN", "HMGET", "HRANDFIELD", "HSCAN", "HSET", "LLEN",
    "PERSIST", "PEXPIRE", "PTTL", "RPOP", "SET", "TYPE", "UNLINK", "ZADD", "ZCARD", "ZCOUNT", "ZMSCORE", "ZPOPMIN",
    "ZRANGE", "ZREM", "ZREMRANGEBYSCORE", "ZSCAN", "ZSCORE",
)  # fmt: skip


def needed(namespace: str = "") -> tuple[str, ...]:
    """The commands of a worker with the native layout, with a key or channel of its own; see docs/acl/worker.acl."""
    key, channel = keys.queue_key("doctor", "data", namespace), keys.wake_channel("doctor", namespace)
    return (
        *(f"{command} {key}" for command in _ON_KEYS),
        "CLIENT SETNAME windlass",
        "INFO",
        "SCAN 0",
        "SCRIPT EXISTS x",
        "SCRIPT LOAD x",
        f"EVALSHA x 1 {key}",
        "TIME",
        "WAIT 0 1",
        "WAITAOF 0 0 1",
        f"SUBSCRIBE {channel}",
        f"PUBLISH {channel} x",
    )


def _read_queues(namespace: str) -> tuple[str, ...]:
    """The commands that list the queues and count their jobs."""
    key = keys.queue_key("doctor", "data", namespace)
    return ("SCAN 0", f"ZCOUNT {key} 0 0", f"HMGET {key} x", f"ZRANGE {key} 0 0", f"TYPE {key}")


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow call of a Windlass script."""

    script: str
    seconds: float
    at: float


@dataclass(frozen=True)
class Facts:
    """The facts about one server. `None` means that the user may not read it; `unseen` has the missing rule."""

    server: str
    info: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] | None = None
    user: str = "default"
    denied: Sequence[str] | None = None  # of the commands that a worker needs
    ahead: float | None = None  # how many seconds its clock is certainly ahead of ours
    pings: Sequence[float] = ()  # round trips in seconds, sorted
    calls: Sequence[float] = ()  # the same for a script
    slow: Sequence[Slow] | None = None
    cluster: Mapping[str, str] | None = None
    replicas_of_slots: int | None = None  # the fewest replicas that a slot of this primary has
    own_keys: str = f"{keys.prefix()}*"
    embedded: bool = False
    free: float | None = None  # the free fraction of the disk with its data
    unseen: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """ "redis" or "valkey"."""
        return "valkey" if "valkey_version" in self.info else "redis"

    @property
    def version(self) -> tuple[int, ...]:
        """The server version; empty if unknown."""
        return version_of(self.info.get(f"{self.kind}_version", ""))

    def number(self, name: str) -> int:
        """A number from INFO; 0 if it is missing."""
        text = self.info.get(name, "0")
        return int(text) if text.lstrip("-").isdigit() else 0

    def setting(self, name: str) -> str | None:
        """A setting; `None` if the user may not read it."""
        return None if self.config is None else self.config.get(name, "")


def look(endpoint: Endpoint, namespace: str, address: Address, wire: Wire) -> Flow[Facts]:
    """Read all facts about a server."""
    wanted = needed(namespace)
    info = yield from _ask(wire, "INFO")
    rights = yield from _rights(wire, [*RULES, *wanted])
    unseen = {} if isinstance(info, dict) else {"INFO": "+info"}
    unseen |= {line: RULES[line] for line in RULES if rights is not None and not rights.get(line)}

    def ask(line: str, *words: str | int) -> Flow[Any]:
        if line in unseen:
            return None
        reply = yield from _ask(wire, *(words or line.split()))
        if reply is None:
            unseen[line] = RULES[line]
        return reply

    config = _pairs((yield from ask(_CONFIG, "CONFIG", "GET", *SETTINGS)))
    user = yield from ask(_WHOAMI)
    before = time()
    clock = yield from ask(_TIME)
    after = time()
    slow = yield from ask(_SLOWLOG, "SLOWLOG", "GET", 128)
    is_cluster = isinstance(info, dict) and info.get("cluster_enabled") == "1"
    cluster = (yield from ask(_CLUSTER)) if is_cluster else None
    slots = (yield from ask(_SLOTS)) if is_cluster else None
    pings = (yield from _time(wire, pack("PING"))) if _PING not in unseen else []
    calls = (yield from _time(wire, pack("EVALSHA", scripts.RIGHTS.sha, 0, "TIME"))) if rights is not None else []
    embedded = endpoint.kind == "embedded"
    return Facts(
        server=str(address),
        info=info if isinstance(info, dict) else {},
        config=config,
        user=user.decode(errors="replace") if user else endpoint.username or "default",
        denied=None if rights is None else [line for line in wanted if rights[line] is False],
        ahead=None if clock is None else _ahead(int(clock[0]) + int(clock[1]) / 1e6, before, after),
        pings=sorted(pings),
        calls=sorted(calls),
        slow=None if slow is None else _slow(slow),
        cluster=_fields(cluster) if cluster else None,
        replicas_of_slots=None if slots is None else _replicas(slots, address),
        own_keys=f"{keys.prefix(namespace)}*",
        embedded=embedded,
        free=_free(config) if embedded and config else None,
        unseen=unseen,
    )


def read_briefly(endpoint: Endpoint, address: Address, wire: Wire) -> Flow[Facts]:
    """Read the facts that a worker checks before it starts. Sends no command that may be forbidden."""
    info = yield from _ask(wire, "INFO")
    if not isinstance(info, dict):
        return Facts(str(address), unseen={"INFO": "+info"})
    rights = yield from _rights(wire, [_CONFIG])
    settings = (yield from _ask(wire, "CONFIG", "GET", *SETTINGS)) if rights and rights[_CONFIG] else None
    return Facts(str(address), info, _pairs(settings), embedded=endpoint.kind == "embedded")


def may_read_queues(namespace: str, address: Address, wire: Wire) -> Flow[bool]:
    """Whether the user may list the queues and count their jobs."""
    rights = yield from _rights(wire, _read_queues(namespace))
    return rights is not None and all(rights.values())


def _ask(wire: Wire, *words: str | int) -> Flow[Any]:
    """The reply, with INFO parsed. `None` for an error: the command is forbidden, or the server does not have it."""
    (reply,) = yield Exchange(wire, pack(*words))
    if isinstance(reply, RedisError):
        return None
    return _fields(reply) if words[0] == "INFO" else reply


def _rights(wire: Wire, lines: Sequence[str]) -> Flow[dict[str, bool | None] | None]:
    """Whether the user may run each command; `None` for an unknown command. `None` alone if scripts are forbidden."""
    _, reply = yield Exchange(
        wire,
        pack("SCRIPT", "LOAD", scripts.RIGHTS.text) + pack("EVALSHA", scripts.RIGHTS.sha, 0, *lines),
        2,
    )
    if isinstance(reply, RedisError):
        return None
    answers = {b"1": True, b"0": False}
    return {line: answers.get(answer) for line, answer in zip(lines, reply, strict=True)}


def _time(wire: Wire, packed: bytes) -> Flow[list[float]]:
    times: list[float] = []
    for _ in range(SAMPLES):
        began = perf_counter()
        yield Exchange(wire, packed)
        times.append(perf_counter() - began)
    return times


def _ahead(server: float, before: float, after: float) -> float:
    """How far the server's clock is ahead. It was read between `before` and `after`, so only more than that counts."""
    return server - after if server > after else min(0.0, server - before)


def _fields(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value.strip() for name, separator, value in lines if separator}


def _pairs(reply: Sequence[bytes] | None) -> dict[str, str] | None:
    if reply is None:
        return None
    words = [word.decode(errors="replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def _slow(entries: Sequence[Any]) -> list[Slow]:
    ours = {script.sha: script.name for script in (*scripts.ALL, *scripts.PRESENCE, scripts.INSPECT)}
    found = []
    for _, at, microseconds, words, *_ in entries:
        sha = words[1].decode(errors="replace") if len(words) > 1 and words[0].upper() == b"EVALSHA" else ""
        if sha in ours:
            found.append(Slow(ours[sha], microseconds / 1e6, at))
    return found


def _replicas(slots: Sequence[Any], address: Address) -> int:
    own = [replicas for _, _, primary, *replicas in slots if primary[1] == address.port]
    return min(map(len, own), default=0)


def _free(config: Mapping[str, str]) -> float | None:
    try:
        usage = shutil.disk_usage(config.get("dir", ""))
    except OSError:
        return None
    return usage.free / usage.total
