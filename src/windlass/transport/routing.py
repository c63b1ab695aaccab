"""Finds the server of a queue: addresses, redirects, Sentinel, the cluster's slot table, and all primaries.

It also opens the connections. Each new one is checked before use: the server must be fit for a queue, and have the
scripts. Its generators yield the steps of `io_steps.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NoReturn, TypeVar

from redis.crc import key_slot
from redis.exceptions import AskError, BusyLoadingError, RedisError

from windlass import errors
from windlass.storage.port import Script
from windlass.transport.durability_check import SETTINGS, level_from_settings
from windlass.transport.endpoint import Address, Endpoint
from windlass.transport.errors import Action, ConnectFailed, Fault, WireLost, classify
from windlass.transport.io_steps import Connect, Exchange, Flow, Sleep, Wire, Work, pack
from windlass.transport.server_facts import ServerFacts

T = TypeVar("T")
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.02, 1.0
_SCAN_COUNT = 1000  # keys for one SCAN step: short enough not to hold up the server


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session. `locate` starts the embedded server if needed and returns its socket path."""

    scripts: tuple[Script, ...]
    retry_for: float = 10.0
    call_timeout: float = 10.0
    allow_eviction: bool = False
    locate: Callable[[], str] | None = None


class Backoff:
    """The pauses between tries, and when to stop: `seconds` after the first try at the latest."""

    __slots__ = ("_deadline", "_pause_s")

    def __init__(self, seconds: float) -> None:
        self._deadline = monotonic() + seconds
        self._pause_s = _FIRST_BACKOFF_S

    @property
    def is_over(self) -> bool:
        """Whether no time is left for a pause and another try."""
        return monotonic() + self._pause_s > self._deadline

    def pause(self) -> Sleep:
        """The next pause. Each is longer than the one before."""
        step = Sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(self._pause_s * 2, _MAX_BACKOFF_S)
        return step


