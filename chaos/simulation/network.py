"""The fate of each request and of its reply: it arrives, is lost, or arrives long after the caller gave up.

A connection breaks at the first loss, as with TCP: the client never sees a gap, only the end. A request may arrive
after its sender has given up and repeated it on another connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos.simulation.commands import unpack
from chaos.simulation.engine import Engine
from chaos.simulation.world import SECOND, Program, Task, World
from windlass.transport.errors import ConnectFailed, WireLost
from windlass.transport.io_steps import AwaitMessage, Connect, Exchange


@dataclass
class Weather:
    """The quality of the network: probabilities per request, and latency in seconds."""

    lose_request: float = 0.0
    lose_reply: float = 0.0
    delay: float = 0.0
    lose_message: float = 0.0
    refuse: float = 0.0
    shortest: float = 0.000_05
    longest: float = 0.002


class SimulatedWire:
    """One connection of a program to the server."""

    def __init__(self, network: Network, program: Program) -> None:
        self._network = network
        self.program = program
        self.server_life = network.server_life
        self.open = True
        self.channels: list[str] = []
        self.messages: deque[list[Any]] = deque()
        self.hearer: tuple[Task, int] | None = None
        program.wires.append(self)

    def abort(self) -> None:
        if self.open:
            self.open = False
            self.program.wires.remove(self)
            self._network.closed(self)


class Network:
    """The network between the programs and the server."""

    def __init__(
        self, world: World, engine: Engine, timeout: float, serve: Callable[[list[list[bytes]], bytes, int], list[Any]]
    ) -> None:
        self._world = world
        self._engine = engine
        self._timeout = timeout
        self._serve = serve
        self.weather = Weather()
        self.server_life = 0
        self.down_until = 0
        self.stalled_until = 0
        self._listening: dict[str, list[SimulatedWire]] = {}

    # -- steps -----------------------------------------------------------------------------------

    def perform(self, task: Task, step: Any) -> None:
        """Answer a step, now or later."""
        match step:
            case Connect():
                self._connect(task)
            case Exchange():
                self._exchange(task, step)
            case AwaitMessage():
                self._hear(task, step)
            case _:
                raise AssertionError(f"the simulation does not support the step {step}")

    def _latency(self) -> float:
        return self._world.chance.uniform(self.weather.shortest, self.weather.longest)

    def _answer(self, task: Task, seconds: float, value: Any = None, error: BaseException | None = None) -> None:
        turn = task.turn
        self._world.after(seconds, lambda: self._world.resume(task, turn, value, error))

    def _connect(self, task: Task) -> None:
        world, program = self._world, task.program
        if program.cut_until > world.now:
            self._answer(task, self._timeout, error=ConnectFailed("no answer"))
        elif self.down_until > world.now or world.chance.random() < self.weather.refuse:
            self._answer(task, self._latency(), error=ConnectFailed("connection refused"))
        else:
            self._answer(task, self._latency(), SimulatedWire(self, program))

    def _exchange(self, task: Task, step: Exchange) -> None:
        wire, world = step.wire, self._world
        assert isinstance(wire, SimulatedWire)
        if not wire.open:
            self._answer(task, 0, error=ConnectFailed("the connection was closed before anything was sent"))
            return
        if wire.server_life != self.server_life:
            self._answer(task, self._latency(), error=WireLost("connection reset"))
            return
        turn, life = task.turn, self.server_life
        arrives, answered = self._fate(task.program)
        if arrives is not None:
            reply_to = (task, turn) if answered else None
            world.after(arrives, lambda: self._arrive(wire, life, step, reply_to))
        # A broken connection may be seen at once; a silent one is given up at the timeout.
        broken = (arrives is None or not answered) and task.program.cut_until <= world.now
        patience = world.chance.uniform(0, self._timeout) if broken else self._timeout
        world.after(patience, lambda: world.resume(task, turn, error=WireLost("no answer")))

    def _fate(self, program: Program) -> tuple[float | None, bool]:
        """Seconds until a request arrives (None: never), and whether it is answered."""
        weather, chance = self.weather, self._world.chance
        roll = chance.random()
        cut = program.cut_until - self._world.now
        if cut > 0:  # lost, or resent when packets pass again
            return (cut / SECOND + self._latency() if roll < 0.5 else None), True
        if (roll := roll - weather.lose_request) < 0:
            return None, False
        if (roll := roll - weather.lose_reply) < 0:
            return self._latency(), False
        if roll < weather.delay:
            return chance.random() ** 2 * 12 * self._timeout, True
        return self._latency(), True

    def _arrive(self, wire: SimulatedWire, life: int, step: Exchange, reply_to: tuple[Task, int] | None) -> None:
        world = self._world
        if self.server_life != life or self.down_until > world.now:
            return  # the addressed server process has ended
        if self.stalled_until > world.now:
            world.at(self.stalled_until, lambda: self._arrive(wire, life, step, reply_to))
            return
        commands = unpack(step.packed)
        if commands[0][0] == b"SUBSCRIBE":
            replies: list[Any] = self._subscribe(wire, [name.decode() for name in commands[0][1:]])
        else:
            replies = self._serve(commands, step.packed, step.replies)
            self._publish()
        if reply_to is None:
            return
        task, turn = reply_to

        def event() -> None:
            if task.program.cut_until <= world.now and self.server_life == life:
                world.resume(task, turn, replies)

        world.after(self._latency(), event)

    # -- messages --------------------------------------------------------------------------------

    def _subscribe(self, wire: SimulatedWire, channels: list[str]) -> list[Any]:
        if not wire.open:
            return []
        for channel in channels:
            wire.channels.append(channel)
            self._listening.setdefault(channel, []).append(wire)
            self._engine.subscribe(channel)
        return [[b"subscribe", channel.encode(), 1] for channel in channels]

    def closed(self, wire: SimulatedWire) -> None:
        """A program has closed a connection; the server sees it soon, or much later during a cut."""
        channels = wire.channels
        if channels and wire.server_life == self.server_life:
            late = wire.program.cut_until > self._world.now
            self._world.after(60 if late else self._latency(), lambda: self._forget(wire, channels))

    def _forget(self, wire: SimulatedWire, channels: list[str]) -> None:
        if wire.server_life != self.server_life:
            return
        for channel in channels:
            self._listening[channel].remove(wire)
            self._engine.unsubscribe(channel)

    def _publish(self) -> None:
        for message in self._engine.published():
            for wire in self._listening.get(message[1].decode(), ()):
                if self._world.chance.random() >= self.weather.lose_message:
                    self._world.after(self._latency(), lambda wire=wire, message=message: self._tell(wire, message))  # type: ignore[misc]

    def _tell(self, wire: SimulatedWire, message: list[Any]) -> None:
        if not wire.open or wire.program.cut_until > self._world.now:
            return
        wire.messages.append(message)
        if wire.hearer is not None:
            task, turn = wire.hearer
            wire.hearer = None
            if task.turn == turn and not task.done:
                self._world.resume(task, turn, wire.messages.popleft())

    def _hear(self, task: Task, step: AwaitMessage) -> None:
        wire = step.wire
        assert isinstance(wire, SimulatedWire)
        if wire.messages:
            self._answer(task, 0, wire.messages.popleft())
        elif wire.server_life != self.server_life:
            self._answer(task, self._latency(), error=WireLost("connection reset"))
        else:
            wire.hearer = (task, task.turn)
            self._answer(task, max(0.0, step.seconds))

    # -- the server ------------------------------------------------------------------------------

    def server_died(self, seconds: float) -> None:
        """Break every connection, and accept none for `seconds` seconds."""
        self.server_life += 1
        self.down_until = self._world.now + int(seconds * SECOND)
        self._listening.clear()
