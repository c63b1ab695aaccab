"""The way of a call to the server and back, without I/O: connections, repeats, redirections, script loading.

A session is a generator machine: it yields the steps of `wire.py` and is sent their results. A *lane* is one
connection's worth of calls, one after the other, with a name that outlives the connection: the server
remembers the last operation of each lane, so a call whose reply was lost can be repeated on a new
connection and is applied once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NoReturn, TypeVar

from hiredis import pack_command
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, RedisError

from windlass import errors
from windlass.ids import random_id
from windlass.layout import Call, Script
from windlass.transport.endpoint import Address, Endpoint
from windlass.transport.faults import ConnectFailed, Fault, Next, WireLost, understand
from windlass.transport.server_facts import ServerFacts
from windlass.transport.wire import Connect, Exchange, Flow, Hear, Sleep, Wire, Work

T = TypeVar("T")
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session must know beside the address. `locate` gives the path of the embedded server, starting it."""

    scripts: tuple[Script, ...]
    retry_for: float = 10.0
    call_timeout: float = 10.0
    allow_eviction: bool = False
    locate: Callable[[], str] | None = None


@dataclass(slots=True)
class Lane:
    """One connection's worth of calls. In a cluster it has a wire for each node that it spoke to."""

    name: str = field(default_factory=random_id)
    number: int = 0
    wires: dict[Address, Wire] = field(default_factory=dict)
    queues: set[tuple[str, ...]] = field(default_factory=set)

    def drop(self, address: Address | None = None) -> None:
        """Close the wires: a reply that is still to come must never be read as the answer to another call."""
        for each in [address] if address else list(self.wires):
            wire = self.wires.pop(each, None)
            if wire is not None:
                wire.abort()


@dataclass(slots=True)
class Listener:
    """A connection on which a waiter hears that there is work."""

    name: str
    address: Address
    wire: Wire