class Routing:
    """What a session knows about its servers: which one has a key, and what was learned when it connected."""

    def __init__(self, endpoint: Endpoint, options: SessionOptions) -> None:
        self.endpoint = endpoint
        self.options = options
        self.primary: Address | None = None
        self.facts: dict[Address, ServerFacts] = {}  # as of the last connection to each server
        self.ended = False  # no more retries
        self._cluster = False
        self._seeds: list[Address] = list(endpoint.addresses)
        self._routes: dict[int, Address] = {}
        self._slot_source: Address | None = None  # the cluster node that last sent us the slot table

    # -- where a key is --------------------------------------------------------------------------

    def known_address(self, keys: tuple[str, ...]) -> Address | None:
        """The server of these keys, as far as is known."""
        return self._routes.get(key_slot(keys[0].encode())) if self._cluster else self.primary

    def find_address(self) -> Flow[Address]:
        """Find a server to ask. A cluster node that does not have the key names the one that has it."""
        if self._cluster:
            return self._seed()  # any node redirects us
        self.primary = yield from self._find_primary()
        return self.primary

    def _find_primary(self) -> Flow[Address]:
        if self.endpoint.kind == "sentinel":
            return (yield from self._ask_sentinels())
        if self.endpoint.kind == "embedded" and self.options.locate:
            return Address(path=(yield Work(self.options.locate)))
        return self._seed()

    def _seed(self) -> Address:
        """The node to ask for the slot table: the last one that answered, for a dead node would cost a full timeout."""
        return self._slot_source or random.choice(self._seeds)

    def _ask_sentinels(self) -> Flow[Address]:
        problem = "no Sentinel knows this service"
        for sentinel in random.sample(self.endpoint.addresses, len(self.endpoint.addresses)):
            wire: Any = None
            try:
                wire = yield Connect(sentinel, sentinel=True)
                if isinstance(wire, RedisError):
                    problem = text_of(wire)
                    continue
                (reply,) = yield Exchange(wire, pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.endpoint.service))
            except (ConnectFailed, WireLost) as error:
                problem = str(error)
                continue
            finally:
                if wire is not None and not isinstance(wire, RedisError):
                    wire.abort()
            if isinstance(reply, RedisError):
                problem = text_of(reply)
            elif reply is not None:
                return Address(reply[0].decode(), int(reply[1]))
        raise ConnectFailed(f"no Sentinel returned a primary for {self.endpoint.service!r}: {problem}")

    def server_of(self, keys: tuple[str, ...]) -> str:
        """The run id of the server process that has these keys; it changes with each restart."""
        address = self.known_address(keys)
        return self.facts[address].run_id if address in self.facts else ""

    def redirect(self, reply: RedisError, fault: Fault, sender: Address) -> Address | None:
        """Follow a redirect. MOVED updates the slot table; ASK returns the node for the next try only."""
        if not isinstance(reply, AskError):
            return None
        address = Address(reply.host or sender.host, reply.port)  # an empty host means the node that answered
        if fault.action is Action.ASK:
            return address
        self._cluster = True
        self._routes[reply.slot_id] = address
        return None

    def forget(self, address: Address | None) -> None:
        """Forget what this server was used for, so that the next try looks up the primary or the slot again."""
        self.primary = None
        if address is None:
            return
        if self._slot_source == address:
            self._slot_source = None
        self._routes = {slot: node for slot, node in self._routes.copy().items() if node != address}

    # -- connections -----------------------------------------------------------------------------

    def connect(self, address: Address) -> Flow[Wire]:
        """Connect, check that the server is fit for a queue, and load the scripts it does not have."""
        wire: Wire | RedisError = yield Connect(address)
        if isinstance(wire, RedisError):
            refuse(address, wire)
        try:
            shas = [script.sha for script in self.options.scripts]
            info, known = yield Exchange(wire, pack("INFO") + pack("SCRIPT", "EXISTS", *shas), 2)
            for reply in (info, known):
                if isinstance(reply, RedisError):
                    refuse(address, reply)
            facts = ServerFacts.read(info)
            if self.endpoint.kind == "embedded":  # Windlass wrote its configuration, so it stays as it is
                (settings,) = yield Exchange(wire, pack(*SETTINGS))
                facts = replace(facts, known_level=level_from_settings(settings))
            self.facts[address] = facts
            facts.check(str(address), allow_eviction=self.options.allow_eviction)
            missing = tuple(s for s, there in zip(self.options.scripts, known, strict=True) if not there)
            yield from load_scripts(wire, missing)
            if self.endpoint.kind == "sentinel" and not facts.primary:
                raise ConnectFailed("it has become a replica")
            if facts.cluster:
                yield from self._learn_cluster(wire, address)
        except BaseException as error:
            wire.abort()
            if isinstance(error, WireLost):
                raise ConnectFailed(str(error)) from None
            raise
        return wire

    def _learn_cluster(self, wire: Wire, address: Address) -> Flow[None]:
        (slots,) = yield Exchange(wire, pack("CLUSTER", "SLOTS"))
        self._cluster = True
        if isinstance(slots, RedisError):
            return
        routes: dict[int, Address] = {}
        for first, last, primary, *_ in slots:
            host = (primary[0] or b"").decode()
            node = Address(address.host if host in ("", "?") else host, primary[1])
            routes.update(dict.fromkeys(range(first, last + 1), node))
        self._routes = routes
        self._seeds = sorted({*routes.values(), *self.endpoint.addresses}, key=str)
        self._slot_source = address

    # -- every primary ---------------------------------------------------------------------------

    def is_cluster(self) -> Flow[bool]:
        """Whether the server is a cluster. Connects if there is no connection yet."""
        if not self._cluster and self.primary is None:
            wire = yield from self.connect((yield from self.find_address()))
            wire.abort()
        return self._cluster

    def scan(self, pattern: str) -> Flow[set[bytes]]:
        """All keys that match a pattern, on every primary."""
        return self._retry_read(lambda: self._scan_all(pattern), "scan for keys")

    def examine(self, look: Callable[[Address, Wire], Flow[T]]) -> Flow[dict[Address, T | None]]:
        """Run `look` on every primary, on a new connection, even if the server is not fit for a queue.

        The result is `None` for a cluster node that cannot be reached.
        """
        return self._retry_read(lambda: self._examine_all(look), "examine the server")

    def primaries(self) -> Flow[list[Address]]:
        """All primaries. Waits while a server is loading its data."""
        return self._retry_read(lambda: self._primaries(loaded=True), "find the primaries")

    def visit(self, address: Address, look: Callable[[Address, Wire], Flow[T]]) -> Flow[T]:
        """Run `look` on one server, without retries. Raises ConnectFailed or WireLost."""
        wire: Any = yield Connect(address)
        if isinstance(wire, RedisError):
            refuse(address, wire)
        try:
            return (yield from look(address, wire))
        finally:
            wire.abort()

    def _retry_read(self, read: Callable[[], Flow[T]], about: str) -> Flow[T]:
        """Repeat what only reads, for `retry_for` seconds at most."""
        backoff = Backoff(self.options.retry_for)
        while True:
            try:
                return (yield from read())
            except (ConnectFailed, WireLost) as error:
                self.primary = self._slot_source = None
                if self.ended or backoff.is_over:
                    raise getattr(error, "reason", None) or errors.ServerUnreachable(
                        f"no connection to {self.endpoint} ({error}); nothing was changed ({about}). "
                        "Is the server running, and is the URL right?"
                    ) from None
            yield backoff.pause()

    def _examine_all(self, look: Callable[[Address, Wire], Flow[T]]) -> Flow[dict[Address, T | None]]:
        primaries = yield from self._primaries()
        seen: dict[Address, T | None] = {}
        for address in primaries:
            try:
                seen[address] = yield from self.visit(address, look)
            except (ConnectFailed, WireLost):
                if len(primaries) == 1:
                    raise
                seen[address] = None
        return seen

    def _primaries(self, *, loaded: bool = False) -> Flow[list[Address]]:
        first = yield from self._find_primary()
        info = yield from self.visit(first, self._read_info)
        if loaded and info and b"\nloading:1" in info:
            refuse(first, BusyLoadingError("LOADING the server is still reading its data"))
        return sorted(set(self._routes.values()), key=str) or [first] if self._cluster else [first]

    def _read_info(self, address: Address, wire: Wire) -> Flow[bytes | None]:
        (info,) = yield Exchange(wire, pack("INFO"))
        if isinstance(info, RedisError):
            return None
        if ServerFacts.read(info).cluster:
            yield from self._learn_cluster(wire, address)
        return bytes(info)

    def _scan_all(self, pattern: str) -> Flow[set[bytes]]:
        """Scan every primary. Connecting refreshes the slot table: a missing primary would hide its queues."""
        first = self.primary or (yield from self.find_address())
        wire = yield from self.connect(first)
        others = set(self._routes.values()) if self._cluster else {first}
        found: set[bytes] = set()
        if first in others:
            others.remove(first)
            found |= yield from _scan(first, wire, pattern)
        else:
            wire.abort()
        for address in others:
            found |= yield from _scan(address, (yield from self.connect(address)), pattern)
        return found


