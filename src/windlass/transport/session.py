"""Sends calls to the server, without doing I/O: connections, retries, redirections, script loading.

The session's methods are generators. They yield the steps of `wire.py`, a driver performs each step, and sends its
result back. A *caller* sends one call at a time and has a name that outlives its connection. The server remembers the
last operation of each caller. So a call whose reply was lost is repeated on a new connection, and is applied once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, NoReturn, TypeVar

from msgspec import structs
from redis.crc import key_slot
from redis.exceptions import AskError, BusyLoadingError, NoScriptError, RedisError

from windlass import errors
from windlass.storage.port import Call, Script
from windlass.transport.confirmation import SETTINGS, confirm_commands, confirmed_level, level_from_settings, packed
from windlass.transport.endpoint import Address, Endpoint
from windlass.transport.errors import Action, ConnectFailed, Fault, WireLost, classify
from windlass.transport.server_facts import ServerFacts
from windlass.transport.wire import AwaitMessage, Connect, Exchange, Flow, Sleep, Wire, Work, pack
from windlass.values.durability import MEMORY, Durability
from windlass.values.ids import random_id

T = TypeVar("T")
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.02, 1.0
_MAX_IMMEDIATE_RETRIES = 10  # after redirections and script loads; then each retry waits
_SCAN_COUNT = 1000  # keys for one SCAN step: short enough not to hold up the server


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session. `locate` starts the embedded server if needed and returns its socket path."""

    scripts: tuple[Script, ...]
    retry_for: float = 10.0
    call_timeout: float = 10.0
    allow_eviction: bool = False
    locate: Callable[[], str] | None = None


@dataclass(slots=True, eq=False)  # comparing fields would run Python code, so deque.remove would not be atomic
class Caller:
    """Sends one call at a time under its own name. In a cluster it has one wire for each node it has used."""

    name: str = field(default_factory=random_id)
    number: int = 0
    wires: dict[Address, Wire] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)  # the first key of each queue it has written to
    abandoned: Call[Any] | None = None  # its last call, if the program stopped waiting for the reply
    lossy: bool = False  # a request got no reply: it may still arrive, and the server must recognise it then

    def drop(self, address: Address | None = None) -> None:
        """Close the wires, so that a late reply is never read as the answer to another call."""
        for each in [address] if address else list(self.wires):
            wire = self.wires.pop(each, None)
            if wire is not None:
                wire.abort()


@dataclass(slots=True, eq=False)
class Listener:
    """A connection that receives wake-ups, or other published messages."""

    name: str
    address: Address
    wire: Wire
    channels: tuple[str, ...]
    peek: tuple[str, ...] | None = None  # a command that blocks until there may be work; replaces the channels


