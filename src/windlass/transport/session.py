"""Decides which bytes to send and what a reply means. A driver does the I/O.

The session's methods are generators. They yield the steps of `io_steps.py`, a driver performs each step, and sends its
result back. A *caller* sends one call at a time and has a name that outlives its connection. The server remembers the
last operation of each caller. So a call whose reply was lost is repeated on a new connection, and is applied once.

`routing.py` knows the servers, `listeners.py` keeps the connections that wait for messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from msgspec import structs
from redis.exceptions import NoScriptError, RedisError

from windlass import errors
from windlass.storage.port import Call
from windlass.transport.durability_check import confirm_commands, confirmed_level, packed
from windlass.transport.endpoint import Address, Endpoint
from windlass.transport.errors import Action, ConnectFailed, WireLost, classify
from windlass.transport.io_steps import Exchange, Flow, Wire, pack
from windlass.transport.listeners import Listener, Listeners
from windlass.transport.routing import Backoff, Routing, SessionOptions, load_scripts, text_of
from windlass.values.durability import MEMORY, Durability
from windlass.values.ids import random_id

__all__ = ["Caller", "Session", "SessionOptions"]

T = TypeVar("T")
_MAX_IMMEDIATE_RETRIES = 10  # after redirects and script loads; then each retry waits


@dataclass(slots=True, eq=False)  # comparing fields would run Python code, so deque.remove would not be atomic
class Caller:
    """Sends one call at a time under its own name. In a cluster it has one wire for each node it has used."""

    name: str = field(default_factory=random_id)
    number: int = 0
    wires: dict[Address, Wire] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)  # the first key of each queue it has written to
    unawaited: Call[Any] | None = None  # its last call, if the program stopped waiting for the reply
    may_arrive_late: bool = False  # a request got no reply: it may still arrive, and the server must recognise it then

    def drop(self, address: Address | None = None) -> None:
        """Close the wires, so that a late reply is never read as the answer to another call."""
        for each in [address] if address else list(self.wires):
            wire = self.wires.pop(each, None)
            if wire is not None:
                wire.abort()


class Session:
    """The connections of one program, or of one event loop, to one server, cluster or Sentinel group."""

    def __init__(self, endpoint: Endpoint, options: SessionOptions) -> None:
        self.endpoint = endpoint
        self.callers: list[Caller] = []
        self._idle: deque[Caller] = deque()
        self._routing = Routing(endpoint, options)
        self._listeners = Listeners(self._routing)

    @property
    def options(self) -> SessionOptions:
        """The options, which may be replaced while the session is in use."""
        return self._routing.options

    @options.setter
    def options(self, options: SessionOptions) -> None:
        self._routing.options = options

    # -- calls -----------------------------------------------------------------------------------

    def perform(self, call: Call[T], retry_for: float | None = None) -> Flow[T]:
        """Send a call; retry it until the server answers or refuses, for `retry_for` seconds at most."""
        value, _ = yield from self.perform_durably(call, None, retry_for)
        return value

    def perform_durably(
        self, call: Call[T], level: Durability | None, retry_for: float | None = None
    ) -> Flow[tuple[T, Durability]]:
        """`perform`, then wait for `level`. Returns the value and the durability reached, which may be lower."""
        retry_for = self._routing.options.retry_for if retry_for is None else retry_for
        caller = self._take_caller(call)
        try:
            if caller.unawaited:
                yield from self._undo_unawaited(caller, caller.unawaited, retry_for)
            return (yield from self._execute(caller, call, retry_for, level))
        except errors.WindlassError:
            raise
        except BaseException:  # cancelled, interrupted, or a bug: the reply may still be on its way
            caller.may_arrive_late = caller.may_arrive_late or call.writes
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
        caller.unawaited = call if call.undo else None
        try:
            retrier = _CallRetrier(self._routing, caller, call, _command(caller, call), retry_for, level)
            reply, safe = yield from retrier.until_answered()
        except errors.OutcomeUnknown:
            raise
        except errors.WindlassError:
            caller.unawaited = None  # a refusal is an answer too
            raise
        caller.unawaited = None
        return call.read(reply), safe

    def _undo_unawaited(self, caller: Caller, call: Call[Any], retry_for: float) -> Flow[None]:
        """Repeat an unawaited call under its own number to learn its result, then undo it."""
        try:
            command = _command(caller, call, repeated=True)
            reply, _ = yield from _CallRetrier(self._routing, caller, call, command, retry_for).until_answered()
            assert call.undo is not None
            undo = call.undo(call.read(reply))
            caller.unawaited = None
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
            caller.unawaited = None  # refused for good: there is nothing to undo

    def _take_caller(self, call: Call[Any]) -> Caller:
        """Take an idle caller. One with an unawaited call serves only the queue of that call.

        For that queue it comes first: the jobs that the unawaited call leased come back with the caller's next call.
        """
        idle = list(self._idle)[::-1]  # one step: another thread may take or return a caller at any time
        with_unawaited = [
            caller for caller in idle if caller.unawaited is not None and caller.unawaited.keys[0] == call.keys[0]
        ]
        for caller in (*with_unawaited, *(caller for caller in idle if caller.unawaited is None)):
            try:
                self._idle.remove(caller)
                return caller
            except ValueError:  # another thread was faster
                pass
        caller = Caller()
        self.callers.append(caller)
        return caller

    # -- servers ---------------------------------------------------------------------------------

    def is_cluster(self) -> Flow[bool]:
        """Whether the server is a cluster. Connects if there is no connection yet."""
        return self._routing.is_cluster()

    def scan(self, pattern: str) -> Flow[set[bytes]]:
        """All keys that match a pattern, on every primary."""
        return self._routing.scan(pattern)

    def examine(self, look: Callable[[Address, Wire], Flow[T]]) -> Flow[dict[Address, T | None]]:
        """Run `look` on every primary, on a new connection; see `Routing.examine`."""
        return self._routing.examine(look)

    def primaries(self) -> Flow[list[Address]]:
        """All primaries. Waits while a server is loading its data."""
        return self._routing.primaries()

    def visit(self, address: Address, look: Callable[[Address, Wire], Flow[T]]) -> Flow[T]:
        """Run `look` on one server, without retries. Raises ConnectFailed or WireLost."""
        return self._routing.visit(address, look)

    @property
    def known_primary(self) -> Address | None:
        """A server with an open connection, if there is one."""
        connected = (address for caller in list(self.callers) for address in list(caller.wires))
        return self._routing.primary or next(connected, None)

    def start_at(self, address: Address) -> None:
        """Use this server first, instead of looking for the primary."""
        self._routing.primary = address

    def server_of(self, keys: tuple[str, ...]) -> str:
        """The run id of the server process that has these keys; it changes with each restart."""
        return self._routing.server_of(keys)

    # -- messages --------------------------------------------------------------------------------

    def listen(
        self, keys: tuple[str, ...], channel: Callable[[str], str], peek: tuple[str, ...] | None = None
    ) -> Flow[Listener]:
        """Return a listener for wake-ups, on the server that has this queue; see `Listeners.listen`."""
        return self._listeners.listen(keys, channel, peek)

    def subscribe(self, keys: tuple[str, ...], channels: Sequence[str]) -> Flow[Listener]:
        """Return a new listener for these channels. The code that asked for it closes it."""
        return self._listeners.subscribe(keys, channels)

    def next_message(self, listener: Listener, seconds: float) -> Flow[tuple[str, bytes] | None]:
        """Wait up to `seconds` for a message. Returns its channel and payload, or `None`."""
        return self._listeners.next_message(listener, seconds)

    def keep_listener(self, listener: Listener) -> None:
        """Put a listener back, to be used by the next waiter."""
        self._listeners.keep(listener)

    # -- the end ---------------------------------------------------------------------------------

    def idle_callers(self, first_key: str, *, may_arrive_late: bool = False) -> list[str]:
        """Names of the idle callers that wrote to the queue with this first key.

        With `may_arrive_late`, only those with a request that may still arrive; otherwise only the others.
        """
        return [
            caller.name
            for caller in list(self._idle)
            if first_key in caller.queues and caller.may_arrive_late == may_arrive_late
        ]

    def adopt(self, ended: Session) -> None:
        """Take over the callers of a session whose event loop has ended: their names, without their wires."""
        callers = list(ended.callers)
        ended.end()
        self.callers += callers
        self._idle.extend(callers)

    def disconnect(self) -> None:
        """Close every connection and keep the callers: their next call connects again."""
        self._routing.primary = self.known_primary
        for caller in list(self.callers):
            caller.drop()
        self._listeners.drop()

    def end(self) -> None:
        """Close every connection and stop all retries: the server may have forgotten these callers."""
        self._routing.ended = True
        for caller in list(self.callers):
            caller.drop()
        self._listeners.drop()
        self.callers.clear()
        self._idle.clear()


class _CallRetrier:
    """Sends one call until it is answered."""

    __slots__ = (
        "_ask_node",
        "_backoff",
        "_call",
        "_caller",
        "_command",
        "_immediate",
        "_in_doubt",
        "_level",
        "_routing",
    )

    def __init__(
        self,
        routing: Routing,
        caller: Caller,
        call: Call[Any],
        command: bytes,
        retry_for: float,
        level: Durability | None = None,
    ) -> None:
        self._routing = routing
        self._caller = caller
        self._call = call
        self._command = command
        self._level = level
        self._backoff = Backoff(retry_for)
        self._in_doubt = False  # a reply was lost, so the call may have been applied
        self._ask_node: Address | None = None  # the node for the next try only, after ASK
        self._immediate = 0  # retries made without a pause, after a redirect or a script load

    def until_answered(self) -> Flow[tuple[Any, Durability]]:
        """Send until there is a reply. Once a reply was lost, a later failure raises `OutcomeUnknown`."""
        routing, caller, call, level = self._routing, self._caller, self._call, self._level
        while True:
            address: Address | None = None
            ask_node = self._ask_node
            try:
                address = ask_node or routing.known_address(call.keys) or (yield from routing.find_address())
                wire = caller.wires.get(address)
                if wire is None:
                    wire = caller.wires[address] = yield from routing.connect(address)
                facts = routing.facts[address]
                confirm = confirm_commands(level, facts, _wait_ms(routing.options)) if level is not None else []
                replies = yield _exchange(wire, self._command, confirm, call.meanwhile, asking=ask_node is not None)
                reply, *confirmations = replies if ask_node is None else replies[1:]
                safe = confirmed_level(level, facts, confirmations) if not isinstance(reply, RedisError) else MEMORY
                if isinstance(reply, NoScriptError):
                    yield from load_scripts(wire, (call.script,))
            except ConnectFailed as error:
                problem = self._not_connected(address, error)
            except WireLost as error:
                problem = self._reply_lost(address, error)
            except errors.NotApplied as error:
                self._give_up(error)
            else:
                if not isinstance(reply, RedisError):
                    return reply, safe
                problem, again = self._refused(address, reply)
                if again:
                    continue
            self._immediate = 0
            if routing.ended or self._backoff.is_over:
                self._give_up(problem)
            yield self._backoff.pause()

    def _not_connected(self, address: Address | None, error: ConnectFailed) -> errors.WindlassError:
        self._drop_connection(address)
        return error.reason or errors.ServerUnreachable(
            f"no connection to {address or self._routing.endpoint} ({error}); nothing was sent ({self._call.about}). "
            "Is the server running, and is the URL right?"
        )

    def _reply_lost(self, address: Address | None, error: WireLost) -> errors.WindlassError:
        """The request was sent, and the server may have applied it."""
        self._drop_connection(address)
        caller, call = self._caller, self._call
        caller.may_arrive_late = caller.may_arrive_late or call.writes
        self._in_doubt = self._in_doubt or call.writes
        if call.when_repeated or call.when_in_order:
            self._command = _command(caller, call, repeated=True)
        return errors.ServerUnreachable(
            f"{call.about}: the connection to {address or self._routing.endpoint} was lost ({error})"
        )

    def _refused(self, address: Address, reply: RedisError) -> tuple[errors.WindlassError, bool]:
        """The server answered with an error. Returns the problem, and whether to try again without a pause."""
        text = text_of(reply)
        fault = classify(text)
        problem = fault.error(f"{self._call.about}: the server at {address} answered “{text}”; {fault.remedy}")
        if fault.action is Action.GIVE_UP:
            self._give_up(problem)
        self._ask_node = self._routing.redirect(reply, fault, address)
        if fault.action is Action.TRY_AGAIN:
            if self._routing.endpoint.kind == "sentinel":
                self._caller.drop(address)
            self._routing.forget(address)
            return problem, False
        self._immediate += 1
        return problem, self._immediate <= _MAX_IMMEDIATE_RETRIES

    def _drop_connection(self, address: Address | None) -> None:
        """Close the caller's connection to a server, and forget its routes."""
        if address is not None:
            self._caller.drop(address)
        self._routing.forget(address)
        self._ask_node = None

    def _give_up(self, problem: Exception) -> NoReturn:
        if self._in_doubt:
            raise errors.OutcomeUnknown(
                f"{self._call.about}: the request was sent and its reply was lost, so it may have been applied or not. "
                "Look up the job, or repeat the call: with the same id or lease that is safe. The last try failed "
                f"with: {problem}"
            ) from problem
        raise problem


def _command(caller: Caller, call: Call[Any], *, repeated: bool = False) -> bytes:
    operation = (call.operation or (caller.name, caller.number)) if call.writes else ()
    more = call.when_repeated if repeated else ()
    if not caller.may_arrive_late:
        more += call.when_in_order
    return pack("EVALSHA", call.script.sha, len(call.keys), *call.keys, *operation, *call.args, *more)


def _exchange(
    wire: Wire, command: bytes, confirm: list[tuple[str, ...]], meanwhile: Callable[[], object] | None, *, asking: bool
) -> Exchange:
    """A command, followed by those that confirm it. `asking`: this node is about to get the slot."""
    if not confirm and not asking:
        return Exchange(wire, command, 1, meanwhile)
    before = pack("ASKING") if asking else b""
    return Exchange(wire, before + command + packed(confirm), asking + 1 + len(confirm), meanwhile)


def _wait_ms(options: SessionOptions) -> int:
    """How long the server may wait for its disk, and again for its replicas: in all less than `call_timeout`."""
    return max(1, int(options.call_timeout * 400))