def load_scripts(wire: Wire, scripts: tuple[Script, ...]) -> Flow[None]:
    """Load scripts. A failure here means that the call itself was not sent."""
    if not scripts:
        return
    packed = b"".join(pack("SCRIPT", "LOAD", script.text) for script in scripts)
    try:
        replies = yield Exchange(wire, packed, len(scripts))
    except WireLost as error:
        raise ConnectFailed(str(error)) from None
    for reply in replies:
        if isinstance(reply, RedisError):
            fault = classify(text_of(reply))
            raise fault.error(f"the server refused to load a script: “{text_of(reply)}”; {fault.remedy}")


def _scan(address: Address, wire: Wire, pattern: str) -> Flow[set[bytes]]:
    """Scan one server, and close the wire."""
    found: set[bytes] = set()
    cursor = b"0"
    try:
        while True:
            (reply,) = yield Exchange(wire, pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT))
            if isinstance(reply, RedisError):
                refuse(address, reply)
            cursor, keys = reply
            found.update(keys)
            if cursor == b"0":
                return found
    finally:
        wire.abort()


def refuse(address: Address, reply: RedisError) -> NoReturn:
    """Raise the error for a reply that refuses a connection or a request that is no call."""
    fault = classify(text_of(reply))
    reason = fault.error(f"the server at {address} answered “{text_of(reply)}”; {fault.remedy}")
    if fault.action is Action.TRY_AGAIN:
        raise ConnectFailed(str(reason), reason)
    raise reason


def text_of(error: RedisError) -> str:
    """The error as the server wrote it. The client library cuts the code off; this puts it back."""
    code = getattr(error, "status_code", None) or ""
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)