class Session:
    """The connections of one program, or of one event loop, to one server, cluster or Sentinel group."""

    def __init__(self, endpoint: Endpoint, options: SessionOptions) -> None:
        self.endpoint = endpoint
        self.options = options
        self.callers: list[Caller] = []
        self._idle: deque[Caller] = deque()
        self._listeners: deque[Listener] = deque()
        self._seeds: list[Address] = list(endpoint.addresses)
        self._routes: dict[int, Address] = {}
        self._primary: Address | None = None
        self._slot_source: Address | None = None  # the cluster node that last sent us the slot table
        self._facts: dict[Address, ServerFacts] = {}  # as of the last connection to each server
        self._cluster = False
        self._ended = False

    # -- calls -----------------------------------------------------------------------------------

    def perform(self, call: Call[T], retry_for: float | None = None) -> Flow[T]:
        """Send a call; retry it until the server answers or refuses, for `retry_for` seconds at most."""
        value, _ = yield from self.perform_durably(call, None, retry_for)
        return value

    def perform_durably(
        self, call: Call[T], level: Durability | None, retry_for: float | None = None
    ) -> Flow[tuple[T, Durability]]:
        """`perform`, then wait for `level`. Returns the value and the durability reached, which may be lower."""
        retry_for = self.options.retry_for if retry_for is None else retry_for
        caller = self._take_caller(call)
        try:
            if caller.abandoned:
                yield from self._undo_abandoned(caller, caller.abandoned, retry_for)
            return (yield from self._execute(caller, call, retry_for, level))
        except errors.WindlassError:
            raise
        except BaseException:  # cancelled, interrupted, or a bug: the reply may still be on its way
            caller.lossy = caller.lossy or call.writes
            caller.drop()
            raise
        finally:
            self._idle.append(caller)

    def _execute(
        self, caller: Caller, call: Call[T], retry_for: float, level: Durability | None = None
    ) -> Flow[tuple[T, Durability]]:
        if call.writes and not call.operation:
            caller.number += 1
            caller.queues.add(call.keys[0])
        # If the program stops waiting for the reply, the next call on this caller undoes this one first.
        caller.abandoned = call if call.undo else None
        try:
            reply, safe = yield from self._retry_until_answered(
                caller, call, self._command(caller, call), retry_for, level
            )
        except errors.OutcomeUnknown:
            raise
        except errors.WindlassError:
            caller.abandoned = None  # a refusal is an answer too
            raise
        caller.abandoned = None
        return call.read(reply), safe

    def _undo_abandoned(self, caller: Caller, call: Call[Any], retry_for: float) -> Flow[None]:
        """Repeat an abandoned call under its own number to learn its result, then undo it."""
        try:
            command = self._command(caller, call, repeated=True)
            reply, _ = yield from self._retry_until_answered(caller, call, command, retry_for)
            assert call.undo is not None
            undo = call.undo(call.read(reply))
            caller.abandoned = None
            if undo is not None:
                # The undo call is repeated too if its reply is lost: nothing else knows of these leases.
                yield from self._execute(caller, structs.replace(undo, undo=lambda _: None), retry_for)
        except errors.OutcomeUnknown as error:
            raise errors.ServerUnreachable(
                f"nothing was sent: the outcome of an earlier call on this connection is still unknown ({error})"
            ) from error
        except errors.NotApplied:
            raise
        except errors.WindlassError:
            caller.abandoned = None  # refused for good: there is nothing to undo

    def _take_caller(self, call: Call[Any]) -> Caller:
        """Take an idle caller. One with an abandoned call serves only the queue of that call.

        For that queue it comes first: the jobs which the abandoned call leased come back with the caller's next call.
        """
        idle = list(self._idle)[::-1]  # one step: another thread may take or return a caller at any time
        with_abandoned = [
            caller for caller in idle if caller.abandoned is not None and caller.abandoned.keys[0] == call.keys[0]
        ]
        for caller in (*with_abandoned, *(caller for caller in idle if caller.abandoned is None)):
            try:
                self._idle.remove(caller)
                return caller
            except ValueError:  # another thread was faster
                pass
        caller = Caller()
        self.callers.append(caller)
        return caller

    def _command(self, caller: Caller, call: Call[Any], *, repeated: bool = False) -> bytes:
        operation = (call.operation or (caller.name, caller.number)) if call.writes else ()
        more = call.when_repeated if repeated else ()
        return pack("EVALSHA", call.script.sha, len(call.keys), *call.keys, *operation, *call.args, *more)

    def _retry_until_answered(
        self,
        caller: Caller,
        call: Call[Any],
        command: bytes,
        retry_for: float,
        level: Durability | None = None,
    ) -> Flow[tuple[Any, Durability]]:
        """Send until there is a reply. Once a reply was lost, a later failure raises `OutcomeUnknown`."""
        deadline = monotonic() + retry_for
        wait = _FIRST_BACKOFF_S
        may_have_happened = False
        ask_node: Address | None = None
        immediate = 0  # retries made without a wait, after a redirection or a script load
        while True:
            address: Address | None = None
            try:
                address = ask_node or self._known_address(call.keys) or (yield from self._find_address())
                wire = caller.wires.get(address) or (yield from self._open(caller, address))
                facts = self._facts[address]
                confirm = confirm_commands(level, facts, self._wait_ms) if level is not None else []
                replies = yield _exchange(wire, command, confirm, call.meanwhile, asking=ask_node is not None)
                reply, *confirmations = replies if ask_node is None else replies[1:]
                safe = confirmed_level(level, facts, confirmations) if not isinstance(reply, RedisError) else MEMORY
                if isinstance(reply, NoScriptError):
                    yield from self._load_scripts(wire, (call.script,))
            except ConnectFailed as error:
                self._drop_connection(caller, address)
                problem = error.reason or errors.ServerUnreachable(
                    f"{call.about}: no connection to {address or self.endpoint} ({error}); nothing was sent. "
                    "Is the server running, and is the URL right?"
                )
                ask_node = None
            except WireLost as error:
                self._drop_connection(caller, address)
                caller.lossy = caller.lossy or call.writes
                may_have_happened = may_have_happened or call.writes
                if call.when_repeated:
                    command = self._command(caller, call, repeated=True)
                problem = errors.ServerUnreachable(
                    f"{call.about}: the connection to {address or self.endpoint} was lost ({error})"
                )
                ask_node = None
            except errors.NotApplied as error:
                self._raise(error, call, may_have_happened)
            else:
                if not isinstance(reply, RedisError):
                    return reply, safe
                text = _text(reply)
                fault = classify(text)
                problem = fault.error(f"{call.about}: the server at {address} answered “{text}”; {fault.remedy}")
                if fault.action is Action.GIVE_UP:
                    self._raise(problem, call, may_have_happened)
                ask_node = self._redirect(reply, fault, address)
                if fault.action is Action.TRY_AGAIN:
                    self._forget_routes(caller, address)
                elif immediate < _MAX_IMMEDIATE_RETRIES:
                    immediate += 1
                    continue
            immediate = 0
            if self._ended or monotonic() + wait > deadline:
                self._raise(problem, call, may_have_happened)
            yield Sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _MAX_BACKOFF_S)

    @property
    def _wait_ms(self) -> int:
        """How long the server may wait for its disk, and again for its replicas: in all less than `call_timeout`."""
        return max(1, int(self.options.call_timeout * 400))

    def _raise(self, problem: Exception, call: Call[Any], may_have_happened: bool) -> NoReturn:
        if may_have_happened:
            raise errors.OutcomeUnknown(
                f"{call.about}: the request was sent and its reply was lost, so it may have been applied or not. Look "
                "up the job, or repeat the call: with the same id or lease that is safe. The last attempt failed with: "
                f"{problem}"
            ) from problem
        raise problem

    def is_cluster(self) -> Flow[bool]:
        """Whether the server is a cluster. Connects if there is no connection yet."""
        if not self._cluster and self._primary is None:
            wire = yield from self._connect((yield from self._find_address()))
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
            self._refuse(address, wire)
        try:
            return (yield from look(address, wire))
        finally:
            wire.abort()

    def _retry_read(self, attempt: Callable[[], Flow[T]], about: str) -> Flow[T]:
        """Retry an attempt that writes nothing, for `retry_for` seconds at most."""
        deadline = monotonic() + self.options.retry_for
        wait = _FIRST_BACKOFF_S
        while True:
            try:
                return (yield from attempt())
            except (ConnectFailed, WireLost) as error:
                self._primary = self._slot_source = None
                if self._ended or monotonic() + wait > deadline:
                    raise getattr(error, "reason", None) or errors.ServerUnreachable(
                        f"{about}: no connection to {self.endpoint} ({error}). "
                        "Is the server running, and is the URL right?"
                    ) from None
            yield Sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _MAX_BACKOFF_S)

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
            self._refuse(first, BusyLoadingError("LOADING the server is still reading its data"))
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
        first = self._primary or (yield from self._find_address())
        wire = yield from self._connect(first)
        others = set(self._routes.values()) if self._cluster else {first}
        found: set[bytes] = set()
        if first in others:
            others.remove(first)
            found |= yield from self._scan(first, wire, pattern)
        else:
            wire.abort()
        for address in others:
            found |= yield from self._scan(address, (yield from self._connect(address)), pattern)
        return found

    def _scan(self, address: Address, wire: Wire, pattern: str) -> Flow[set[bytes]]:
        found: set[bytes] = set()
        cursor = b"0"
        try:
            while True:
                (reply,) = yield Exchange(wire, pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT))
                if isinstance(reply, RedisError):
                    self._refuse(address, reply)
                cursor, keys = reply
                found.update(keys)
                if cursor == b"0":
                    return found
        finally:
            wire.abort()

    # -- where the queue is ----------------------------------------------------------------------

    def _known_address(self, keys: tuple[str, ...]) -> Address | None:
        return self._routes.get(key_slot(keys[0].encode())) if self._cluster else self._primary

    def _find_address(self) -> Flow[Address]:
        if self._cluster:
            return self._seed()  # any node redirects us
        self._primary = yield from self._find_primary()
        return self._primary

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
                    problem = _text(wire)
                    continue
                (reply,) = yield Exchange(wire, pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.endpoint.service))
            except (ConnectFailed, WireLost) as error:
                problem = str(error)
                continue
            finally:
                if wire is not None and not isinstance(wire, RedisError):
                    wire.abort()
            if isinstance(reply, RedisError):
                problem = _text(reply)
            elif reply is not None:
                return Address(reply[0].decode(), int(reply[1]))
        raise ConnectFailed(f"no Sentinel returned a primary for {self.endpoint.service!r}: {problem}")

    def _redirect(self, reply: RedisError, fault: Fault, sender: Address) -> Address | None:
        """Follow a redirection. MOVED updates the slot table; ASK returns the node for the next attempt only."""
        if not isinstance(reply, AskError):
            return None
        address = Address(reply.host or sender.host, reply.port)  # an empty host means the node that answered
        if fault.action is Action.ASK:
            return address
        self._cluster = True
        self._routes[reply.slot_id] = address
        return None

    def _forget_routes(self, caller: Caller, address: Address) -> None:
        """Forget what this server was used for, so that the next attempt looks up the primary or the slot again."""
        if self.endpoint.kind == "sentinel":
            caller.drop(address)
        self._primary = None
        if self._slot_source == address:
            self._slot_source = None
        self._routes = {slot: node for slot, node in self._routes.copy().items() if node != address}

    def _drop_connection(self, caller: Caller, address: Address | None) -> None:
        """Close the caller's connection to a server, and forget its routes."""
        if address is not None:
            caller.drop(address)
            self._forget_routes(caller, address)
        self._primary = None

    # -- connections -----------------------------------------------------------------------------

    def _open(self, caller: Caller, address: Address) -> Flow[Wire]:
        wire = yield from self._connect(address)
        caller.wires[address] = wire
        return wire

    def _connect(self, address: Address) -> Flow[Wire]:
        """Connect, check that the server is fit for a queue, and load the scripts it does not have."""
        wire: Wire | RedisError = yield Connect(address)
        if isinstance(wire, RedisError):
            self._refuse(address, wire)
        try:
            shas = [script.sha for script in self.options.scripts]
            info, known = yield Exchange(wire, pack("INFO") + pack("SCRIPT", "EXISTS", *shas), 2)
            for reply in (info, known):
                if isinstance(reply, RedisError):
                    self._refuse(address, reply)
            facts = ServerFacts.read(info)
            if self.endpoint.kind == "embedded":  # Windlass wrote its configuration, so it stays as it is
                (settings,) = yield Exchange(wire, pack(*SETTINGS))
                facts = replace(facts, known_level=level_from_settings(settings))
            self._facts[address] = facts
            facts.check(str(address), allow_eviction=self.options.allow_eviction)
            missing = tuple(s for s, there in zip(self.options.scripts, known, strict=True) if not there)
            yield from self._load_scripts(wire, missing)
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

    def _refuse(self, address: Address, reply: RedisError) -> NoReturn:
        fault = classify(_text(reply))
        reason = fault.error(f"the server at {address} answered “{_text(reply)}”; {fault.remedy}")
        if fault.action is Action.TRY_AGAIN:
            raise ConnectFailed(str(reason), reason)
        raise reason

    def _load_scripts(self, wire: Wire, scripts: tuple[Script, ...]) -> Flow[None]:
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
                fault = classify(_text(reply))
                raise fault.error(f"the server refused to load a script: “{_text(reply)}”; {fault.remedy}")

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

    # -- waiting for work ------------------------------------------------------------------------

    def listen(
        self, keys: tuple[str, ...], channel: Callable[[str], str], peek: tuple[str, ...] | None = None
    ) -> Flow[Listener]:
        """Return a listener for wake-ups, on the server that has this queue.

        With `peek` it blocks on the queue itself, so it also notices jobs from programs that publish no wake-ups.
        """
        address = self._known_address(keys) or (yield from self._find_address())
        for listener in list(self._listeners):
            channels = () if peek else (channel(listener.name),)
            if (listener.address, listener.channels, listener.peek) == (address, channels, peek):
                try:
                    self._listeners.remove(listener)
                    return listener
                except ValueError:  # another thread was faster
                    pass
        name = random_id()
        if peek:
            return Listener(name, address, (yield from self._connect(address)), (), peek)
        return (yield from self._subscribe(address, name, [channel(name)]))

    def subscribe(self, keys: tuple[str, ...], channels: Sequence[str]) -> Flow[Listener]:
        """Return a new listener for these channels. The code that asked for it closes it."""
        address = self._known_address(keys) or (yield from self._find_address())
        return (yield from self._subscribe(address, random_id(), channels))

    def _subscribe(self, address: Address, name: str, channels: Sequence[str]) -> Flow[Listener]:
        wire = yield from self._connect(address)
        try:
            replies = yield Exchange(wire, pack("SUBSCRIBE", *channels), len(channels))
        except BaseException:
            wire.abort()
            raise
        for reply in replies:
            if isinstance(reply, RedisError):
                wire.abort()
                self._refuse(address, reply)
        return Listener(name, address, wire, tuple(channels))

    def next_message(self, listener: Listener, seconds: float) -> Flow[tuple[str, bytes] | None]:
        """Wait up to `seconds` for a message. Returns its channel and payload, or `None`."""
        if listener.peek:
            return (yield from self._block_on(listener.wire, listener.peek, seconds))
        message: Any = yield AwaitMessage(listener.wire, seconds)
        if isinstance(message, RedisError):
            raise WireLost(_text(message))
        return None if message is None else (message[1].decode(errors="replace"), message[2])

    def _block_on(self, wire: Wire, peek: tuple[str, ...], seconds: float) -> Flow[tuple[str, bytes] | None]:
        timeout = max(0.01, min(seconds, 0.8 * self.options.call_timeout))
        try:
            (reply,) = yield Exchange(wire, pack(*peek, f"{timeout:.3f}"))
        except ConnectFailed as error:  # the connection was closed since its last use
            raise WireLost(str(error)) from None
        if isinstance(reply, RedisError):
            raise WireLost(_text(reply))
        return None if reply is None else ("", b"")

    def keep_listener(self, listener: Listener) -> None:
        """Put a listener back, to be used by the next waiter."""
        self._listeners.append(listener)

    # -- the end ---------------------------------------------------------------------------------

    @property
    def known_primary(self) -> Address | None:
        """A server that this session has a connection to, if there is one."""
        return self._primary or next((address for caller in list(self.callers) for address in list(caller.wires)), None)

    def start_at(self, address: Address) -> None:
        """Use this server first, instead of looking for the primary."""
        self._primary = address

    def server_of(self, keys: tuple[str, ...]) -> str:
        """The run id of the server process that has these keys; it changes with each restart."""
        address = self._known_address(keys)
        return self._facts[address].run_id if address in self._facts else ""

    def idle_callers(self, first_key: str, *, lossy: bool = False) -> list[str]:
        """Names of the idle callers that wrote to the queue with this first key.

        With `lossy`, only those with a request that may still arrive; otherwise only the others.
        """
        return [caller.name for caller in list(self._idle) if first_key in caller.queues and caller.lossy == lossy]

    def adopt(self, ended: Session) -> None:
        """Take over the callers of a session whose event loop has ended: their names, without their wires."""
        callers = list(ended.callers)
        ended._drop()
        self.callers += callers
        self._idle.extend(callers)

    def disconnect(self) -> None:
        """Close every connection and keep the callers: their next call connects again."""
        self._primary = self.known_primary
        for caller in list(self.callers):
            caller.drop()
        self._drop_listeners()

    def end(self) -> None:
        """Close every connection and stop all retries: the server may have forgotten these callers."""
        self._ended = True
        self._drop()

    def _drop(self) -> None:
        for caller in list(self.callers):
            caller.drop()
        self._drop_listeners()
        self.callers.clear()
        self._idle.clear()

    def _drop_listeners(self) -> None:
        while self._listeners:
            self._listeners.pop().wire.abort()


def _exchange(
    wire: Wire, command: bytes, confirm: list[tuple[str, ...]], meanwhile: Callable[[], object] | None, *, asking: bool
) -> Exchange:
    """A command, followed by those that confirm it. `asking`: this node is about to get the slot."""
    before = pack("ASKING") if asking else b""
    return Exchange(wire, before + command + packed(confirm), asking + 1 + len(confirm), meanwhile)


def _text(error: RedisError) -> str:
    """The error as the server wrote it. The client library cuts the code off; this puts it back."""
    code = getattr(error, "status_code", None) or ""
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)
