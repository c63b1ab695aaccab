"""The faults of a simulation, and their schedule.

Each seed has its own mix of faults: a run in which everything fails at once hides as many bugs as it shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from chaos.simulation.network import Weather
from chaos.simulation.world import SECOND, Life, Program
from windlass.transport.io_steps import pack

if TYPE_CHECKING:
    from chaos.simulation.run import Run

JUMPS = (12.0, 60.0, 3600.0, 86400.0)  # seconds at most, ahead or back
STORM = Weather(lose_request=0.2, lose_reply=0.2, delay=0.2, lose_message=0.5, refuse=0.2)

# The kinds of faults, and the weight of each in a seed that has it.
KINDS = {
    "cut": 3.0,
    "hold": 3.0,
    "crash": 3.0,
    "leave": 1.0,
    "sleep": 1.0,
    "flush": 1.0,
    "stall": 1.0,
    "storm": 2.0,
    "kill": 0.2,
    "tear": 0.2,
    "jump": 1.0,
}


@dataclass(frozen=True)
class Mix:
    """The faults of one seed."""

    kinds: tuple[str, ...]
    every: float  # mean seconds between two faults
    weather: Weather

    @classmethod
    def choose(cls, chance: Random) -> Mix:
        """A mix for this seed: some kinds of faults, and some network problems."""
        kinds = tuple(kind for kind in KINDS if chance.random() < 0.5)
        if "sleep" in kinds and "jump" in kinds:
            # A machine that slept does not know for how long, so sleep and clock jumps cannot be told apart.
            spared = chance.choice(["sleep", "jump"])
            kinds = tuple(kind for kind in kinds if kind != spared)
        loss = chance.choice([0.0, 0.002, 0.02, 0.1])
        weather = Weather(
            lose_request=loss * chance.random(),
            lose_reply=loss * chance.random(),
            delay=loss * chance.random(),
            lose_message=chance.choice([0.0, 0.1, 1.0]),
            refuse=loss * chance.random(),
            longest=chance.choice([0.000_3, 0.002, 0.05]),
        )
        return cls(kinds, chance.choice([2.0, 6.0, 20.0]), weather)


class Nemesis:
    """Injects the faults of a run, one after another."""

    def __init__(self, run: Run, mix: Mix) -> None:
        self._run = run
        self._world = run.world
        self._chance = run.world.chance
        self._mix = mix
        self.done: dict[str, int] = {}

    def plan(self) -> None:
        """Schedule the next fault; never in a seed with only network problems."""
        if self._mix.kinds:
            self._world.after(self._chance.expovariate(1 / self._mix.every), self._strike)

    def _strike(self) -> None:
        if self._run.stage.draining:
            return
        kind = self._chance.choices(self._mix.kinds, [KINDS[kind] for kind in self._mix.kinds])[0]
        self.done[kind] = self.done.get(kind, 0) + 1
        getattr(self, f"_{kind}")()
        self.plan()

    def _note(self, what: str) -> None:
        self._world.note("nemesis", what)

    def _some_time(self) -> float:
        """Seconds: often short, sometimes longer than any lease."""
        return self._chance.choice([0.3, 2.0, 8.0, 25.0]) * self._chance.uniform(0.5, 1.5)

    def _somebody(self) -> Program | None:
        """A live program, if any."""
        return self._chance.choice(list(self._run.generation)) if self._run.generation else None

    # -- programs and machines ---------------------------------------------------------------------

    def _cut(self) -> None:
        """Cut off a program; its requests may arrive when the cut is over."""
        if program := self._somebody():
            seconds = self._some_time()
            program.cut_until = self._world.now + int(seconds * SECOND)
            self._note(f"cuts {program.name} off for {seconds:.3f} s")
            self._run.tell_checker("partition", [program], seconds)

    def _hold(self) -> None:
        """Freeze a program while time passes."""
        if program := self._somebody():
            seconds = self._some_time()
            program.held_until = max(program.held_until, self._world.now + int(seconds * SECOND))
            self._note(f"holds {program.name} for {seconds:.3f} s")
            self._run.tell_checker("stop", [program], seconds)

    def _crash(self) -> None:
        """Kill a program; another takes its place, with connections of its own."""
        if program := self._somebody():
            seconds = self._some_time()
            self._note(f"kills {program.name}, back in {seconds:.3f} s")
            self._run.tell_checker("kill", [program])
            self._run.replace(program, seconds)
            self._world.kill(program)

    def _leave(self) -> None:
        """Stop a program: it drops its work, deregisters, and exits."""
        program = self._somebody()
        if program is None:
            return
        seconds = self._some_time()
        self._note(f"stops {program.name}, back in {seconds:.3f} s")
        actor = self._run.replace(program, seconds)
        self._world.stop(program)

        def last_words() -> Life:
            yield from actor.leave()
            self._world.after(0, lambda: self._run.bury(program))

        self._world.spawn(program, last_words())

    def _sleep(self) -> None:
        """Suspend a machine: its clock and its programs freeze."""
        machine, seconds = self._chance.choice(self._run.machines), self._some_time()
        if machine.asleep_until > self._world.now:
            return
        machine.asleep_until = self._world.now + int(seconds * SECOND)
        machine.slept_ns += int(seconds * SECOND)
        self._note(f"suspends {machine.name} for {seconds:.3f} s")
        asleep = [program for program in self._run.generation if program.machine is machine]
        for program in asleep:
            program.held_until = max(program.held_until, machine.asleep_until)
        self._run.tell_checker("stop", asleep, seconds)

    # -- the network -------------------------------------------------------------------------------

    def _storm(self) -> None:
        """For a while most packets are lost or late."""
        seconds = self._some_time()
        self._run.network.weather = replace(STORM, longest=self._chance.choice([0.01, 1.0]))
        self._note(f"a storm of {seconds:.3f} s")

        def over() -> None:
            self._run.network.weather = Weather() if self._run.stage.draining else self._mix.weather

        self._world.after(seconds, over)

    # -- the server --------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._note("flushes the scripts")
        self._run.engine.call(pack("SCRIPT", "FLUSH", "SYNC"), 1)

    def _stall(self) -> None:
        """Freeze the server; it executes queued requests afterwards, all at once."""
        seconds = self._some_time()
        self._run.network.stalled_until = self._world.now + int(seconds * SECOND)
        self._note(f"stalls the server for {seconds:.3f} s")
        self._run.tell_checker("stop server", None, seconds)

    def _jump(self) -> None:
        seconds = self._chance.choice(JUMPS) * self._chance.choice([-1, 1]) * self._chance.uniform(0.5, 1)
        self._run.move_clock(int(seconds * SECOND))

    def _kill(self) -> None:
        seconds = self._chance.choice([0.01, 1.0, 6.0])
        self._note(f"kills the server, back in {seconds:g} s")
        self._run.engine.kill()
        self._run.restart(seconds)
        self._run.look()

    def _tear(self) -> None:
        """Arrange a power failure during the server's next write."""
        self._run.tearing = True
