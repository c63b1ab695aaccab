"""The way of a call to the server and back, without I/O: connections, repeats, redirections, script loading.

A session is a generator machine: it yields the steps of `wire.py` and is sent their results. A *caller* is one
connection's worth of calls, one after the other, with a name that outlives the connection: the server
remembers the last operation of each caller, so a call whose reply was lost can be repeated on a new
connection and is applied once.
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
from windlass.transport.confirmation import SETTINGS, confirming, packed, promised, reached
from windlass.transport.endpoint import Address, Endpoint
from windlass.transport.errors import ConnectFailed, Fault, Next, WireLost, understand
from windlass.transport.server_facts import ServerFacts
from windlass.transport.wire import Connect, Exchange, Flow, Hear, Sleep, Wire, Work, pack
from windlass.values.durability import MEMORY, Durability
from windlass.values.ids import random_id

T = TypeVar("T")
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
_QUICK_TRIES = 10
_SCAN = 1000  # keys that the server looks at in one step


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session must know beside the address. `locate` gives the path of the embedded server, starting it."""

    scripts: tuple[Script, ...]
    retry_for: float = 10.0
    call_timeout: float = 10.0
    allow_eviction: bool = False
    locate: Callable[[], str] | None = None


@dataclass(slots=True, eq=False)  # to compare what they hold would let another thread in while a deque looks for one
class Caller:
    """One connection's worth of calls. In a cluster it has a wire for each node that it spoke to."""

    name: str = field(default_factory=random_id)
    number: int = 0
    wires: dict[Address, Wire] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)  # by their first key
    abandoned: Call[Any] | None = None  # under the caller's present number
    lossy: bool = False  # a try of a call was given up: it may still arrive, and must be known as what it is then

    def drop(self, address: Address | None = None) -> None:
        """Close the wires: a reply that is still to come must never be read as the answer to another call."""
        for each in [address] if address else list(self.wires):
            wire = self.wires.pop(each, None)
            if wire is not None:
                wire.abort()


@dataclass(slots=True, eq=False)
class Listener:
    """A connection on which a waiter hears that there is work."""

    name: str
    address: Address
    wire: Wire
    channels: tuple[str, ...]
    peek: tuple[str, ...] | None = None  # instead of channels: a command that blocks until there may be work