class Session:
    """All connections of one program (of one event loop) to one server, cluster or Sentinel group."""

    def __init__(self, endpoint: Endpoint, options: SessionOptions) -> None:
        self.endpoint = endpoint
        self.options = options
        self.lanes: list[Lane] = []
        self._idle: deque[Lane] = deque()
        self._listeners: deque[Listener] = deque()
        self._seeds: list[Address] = list(endpoint.addresses)
        self._routes: dict[int, Address] = {}
        self._primary: Address | None = None
        self._cluster = False

    # -- calls -----------------------------------------------------------------------------------

    def perform(self, call: Call[T], retry_for: float | None = None) -> Flow[T]:
        """Send a call until it is answered, refused, or time is up."""
        patience = self.options.retry_for if retry_for is None else retry_for
        lane = self._take_lane()
        try:
            if call.writes:
                lane.number += 1
                lane.queues.add(call.keys)
            reply = yield from self._persist(lane, call, self._command(lane, call), patience)
            return call.read(reply)
        except errors.WindlassError:
            raise
        except BaseException:  # cancelled, interrupted, or a bug: the reply may still be on its way
            lane.drop()
            raise
        finally:
            self._idle.append(lane)

    def _take_lane(self) -> Lane:
        try:
            return self._idle.pop()
        except IndexError:
            lane = Lane()
            self.lanes.append(lane)
            return lane

    def _command(self, lane: Lane, call: Call[Any]) -> bytes:
        operation = (lane.name, lane.number) if call.writes else ()
        return _pack("EVALSHA", call.script.sha, len(call.keys), *call.keys, *operation, *call.args)

    def _persist(self, lane: Lane, call: Call[Any], command: bytes, patience: float) -> Flow[Any]:
        deadline = monotonic() + patience
        wait = _FIRST_WAIT
        may_have_happened = False
        asked: Address | None = None
        redirections = 0
        while True:
            address: Address | None = None
            try:
                address = asked or self._known_address(call.keys) or (yield from self._find_address())
                wire = lane.wires.get(address) or (yield from self._open(lane, address))
                if asked:
                    _, reply = yield Exchange(wire, _pack("ASKING") + command, 2)
                else:
                    (reply,) = yield Exchange(wire, command)
            except ConnectFailed as error:
                if address:
                    lane.drop(address)
                self._forget(address)
                problem: Exception = errors.ServerUnreachable(
                    f"{call.about}: no connection to {address or self.endpoint} ({error}); nothing was sent"
                )
            except WireLost as error:
                if address:
                    lane.drop(address)
                self._forget(address)
                may_have_happened = call.writes
                problem = errors.ServerUnreachable(
                    f"{call.about}: the connection to {address or self.endpoint} was lost ({error})"
                )
            else:
                if not isinstance(reply, RedisError):
                    return reply
                fault = understand(_text(reply))
                problem = fault.error(f"{call.about}: the server at {address} said “{_text(reply)}”; {fault.remedy}")
                asked = None
                match fault.next:
                    case Next.GIVE_UP:
                        self._raise(problem, call, may_have_happened)
                    case Next.LOAD_SCRIPTS:
                        yield from self._load_scripts(wire, self.options.scripts)
                        redirections += 1
                        if redirections < 10:
                            continue
                    case Next.MOVE | Next.ASK:
                        asked = self._redirect(reply, fault, address)
                        redirections += 1
                        if redirections < 10:
                            continue
                    case Next.TRY_AGAIN:
                        self._forget(address)
                        if self._primary is None and self.endpoint.kind == "sentinel":
                            lane.drop(address)
            redirections = 0
            asked = None
            if monotonic() + wait > deadline:
                self._raise(problem, call, may_have_happened)
            yield Sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _LONGEST_WAIT)

    def _raise(self, problem: Exception, call: Call[Any], may_have_happened: bool) -> NoReturn:
        if may_have_happened:
            raise errors.OutcomeUnknown(
                f"{call.about}: an earlier try was sent and its reply was lost, so it may have been applied; "
                f"look, or repeat it with the same id. Last seen: {problem}"
            ) from problem
        raise problem

    # -- where the queue is ----------------------------------------------------------------------

    def _known_address(self, keys: tuple[str, ...]) -> Address | None:
        return self._routes.get(key_slot(keys[0].encode())) if self._cluster else self._primary

    def _find_address(self) -> Flow[Address]:
        if self._cluster:
            return random.choice(self._seeds)  # whoever it is will redirect us
        self._primary = yield from self._find_primary()
        return self._primary

    def _find_primary(self) -> Flow[Address]:
        if self.endpoint.kind == "sentinel":
            return (yield from self._ask_sentinels())
        if self.endpoint.kind == "embedded" and self.options.locate:
            return Address(path=(yield Work(self.options.locate)))
        return random.choice(self._seeds)

    def _ask_sentinels(self) -> Flow[Address]:
        problem = "none of them knows it"
        for sentinel in random.sample(self.endpoint.addresses, len(self.endpoint.addresses)):
            try:
                wire = yield Connect(sentinel, sentinel=True)
                if isinstance(wire, RedisError):
                    problem = _text(wire)
                    continue
                (reply,) = yield Exchange(wire, _pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.endpoint.service))
                wire.abort()
            except (ConnectFailed, WireLost) as error:
                problem = str(error)
                continue
            if isinstance(reply, list):
                return Address(reply[0].decode(), int(reply[1]))
        raise ConnectFailed(f"no Sentinel names a primary for {self.endpoint.service!r}: {problem}")

    def _redirect(self, reply: RedisError, fault: Fault, sender: Address) -> Address | None:
        """Follow the cluster: a moved slot for good, an asked one for this call only."""
        assert isinstance(reply, AskError)
        address = Address(reply.host or sender.host, reply.port)  # no host: on the one that answered
        if fault.next is Next.ASK and not isinstance(reply, MovedError):
            return address
        self._cluster = True
        self._routes[reply.slot_id] = address
        return None

    def _forget(self, address: Address | None) -> None:
        """Something is wrong there: look anew for the primary, or for the node that has the slot."""
        self._primary = None
        self._routes = {slot: node for slot, node in self._routes.items() if node != address}

    # -- connections -----------------------------------------------------------------------------

    def _open(self, lane: Lane, address: Address) -> Flow[Wire]:
        wire = yield from self._connect(address)
        lane.wires[address] = wire
        return wire

    def _connect(self, address: Address) -> Flow[Wire]:
        """A connection to a server that is fit for a queue, with all scripts loaded."""
        wire: Wire | RedisError = yield Connect(address)
        if isinstance(wire, RedisError):
            self._refuse(address, wire)
        try:
            shas = [script.sha for script in self.options.scripts]
            info, known = yield Exchange(wire, _pack("INFO") + _pack("SCRIPT", "EXISTS", *shas), 2)
            for reply in (info, known):
                if isinstance(reply, RedisError):
                    self._refuse(address, reply)
            facts = ServerFacts.read(info)
            facts.check(str(address), allow_eviction=self.options.allow_eviction)
            missing = tuple(s for s, there in zip(self.options.scripts, known, strict=True) if not there)
            yield from self._load_scripts(wire, missing)
            if self.endpoint.kind == "sentinel" and not facts.primary:
                raise ConnectFailed("it is a replica by now")
            if facts.cluster:
                yield from self._learn_cluster(wire, address)
        except WireLost as error:
            wire.abort()
            raise ConnectFailed(str(error)) from None
        except BaseException:
            wire.abort()
            raise
        return wire

    def _refuse(self, address: Address, reply: RedisError) -> NoReturn:
        fault = understand(_text(reply))
        if fault.next is Next.TRY_AGAIN:
            raise ConnectFailed(_text(reply))
        raise fault.error(f"the server at {address} said “{_text(reply)}”; {fault.remedy}")

    def _load_scripts(self, wire: Wire, scripts: tuple[Script, ...]) -> Flow[None]:
        if scripts:
            packed = b"".join(_pack("SCRIPT", "LOAD", script.text) for script in scripts)
            for reply in (yield Exchange(wire, packed, len(scripts))):
                if isinstance(reply, RedisError):
                    fault = understand(_text(reply))
                    raise fault.error(f"the server refused to load a script: “{_text(reply)}”; {fault.remedy}")

    def _learn_cluster(self, wire: Wire, address: Address) -> Flow[None]:
        (slots,) = yield Exchange(wire, _pack("CLUSTER", "SLOTS"))
        self._cluster = True
        if isinstance(slots, RedisError):
            return
        routes: dict[int, Address] = {}
        for first, last, primary, *_ in slots:
            node = Address(primary[0].decode() or address.host, primary[1])
            routes.update(dict.fromkeys(range(first, last + 1), node))
        self._routes = routes
        self._seeds = sorted({*routes.values(), *self.endpoint.addresses}, key=str)

    # -- waiting for work ------------------------------------------------------------------------

    def listen(self, keys: tuple[str, ...], channel: Callable[[str], str]) -> Flow[Listener]:
        """A listener on the server that has this queue; announcements on its channel reach it."""
        address = self._known_address(keys) or (yield from self._find_address())
        for _ in range(len(self._listeners)):
            listener = self._listeners.popleft()
            if listener.address == address:
                return listener
            self._listeners.append(listener)
        wire = yield from self._connect(address)
        name = random_id()
        try:
            (reply,) = yield Exchange(wire, _pack("SUBSCRIBE", channel(name)))
        except BaseException:
            wire.abort()
            raise
        if isinstance(reply, RedisError):
            wire.abort()
            self._refuse(address, reply)
        return Listener(name, address, wire)

    def hear(self, listener: Listener, seconds: float) -> Flow[bool]:
        """Wait for a wake-up, this long at most."""
        heard: bool = yield Hear(listener.wire, seconds)
        return heard

    def keep_listener(self, listener: Listener) -> None:
        """Put a listener back for the next one who waits."""
        self._listeners.append(listener)

    # -- the end ---------------------------------------------------------------------------------

    def farewells(self) -> dict[tuple[str, ...], list[str]]:
        """For each queue that was written to: the lanes that did it."""
        spoken: dict[tuple[str, ...], list[str]] = {}
        for lane in self.lanes:
            for keys in lane.queues:
                spoken.setdefault(keys, []).append(lane.name)
        return spoken

    def adopt(self, ended: Session) -> None:
        """Take over the lanes of a session whose event loop has ended: their names live on, their wires do not."""
        lanes = list(ended.lanes)
        ended.drop()
        self.lanes += lanes
        self._idle.extend(lanes)

    def drop(self) -> None:
        """Close every connection at once."""
        for lane in self.lanes:
            lane.drop()
        while self._listeners:
            self._listeners.pop().wire.abort()
        self.lanes.clear()
        self._idle.clear()


def _pack(*words: bytes | str | int) -> bytes:
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub wants a tuple of one
    return packed


def _text(error: RedisError) -> str:
    """The error as the server wrote it, with the code that the client library takes off."""
    code = getattr(error, "status_code", None) or ""
    return f"{code} {error}" if code and not str(error).startswith(code) else str(error)
