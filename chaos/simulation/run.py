"""One seed: faults for a number of calls, then everything is repaired, and all work must finish."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from chaos.simulation.actors import ACTORS, Actor, Auditor, Stage
from chaos.simulation.book import Book
from chaos.simulation.commands import names_of, script_call
from chaos.simulation.engine import Engine
from chaos.simulation.faults import Mix, Nemesis
from chaos.simulation.history import History
from chaos.simulation.hooks import taken_over
from chaos.simulation.jobs import Moment
from chaos.simulation.network import Network, Weather
from chaos.simulation.notes import Notes, noted
from chaos.simulation.truth import Truth
from chaos.simulation.violation import Violation
from chaos.simulation.world import BASE_NS, SECOND, Machine, Program, World
from windlass.storage.native import scripts
from windlass.storage.port import Script
from windlass.transport.session import SessionOptions

TIMEOUT_S = 3.0  # seconds that a client waits for a reply
RETRY_FOR_S = 10.0
INSPECT_EVERY = 500  # calls between two inspections of the whole queue
LAST_ANSWERS_S = 4  # virtual seconds for the last answers to arrive
DRAIN_TIMEOUT_S = 1800.0  # virtual seconds in which all work must end once all faults have ended


@dataclass
class Report:
    """The result of a run."""

    seed: int
    digest: str
    calls: int
    steps: int
    virtual: float  # seconds
    real: float
    faults: dict[str, int]
    counts: dict[str, int]
    history: History = field(repr=False)
    violation: Violation | None = None

    @property
    def line(self) -> str:
        """The result in one line."""
        faults = " ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items())) or "network only"
        what = str(self.violation) if self.violation else "ok"
        return (
            f"seed {self.seed} digest {self.digest} calls {self.calls} virtual {self.virtual:.0f} s "
            f"real {self.real:.2f} s [{faults}] {what}"
        )


def simulate(
    seed: int, steps: int = 2000, workers: int = 5, *, binary: Path | None = None, log: Path | None = None
) -> Report:
    """Run one seed. With a `log` folder the programs use only actions that the event log can express, and write it."""
    began = perf_counter()
    world = World(seed)
    notes = Notes(world, log) if log else None
    with Engine(binary) as engine, taken_over(world), noted(world, notes):
        run = Run(world, engine, steps, workers, notes)
        violation: Violation | None = None
        try:
            run.run()
        except Violation as found:
            violation = found
            world.note("checker", str(found))
        return Report(
            seed,
            world.history.digest,
            engine.calls,
            sum(book.step for book in run.books.values()),
            world.now / SECOND,
            perf_counter() - began,
            run.nemesis.done,
            run.counts(),
            world.history,
            violation,
        )


class Run:
    """All parts of one run."""

    def __init__(self, world: World, engine: Engine, steps: int, workers: int, notes: Notes | None = None) -> None:
        chance = world.chance
        self.world, self.engine, self.steps, self.notes = world, engine, steps, notes
        self.names = names_of(each for each in vars(scripts).values() if isinstance(each, Script))
        mix = Mix.choose(chance)
        self.network = Network(world, engine, TIMEOUT_S, self.serve)
        self.network.weather = mix.weather
        world.network = self.network
        queues = ("one", "two") if chance.random() < 0.3 else ("one",)
        self.books = {queue: Book(queue) for queue in queues}
        self.truth = Truth(self.books)
        self.jump_ns = 0
        self.most_ns = 0  # maximum by which the server's clock was ahead
        self.jumps = 0
        self.machines = [Machine(f"machine{i}", chance.randrange(10**6) * SECOND) for i in range(3)]
        self.stage = Stage(
            world,
            self.truth,
            engine.endpoint,
            SessionOptions(scripts.ALL, retry_for=RETRY_FOR_S, call_timeout=TIMEOUT_S),
            queues,
            busy=chance.choice([0.5, 3.0, 20.0]),
            lease=chance.choice([3.0, 15.0]),
            plain=notes is not None,
        )
        self.generation: dict[Program, tuple[str, Actor]] = {}
        self.incarnations: dict[str, int] = {}
        kinds = ["producer", "producer", *(chance.choice(["raw", "named"]) for _ in range(workers))]
        for number, kind in enumerate(kinds):
            self.hire(f"{kind}{number}", kind)
        self.nemesis = Nemesis(self, mix)
        self.served = 0
        self.tearing = False

    # -- the course of a run ---------------------------------------------------------------------

    def run(self) -> None:
        """Run from start to end."""
        if self.notes:
            self.notes.weather(True)
        self.nemesis.plan()
        self.world.run(lambda: self.served >= self.steps)
        self.heal()
        healed = self.world.now
        limit = healed + int(DRAIN_TIMEOUT_S * SECOND)
        self.world.run(lambda: self.is_drained or self.world.now > limit)
        if not self.is_drained:
            left = [job for book in self.books.values() for job in (*book.ready, *book.scheduled, *book.leased)]
            raise Violation("I12", f"not drained in {DRAIN_TIMEOUT_S:g} s: {left}", *left)
        self.world.note("driver", "drained")
        drained = self.world.now
        self.world.run(lambda: self.world.now > drained + LAST_ANSWERS_S * SECOND)
        for book in self.books.values():
            if self.notes:
                self.notes.left(book, (drained - healed) / SECOND)
        self.look()
        self.audit()
        self.truth.last_look()
        rewinds = sum(layout.data_losses for layout in self.stage.layouts)
        if rewinds:
            raise Violation("I12", f"the client detected {rewinds} rewinds, but there were none")

    def audit(self) -> None:
        """Run the product's own audit."""
        auditor = Auditor(self.stage, Program("auditor", self.machines[0]))
        auditor.begin()
        self.world.run(lambda: auditor.is_done)
        problems = [(part.part, part.examples) for audit in auditor.found for part in audit.damaged_parts]
        if problems:
            raise Violation("I12", f"the audit found {problems}")

    @property
    def is_drained(self) -> bool:
        """Whether all jobs have ended."""
        return not any(book.unfinished for book in self.books.values())

    def counts(self) -> dict[str, int]:
        """Counts for the report. `cut short` and `early` are maxima in ms, caused by a late queue clock."""
        books = self.books.values()
        return {
            **self.truth.counts(),
            "swept": sum(book.reaped for book in books),
            "expired": sum(book.expired for book in books),
            "repeats": sum(book.replays for book in books),
            "stale": sum(book.stale for book in books),
            "cut short": int(max(book.shortest for book in books)),
            "early": int(max(book.earliest for book in books)),
            "dead": sum(len(book.dead) for book in books),
            "broken": sum(len(book.broken) for book in books),
        }

    # -- the server ------------------------------------------------------------------------------

    def moment(self) -> Moment:
        """The current time, true and by the server's clock."""
        true_ns = BASE_NS + self.world.now
        return Moment(true_ns / 1e6, (true_ns + self.jump_ns) // 1000, self.jumps)

    def serve(self, commands: list[list[bytes]], packed: bytes, replies: int) -> list[Any]:
        """Let the server execute a request, and check its answers."""
        self.set_clock()
        before = self.engine.log_size if self.tearing else 0
        answers = self.engine.call(packed, replies)
        for command, answer in zip(commands, answers, strict=True):
            call = script_call(command, self.names)
            if call is None or _is_noscript(answer):
                continue
            self.served += 1
            if self.tearing and _is_step(answer) and not self.survives(call.queue, answer, before):
                continue
            told = self.books[call.queue].follow(call, answer, self.moment())
            self.world.note(f"server/{call.queue}", told or call.script)
            if self.served % INSPECT_EVERY == 0:
                self.look()
        return answers

    def survives(self, queue: str, answer: Any, before: int) -> bool:
        """A power failure during the write of a step: returns whether the step survived, wholly or not at all."""
        self.tearing = False
        after = self.engine.log_size
        self.engine.kill()
        end = self.world.chance.randint(before, after)
        self.engine.tear_log(end)
        self.restart(1.0)
        there: bool = self.engine.step_of(queue) == answer[0][-1]
        self.world.note("nemesis", f"tears the log {after - end} bytes before its end: {'kept' if there else 'gone'}")
        if end == after and not there:
            raise Violation("I1", "a completely logged step is lost")
        return there

    def restart(self, seconds: float) -> None:
        """Restart the server on the remaining data; the programs can reach it after `seconds` seconds."""
        self.tell_checker("kill server", None, seconds)
        self.network.server_died(seconds)
        self.set_clock()
        self.engine.start()

    def set_clock(self) -> None:
        """Set the server's clock to virtual time plus all jumps."""
        self.engine.set_clock(BASE_NS + self.world.now + self.jump_ns)

    def move_clock(self, ns: int) -> None:
        """Move the server's clock ahead or back."""
        self.jump_ns += ns
        self.most_ns = max(self.most_ns, self.jump_ns)
        self.jumps += 1
        self.world.note("nemesis", f"moves the server's clock by {ns / SECOND:.3f} s")
        self.tell_checker("server clock", None)

    def look(self) -> None:
        """Compare the server's contents with the books."""
        for queue, book in self.books.items():
            book.compare(self.engine.look(queue))

    # -- programs --------------------------------------------------------------------------------

    def hire(self, name: str, kind: str) -> None:
        """Start a program, or its successor under the same name."""
        number = self.incarnations[name] = self.incarnations.get(name, 0) + 1
        machine = self.world.chance.choice(self.machines)
        program = Program(f"{name}.{number}", machine, held_until=machine.asleep_until)
        self.world.current = program
        actor: Actor = ACTORS[kind](self.stage, program)
        self.generation[program] = (kind, actor)
        actor.begin()

    def replace(self, program: Program, seconds: float) -> Actor:
        """Start a successor of this program after `seconds` seconds."""
        kind, actor = self.generation.pop(program)
        name = program.name.rpartition(".")[0]
        self.world.after(seconds, lambda: self.hire(name, kind))
        return actor

    def bury(self, program: Program) -> None:
        """A program has exited normally."""
        self.world.kill(program)
        if self.notes:
            self.notes.ended(program, "exit 0")

    def tell_checker(self, fault: str, programs: list[Program] | None, seconds: float | None = None) -> None:
        """Log a fault on these programs, or on the server."""
        if self.notes:
            self.notes.fault(fault, programs, seconds)

    # -- the end ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults, and produce no new work."""
        self.world.note("driver", "heals everything")
        self.stage.draining = True
        if self.notes:
            self.notes.weather(False)
            self.notes.healed()
        self.network.weather = Weather()
        self.network.down_until = self.network.stalled_until = 0
        if self.jump_ns < self.most_ns:
            # A delay counts from the later clock reading. Cap it, so that the end does not take a virtual day.
            self.move_clock(self.most_ns - self.jump_ns)
        for program in self.generation:
            program.cut_until, program.held_until = 0, program.machine.asleep_until
        if not any(kind == "raw" for kind, _ in self.generation.values()):
            self.hire("raw", "raw")  # so that every queue has a worker


def _is_step(answer: Any) -> bool:
    """Whether a script may have written: then its answer begins with the clock reading."""
    return isinstance(answer, list) and bool(answer) and isinstance(answer[0], list)


def _is_noscript(answer: Any) -> bool:
    return type(answer).__name__ == "NoScriptError"
