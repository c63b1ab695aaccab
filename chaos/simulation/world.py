"""Virtual time, the machines, and the programs that run on them.

Everything is an event with a time on one list; the earliest event is next, and ties run in the order of planning. A
program's task is a generator: it is resumed with the answer to its last step, while its program is alive and not
frozen.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from chaos.simulation.history import History
from windlass.transport.io_steps import Sleep

if TYPE_CHECKING:
    from chaos.simulation.network import Network, SimulatedWire

SECOND = 1_000_000_000
BASE_NS = 1_800_000_000 * SECOND  # when every simulation begins, in ns since 1970

Life = Generator[Any, Any, Any]


class Interrupted(Exception):
    """Thrown into a task whose caller stops waiting, like a cancelled coroutine."""


@dataclass
class Machine:
    """A machine. Its clock only runs forward, and freezes while the machine sleeps."""

    name: str
    booted_ns: int
    slept_ns: int = 0
    asleep_until: int = 0


@dataclass(eq=False)
class Program:
    """One process: it has a name, runs on a machine, and may die, be cut off or be frozen."""

    name: str
    machine: Machine
    alive: bool = True
    held_until: int = 0
    cut_until: int = 0
    tasks: list[Task] = field(default_factory=list)
    wires: list[SimulatedWire] = field(default_factory=list)


class Task:
    """One flow of a program."""

    def __init__(self, program: Program, life: Life) -> None:
        self.program = program
        self.life = life
        self.turn = 0  # counts resumptions, to drop answers to earlier steps
        self.done = False
        self.mark: object = None  # while it may be interrupted


class World:
    """The list of events, and the current program."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.history = History()
        self.now = 0
        self.current = Program("nobody", Machine("nowhere", 0))
        self.task: Task
        self.network: Network
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    # -- time ------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """The clock of the current program's machine."""
        machine = self.current.machine
        return (machine.booted_ns + self.now - machine.slept_ns) / SECOND

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Schedule an event in `seconds` seconds."""
        self.at(self.now + int(seconds * SECOND), event)

    def at(self, ns: int, event: Callable[[], None]) -> None:
        """Schedule an event at this time."""
        heapq.heappush(self._events, (ns, next(self._numbers), event))

    def run(self, until: Callable[[], bool]) -> None:
        """Process events, one by one, until the condition holds."""
        while self._events and not until():
            self.now, _, event = heapq.heappop(self._events)
            event()

    def note(self, who: str, what: str) -> None:
        """Add a line to the history."""
        self.history.note(self.now, who, what)

    # -- tasks -----------------------------------------------------------------------------------

    def spawn(self, program: Program, life: Life) -> Task:
        """Start a task."""
        task = Task(program, life)
        program.tasks.append(task)
        self.at(self.now, lambda: self.resume(task, 0))
        return task

    def resume(self, task: Task, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        """Resume a task, if it still waits for this answer."""
        program = task.program
        if task.done or task.turn != turn or not program.alive:
            return
        if program.held_until > self.now:
            self.at(program.held_until, lambda: self.resume(task, turn, value, error))
            return
        self.current, self.task = program, task
        task.turn += 1
        try:
            step = task.life.send(value) if error is None else task.life.throw(error)
        except StopIteration:
            task.done = True
            program.tasks.remove(task)
            return
        if isinstance(step, Sleep):
            self.after(step.seconds, lambda turn=task.turn: self.resume(task, turn))  # type: ignore[misc]
        else:
            self.network.perform(task, step)

    @contextmanager
    def interrupted(self, seconds: float | None) -> Iterator[None]:
        """Interrupt the current task's block if it takes longer than `seconds`."""
        task, mark = self.task, object()
        task.mark = mark

        def event() -> None:
            if task.mark is mark:
                self.resume(task, task.turn, error=Interrupted())

        if seconds is not None:
            self.after(seconds, event)
        try:
            yield
        finally:
            task.mark = None

    def kill(self, program: Program) -> None:
        """Kill a program at once. Its sent requests may still arrive."""
        self.stop(program)
        program.alive = False
        for wire in list(program.wires):
            wire.abort()

    def stop(self, program: Program) -> None:
        """Cancel everything that a program does."""
        self.current = program
        for task in program.tasks:
            task.done = True
            task.life.close()
        program.tasks.clear()