class Session:
    """All connections of one program (of one event loop) to one server, cluster or Sentinel group."""

    def __init__(self, endpoint: Endpoint, options: SessionOptions) -> None:
        self.endpoint = endpoint
        self.options = options
        self.callers: list[Caller] = []
        self._idle: deque[Caller] = deque()
        self._listeners: deque[Listener] = deque()
        self._seeds: list[Address] = list(endpoint.addresses)
        self._routes: dict[int, Address] = {}
        self._primary: Address | None = None
        self._guide: Address | None = None  # the node of a cluster that told us last who has which slots
        self._facts: dict[Address, ServerFacts] = {}  # of each server, as of the last connection to it
        self._cluster = False
        self._ended = False

    # -- calls -----------------------------------------------------------------------------------

    def perform(self, call: Call[T], retry_for: float | None = None) -> Flow[T]:
        """Send a call until it is answered, refused, or time is up."""
        value, _ = yield from self.perform_durably(call, None, retry_for)
        return value

    def perform_durably(
        self, call: Call[T], level: Durability | None, retry_for: float | None = None
    ) -> Flow[tuple[T, Durability]]:
        """The same, and wait until it is as safe as `level`; also how safe it is, which may be less."""
        patience = self.options.retry_for if retry_for is None else retry_for
        caller = self._take_caller(call)
        try:
            if caller.abandoned:
                yield from self._take_back(caller, caller.abandoned, patience)
            return (yield from self._carry_out(caller, call, patience, level))
        except errors.WindlassError:
            raise
        except BaseException:  # cancelled, interrupted, or a bug: the reply may still be on its way
            caller.lossy = caller.lossy or call.writes
            caller.drop()
            raise
        finally:
            self._idle.append(caller)

    def _carry_out(
        self, caller: Caller, call: Call[T], patience: float, level: Durability | None = None
    ) -> Flow[tuple[T, Durability]]:
        if call.writes and not call.operation:
            caller.number += 1
            caller.queues.add(call.keys[0])
        # Until there is an answer. If nobody waits for it any more, the next call on this caller will ask for it first.
        caller.abandoned = call if call.undo else None
        try:
            reply, safe = yield from self._persist(caller, call, self._command(caller, call), patience, level)
        except errors.OutcomeUnknown:
            raise
        except errors.WindlassError:
            caller.abandoned = None  # a refusal is an answer, too
            raise
        caller.abandoned = None
        return call.read(reply), safe

    def _take_back(self, caller: Caller, call: Call[Any], patience: float) -> Flow[None]:
        """Learn what an abandoned call brought, by repeating it under its own number, and give that back."""
        try:
            command = self._command(caller, call, repeated=True)
            reply, _ = yield from self._persist(caller, call, command, patience)
            assert call.undo is not None
            undo = call.undo(call.read(reply))
            caller.abandoned = None
            if undo is not None:
                # That in its turn is not given up before there is an answer: nobody else knows of these leases.
                yield from self._carry_out(caller, structs.replace(undo, undo=lambda _: None), patience)
        except errors.OutcomeUnknown as error:
            raise errors.ServerUnreachable(f"nothing was sent: an earlier call is still in doubt ({error})") from error
        except errors.NotApplied:
            raise
        except errors.WindlassError:
            caller.abandoned = None  # refused for good: it brought nothing that could be given back

    def _take_caller(self, call: Call[Any]) -> Caller:
        """An idle caller. One with a call in doubt is for the same queue only: no other queue has to wait for that.

        There it goes first: what that call leased comes back with the next call on its caller, and not before.
        """
        idle = list(self._idle)[::-1]  # in one step: between two, another thread may take or give back a caller
        doubtful = [
            caller for caller in idle if caller.abandoned is not None and caller.abandoned.keys[0] == call.keys[0]
        ]
        for caller in (*doubtful, *(caller for caller in idle if caller.abandoned is None)):
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

    def _persist(
        self,
        caller: Caller,
        call: Call[Any],
        command: bytes,
        patience: float,
        level: Durability | None = None,
    ) -> Flow[tuple[Any, Durability]]:
        """Try until there is an answer. What may have happened stays in doubt whatever the later tries meet."""
        deadline = monotonic() + patience
        wait = _FIRST_WAIT
        may_have_happened = False
        asked: Address | None = None
        quick = 0  # tries that were made at once: after a redirection, or when scripts were loaded
        while True:
            address: Address | None = None
            try:
                address = asked or self._known_address(call.keys) or (yield from self._find_address())
                wire = caller.wires.get(address) or (yield from self._open(caller, address))
                facts = self._facts[address]
                more = confirming(level, facts, self._wait_ms) if level is not None else []
                replies = yield _question(wire, command, more, call.meanwhile, asking=asked is not None)
                reply, *told = replies if asked is None else replies[1:]
                safe = reached(level, facts, told) if not isinstance(reply, RedisError) else MEMORY
                if isinstance(reply, NoScriptError):
                    yield from self._load_scripts(wire, (call.script,))
            except ConnectFailed as error:
                self._forget(caller, address)
                problem = error.reason or errors.ServerUnreachable(
                    f"{call.about}: no connection to {address or self.endpoint} ({error}); nothing was sent. "
                    "Is the server running, and is the URL right?"
                )
                asked = None
            except WireLost as error:
                self._forget(caller, address)
                caller.lossy = caller.lossy or call.writes
                may_have_happened = may_have_happened or call.writes
                if call.when_repeated:
                    command = self._command(caller, call, repeated=True)
                problem = errors.ServerUnreachable(
                    f"{call.about}: the connection to {address or self.endpoint} was lost ({error})"
                )
                asked = None
            except errors.NotApplied as error:
                self._raise(error, call, may_have_happened)
            else:
                if not isinstance(reply, RedisError):
                    return reply, safe
                fault = understand(_text(reply))
                problem = fault.error(f"{call.about}: the server at {address} said “{_text(reply)}”; {fault.remedy}")
                if fault.next is Next.GIVE_UP:
                    self._raise(problem, call, may_have_happened)
                asked = self._redirect(reply, fault, address)
                if fault.next is Next.TRY_AGAIN:
                    self._look_anew(caller, address)
                elif quick < _QUICK_TRIES:
                    quick += 1
                    continue
            quick = 0
            if self._ended or monotonic() + wait > deadline:
                self._raise(problem, call, may_have_happened)
            yield Sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _LONGEST_WAIT)

    @property
    def _wait_ms(self) -> int:
        """How long the server waits for its disk, and then for its replicas: the answer must come before we give up."""
        return max(1, int(self.options.call_timeout * 400))

    def _raise(self, problem: Exception, call: Call[Any], may_have_happened: bool) -> NoReturn:
        if may_have_happened:
            raise errors.OutcomeUnknown(
                f"{call.about}: it was sent and its reply was lost, so it may have been applied or not. Look what "
                f"became of the job, or do it again: with the same id or lease it is harmless. The last try: {problem}"
            ) from problem
        raise problem

    def find_out(self) -> Flow[bool]:
        """Connect if need be, and tell whether this is a cluster."""
        if not self._cluster and self._primary is None:
            wire = yield from self._connect((yield from self._find_address()))
            wire.abort()
        return self._cluster

    def scan(self, pattern: str) -> Flow[set[bytes]]:
        """All keys that match a pattern, on every server that has any."""
        return self._patiently(lambda: self._scan_all(pattern), "look for keys")

    def examine(self, look: Callable[[Address, Wire], Flow[T]]) -> Flow[dict[Address, T | None]]:
        """Look at every primary, on a connection of its own, whether that server is fit for a queue or not.

        `None` for one of a cluster that cannot be reached.
        """
        return self._patiently(lambda: self._examine_all(look), "look at the server")

    def primaries(self) -> Flow[list[Address]]:
        """All servers that queues may be on, once they have their data."""
        return self._patiently(lambda: self._primaries(loaded=True), "look at the server")

    def visit(self, address: Address, look: Callable[[Address, Wire], Flow[T]]) -> Flow[T]:
        """Look at one server, once. Raises ConnectFailed or WireLost."""
        wire: Any = yield Connect(address)
        if isinstance(wire, RedisError):
            self._refuse(address, wire)
        try:
            return (yield from look(address, wire))
        finally:
            wire.abort()

    def _patiently(self, attempt: Callable[[], Flow[T]], about: str) -> Flow[T]:
        """Try something that writes nothing until it is done, or time is up."""
        deadline = monotonic() + self.options.retry_for
        wait = _FIRST_WAIT
        while True:
            try:
                return (yield from attempt())
            except (ConnectFailed, WireLost) as error:
                self._primary = self._guide = None
                if self._ended or monotonic() + wait > deadline:
                    raise getattr(error, "reason", None) or errors.ServerUnreachable(
                        f"{about}: no connection to {self.endpoint} ({error}). "
                        "Is the server running, and is the URL right?"
                    ) from None
            yield Sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _LONGEST_WAIT)

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
            self._refuse(first, BusyLoadingError("LOADING it is still reading its data"))
        return sorted(set(self._routes.values()), key=str) or [first] if self._cluster else [first]

    def _read_info(self, address: Address, wire: Wire) -> Flow[bytes | None]:
        (info,) = yield Exchange(wire, pack("INFO"))
        if isinstance(info, RedisError):
            return None
        if ServerFacts.read(info).cluster:
            yield from self._learn_cluster(wire, address)
        return bytes(info)

    def _scan_all(self, pattern: str) -> Flow[set[bytes]]:
        """A cluster is asked anew who its primaries are: one that was left out would hide its queues."""
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
                (reply,) = yield Exchange(wire, pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN))
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
            return self._seed()  # whoever it is will redirect us
        self._primary = yield from self._find_primary()
        return self._primary

    def _find_primary(self) -> Flow[Address]:
        if self.endpoint.kind == "sentinel":
            return (yield from self._ask_sentinels())
        if self.endpoint.kind == "embedded" and self.options.locate:
            return Address(path=(yield Work(self.options.locate)))
        return self._seed()

    def _seed(self) -> Address:
        """Somebody to ask for the way: who told it last. A node that stands still would cost all our patience."""
        return self._guide or random.choice(self._seeds)

    def _ask_sentinels(self) -> Flow[Address]:
        problem = "none of them knows it"
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
        raise ConnectFailed(f"no Sentinel names a primary for {self.endpoint.service!r}: {problem}")

    def _redirect(self, reply: RedisError, fault: Fault, sender: Address) -> Address | None:
        """Follow the cluster: a moved slot for good, an asked one for the next try only (which is then returned)."""
        if not isinstance(reply, AskError):
            return None
        address = Address(reply.host or sender.host, reply.port)  # no host: on the one that answered
        if fault.next is Next.ASK:
            return address
        self._cluster = True
        self._routes[reply.slot_id] = address
        return None

    def _look_anew(self, caller: Caller, address: Address) -> None:
        """Something is wrong there: ask again for the primary, or for the node that has the slot."""
        if self.endpoint.kind == "sentinel":
            caller.drop(address)
        self._primary = None
        if self._guide == address:
            self._guide = None
        self._routes = {slot: node for slot, node in self._routes.copy().items() if node != address}

    def _forget(self, caller: Caller, address: Address | None) -> None:
        """The connection there is no more."""
        if address is not None:
            caller.drop(address)
            self._look_anew(caller, address)
        self._primary = None

    # -- connections -----------------------------------------------------------------------------

    def _open(self, caller: Caller, address: Address) -> Flow[Wire]:
        wire = yield from self._connect(address)
        caller.wires[address] = wire
        return wire

    def _connect(self, address: Address) -> Flow[Wire]:
        """A connection to a server that is fit for a queue, with all scripts loaded."""
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
            if self.endpoint.kind == "embedded":  # its settings are ours, and nobody changes them under way
                (settings,) = yield Exchange(wire, pack(*SETTINGS))
                facts = replace(facts, known_level=promised(settings))
            self._facts[address] = facts
            facts.check(str(address), allow_eviction=self.options.allow_eviction)
            missing = tuple(s for s, there in zip(self.options.scripts, known, strict=True) if not there)
            yield from self._load_scripts(wire, missing)
            if self.endpoint.kind == "sentinel" and not facts.primary:
                raise ConnectFailed("it is a replica by now")
            if facts.cluster:
                yield from self._learn_cluster(wire, address)
        except BaseException as error:
            wire.abort()
            if isinstance(error, WireLost):
                raise ConnectFailed(str(error)) from None
            raise
        return wire

    def _refuse(self, address: Address, reply: RedisError) -> NoReturn:
        fault = understand(_text(reply))
        reason = fault.error(f"the server at {address} said “{_text(reply)}”; {fault.remedy}")
        if fault.next is Next.TRY_AGAIN:
            raise ConnectFailed(str(reason), reason)
        raise reason

    def _load_scripts(self, wire: Wire, scripts: tuple[Script, ...]) -> Flow[None]:
        """Nothing that was asked for has happened yet when this fails."""
        if not scripts:
            return
        packed = b"".join(pack("SCRIPT", "LOAD", script.text) for script in scripts)
        try:
            replies = yield Exchange(wire, packed, len(scripts))
        except WireLost as error:
            raise ConnectFailed(str(error)) from None
        for reply in replies:
            if isinstance(reply, RedisError):
                fault = understand(_text(reply))
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
        self._guide = address

    # -- waiting for work ------------------------------------------------------------------------

    def listen(
        self, keys: tuple[str, ...], channel: Callable[[str], str], peek: tuple[str, ...] | None = None
    ) -> Flow[Listener]:
        """A listener on the server that has this queue; announcements on its channel reach it.

        With a `peek` it hears of all that comes, also from programs that announce nothing.
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
        """A listener of its own for these channels; the caller closes it."""
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

    def hear(self, listener: Listener, seconds: float) -> Flow[tuple[str, bytes] | None]:
        """Wait for a message, this long at most: its channel and what it says."""
        if listener.peek:
            return (yield from self._wait_at(listener.wire, listener.peek, seconds))
        message: Any = yield Hear(listener.wire, seconds)
        if isinstance(message, RedisError):
            raise WireLost(_text(message))
        return None if message is None else (message[1].decode(errors="replace"), message[2])

    def _wait_at(self, wire: Wire, peek: tuple[str, ...], seconds: float) -> Flow[tuple[str, bytes] | None]:
        patience = max(0.01, min(seconds, 0.8 * self.options.call_timeout))
        try:
            (reply,) = yield Exchange(wire, pack(*peek, f"{patience:.3f}"))
        except ConnectFailed as error:  # it was closed since it was last listened at
            raise WireLost(str(error)) from None
        if isinstance(reply, RedisError):
            raise WireLost(_text(reply))
        return None if reply is None else ("", b"")

    def keep_listener(self, listener: Listener) -> None:
        """Put a listener back for the next one who waits."""
        self._listeners.append(listener)

    # -- the end ---------------------------------------------------------------------------------

    @property
    def known_primary(self) -> Address | None:
        """A server that we are connected to, if any."""
        return self._primary or next((address for caller in list(self.callers) for address in list(caller.wires)), None)

    def start_at(self, address: Address) -> None:
        """Begin with a server that is known to be there, instead of looking for one."""
        self._primary = address

    def server_of(self, keys: tuple[str, ...]) -> str:
        """The process that has these keys, by the name that it gives itself anew at each start."""
        address = self._known_address(keys)
        return self._facts[address].run_id if address in self._facts else ""

    def idle_callers(self, first_key: str, *, lossy: bool = False) -> list[str]:
        """The callers that wrote to a queue, named by its first key; `lossy`: those with a try that may yet arrive."""
        return [caller.name for caller in list(self._idle) if first_key in caller.queues and caller.lossy == lossy]

    def adopt(self, ended: Session) -> None:
        """Take over the callers of a session whose event loop has ended: their names live on, their wires do not."""
        callers = list(ended.callers)
        ended._drop()
        self.callers += callers
        self._idle.extend(callers)

    def hang_up(self) -> None:
        """Close every connection, and keep the callers: what comes next makes new ones."""
        self._primary = self.known_primary
        for caller in list(self.callers):
            caller.drop()
        self._drop_listeners()

    def end(self) -> None:
        """Close every connection at once, and repeat nothing any more: the server may have forgotten our callers."""
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


def _question(
    wire: Wire, command: bytes, more: list[tuple[str, ...]], meanwhile: Callable[[], object] | None, *, asking: bool
) -> Exchange:
    """A command, and those that confirm it behind it; `asking` for a slot that this node is about to get."""
    before = pack("ASKING") if asking else b""
    return Exchange(wire, before + command + packed(more), asking + 1 + len(more), meanwhile)


def _text(error: RedisError) -> str:
    """The error as the server wrote it, with the code that the client library takes off."""
    code = getattr(error, "status_code", None) or ""
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)
