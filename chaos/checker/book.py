"""What the checker knows of one queue while it goes through its steps.

The families of invariants are functions over this: enqueues.py, claims.py, settles.py, reaps.py, runs.py, rewinds.py,
ending.py.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from typing import NamedTuple

from chaos.checker.evidence import Evidence
from chaos.checker.index import Unheard
from chaos.checker.ledger import (
    ACKNOWLEDGED,
    ALIVE,
    BROKEN,
    CANCELLED,
    COMPLETED,
    DEAD,
    NO_LIMIT,
    NO_PLACE,
    UNHEARD,
    WAITING,
    WHERE,
    Columns,
    Ledger,
    Terms,
)
from chaos.checker.line import Line
from chaos.checker.lives import Holder, Lease, Life
from chaos.checker.report import Findings
from chaos.log import Finished, Rewound, SettleAsked, Started

SLACK = 5_000_000  # ns by which two clocks of one machine may differ
JUMPED_SLACK = 100_000_000  # the same where the server's clock was set, and put right by its callers' word
MARGIN = 3500  # ms after its run time from which a job's place in line is beyond doubt
MOST_PROMOTED = 1000  # that one step makes ready
_NAMES = {COMPLETED: "completed", DEAD: "dead", BROKEN: "broken", CANCELLED: "cancelled", UNHEARD: "ended_unheard"}


class Limits(NamedTuple):
    """What a run is held to."""

    live: float = 10.0  # seconds within which ready jobs are claimed once all faults have ended
    linger: float = 0.25  # seconds for which an attempt may run on after its process was let go on
    most: int = 20  # violations of an invariant that are told with their history


class Sweep(NamedTuple):
    """A step that took jobs back from lost holders."""

    at: int
    now: int
    t: int


class Grave(NamedTuple):
    """A job that died, as it must lie among the dead."""

    failures: int
    stalls: int
    reason: str
    check: int


class Undone(NamedTuple):
    """A job that was touched by what a rewind may have undone."""

    before: int  # where it was before
    after: int  # where it was last
    rewound: Rewound


class Room:
    """How many jobs a call may have been given that nobody heard the answer of: those seem to be passed over.

    That shows in the next claims. So after a while, and some claims, it excuses nothing any more.
    """

    __slots__ = ("_claiming", "_t", "left")

    def __init__(self, t: int, claiming: int, left: int) -> None:
        self._t = t
        self._claiming = claiming
        self.left = left

    def is_over(self, t: int, claiming: int) -> bool:
        return t > self._t + 10 * 10**9 and claiming > self._claiming + 50


class Book:
    """One queue."""

    def __init__(
        self, name: str, owner: int, ledger: Ledger, evidence: Evidence, findings: Findings, limits: Limits
    ) -> None:
        self.name = name
        self.owner = owner
        self.ledger = ledger
        self.evidence = evidence
        self.findings = findings
        self.counts = findings.counts
        self.limits = limits
        self.steady_clock = not evidence.clock_jumps
        self.slack = SLACK if self.steady_clock else JUMPED_SLACK
        self.real_ahead = evidence.wall_ahead

        # The step that is looked at. Times of a repeated answer are those of the repeat: `trip` says by how much.
        self.t = 0
        self.sent_t = 0
        self.step = 0
        self.at = 0  # the same, counted by us: it rises also when the server begins anew
        self.now = 0
        self.wall = 0
        self.wall_high = 0  # the highest so far: what was due then stays so, also if the clock is put back
        self.trip = 0  # ms
        self.generation = 0
        self.segment = -1
        self.wrote = -1  # the last step that wrote
        self.now_low = 0  # what the queue's clock had certainly reached

        self.lives: dict[str, Life] = {}
        self.held: dict[int, Lease] = {}
        self.lost: dict[int, Lease] = {}  # taken back, and perhaps still running
        self.holders: dict[str, Holder] = {}
        self.fence = 0
        self.started = False  # somebody notes starts
        self.early: dict[int, list[Started | Finished]] = {}  # under fences that are not known yet
        self.overlapping: list[tuple[Lease, Lease]] = []  # attempts at one job that may have run at the same time

        self.lines: dict[int, Line] = {}
        self.priorities: list[int] = []
        self.timed: dict[str, tuple[int, int]] = {}  # never claimed: `run_at` and `not_before`, see lives.py
        self.due: list[tuple[int, int, str, int]] = []
        self._dues = 0
        self.again: set[str] = set()  # enqueued again after their end

        self.unheard: list[Unheard] = []
        self.unheard_at = 0
        self.unheard_turns = 0
        self.unheard_leases: list[int] = []  # when they were asked for
        self.raw_unheard = False
        self.may_pass: list[Room] = []
        self.claiming = 0  # answers that brought leases
        self.doubts: dict[int, list[SettleAsked]] = {}
        self.doubted: dict[str, list[SettleAsked]] = {}
        self.maybe_cancelled: set[str] = set()
        self.maybes: dict[str, set[int]] = {}  # of singletons: payloads that may have come

        self.sweeps: list[Sweep] = []
        self.recovered = 0
        self.reaped = 0
        self.unclear = 0  # leases that may have been among those, or not
        self.dead: dict[str, Grave] = {}
        self.died = 0
        self.caught: set[str] = set()  # failures that were given out to a failure handler
        self.promised: dict[str, str] = {}  # handed over from another queue, and by which job
        self.inspected = False
        self.others: dict[str, Book] = {}  # the other queues of the run
        self.idle_since = 0  # when jobs were last seen to be ready while none was claimed; 0: none are

        self.rewinds: list[Rewound] = evidence.rewinds
        self.journal: dict[str, int] | None = None  # what was touched since the next rewind's `since`: state before
        self.undone: dict[str, Undone] = {}  # what a rewind may have undone, until the server shows what it knows

    # -- saying what is wrong ------------------------------------------------------------------------

    def problem(self, invariant: str, job: str, sentence: str) -> None:
        """A promise is broken."""
        self.findings.problem(invariant, self.name, job, f"{sentence} (step {self.step})")

    # -- jobs ----------------------------------------------------------------------------------------

    def touch(self, job: str, before: int) -> None:
        """Something is done to a job that a rewind may undo."""
        if self.journal is not None:
            self.journal.setdefault(job, before & WHERE)

    def terms(self, columns: Columns, row: int) -> Terms:
        return self.ledger.terms[columns.terms[row]]

    def give_life(self, job: str, columns: Columns, row: int) -> Life:
        """A job becomes more than a row."""
        life = Life(job, columns, row, self.ledger.terms[columns.terms[row]])
        columns.states[row] = columns.states[row] & ACKNOWLEDGED | ALIVE
        self.lives[job] = life
        return life

    def end(self, life: Life, where: int) -> None:
        """A job has come to its end; of a singleton, what waits behind it is the next."""
        self.counts[_NAMES[where] if life.terms.max_stalls < NO_LIMIT else "handled"] += 1
        if life.fuzzy:
            self.believe(life)
        if self.journal is not None:
            self.touch(life.job, ALIVE)
        self.leave_line(life)
        if life.lease is not None:
            self.held.pop(life.lease.fence, None)
            life.lease = None
        if life.blocked is not None:
            life.check, life.blocked = life.blocked, None
            life.failures = life.stalls = life.starts = 0
            life.cause = ""
            life.last_run = None
            return
        life.columns.states[life.row] = life.columns.states[life.row] & ACKNOWLEDGED | where
        if life.cause == "":
            life.last_run = None  # so that it is gone at once, and not when somebody looks for cycles
        del self.lives[life.job]

    def believe(self, life: Life) -> bool:
        """The server shows what it knows of a job after a rewind; whether the job had ended, and that was undone."""
        life.fuzzy = False
        undone = self.undone.pop(life.job, None)
        if undone is None or undone.after <= ALIVE:
            return False
        self.counts[_NAMES[undone.after]] -= 1
        return True

    def die(self, life: Life, reason: str) -> None:
        """It is dead, and must be found among the dead."""
        self.died += 1
        self.dead[life.job] = Grave(life.failures, life.stalls, reason, life.check)
        self.end(life, DEAD)

    # -- the line of those that are ready ----------------------------------------------------------------

    def line(self, priority: int) -> Line:
        """Where jobs of a priority stand."""
        line = self.lines.get(priority)
        if line is None:
            line = self.lines[priority] = Line()
            self.priorities = sorted(self.lines)
        return line

    def leave_line(self, life: Life) -> None:
        """It is not ready any more, or nobody can say whether it is."""
        if life.place != NO_PLACE:
            self.line(life.terms.priority).take(life.place)
        life.waiting += 1

    def who_stands(self, priority: int, place: int) -> str:
        """The job at this place. Looked for only when something is wrong with it."""
        for columns in self.ledger.columns():
            for row, found in enumerate(columns.places):
                ours = columns.owners[row] == self.owner and columns.states[row] & WHERE == WAITING
                if found == place and ours and self.terms(columns, row).priority == priority:
                    return columns.name(row)
        lives = (life.job for life in self.lives.values() if life.place == place and life.terms.priority == priority)
        return next(lives, "?")

    def last_fence(self, job: str) -> int:
        """The last fence that is known of a job that has not ended."""
        life = self.lives.get(job)
        return life.fence if life is not None else 0

    def unheard_since(self, t: int) -> int:
        """How many leases were asked for after this time that nobody heard the answer of."""
        return len(self.unheard_leases) - bisect_right(self.unheard_leases, t)

    def use_room(self, count: int) -> bool:
        """Whether so many can have been given to somebody who did not live to hear of it. None is excused twice."""
        self.may_pass = [room for room in self.may_pass if room.left and not room.is_over(self.t, self.claiming)]
        if sum(room.left for room in self.may_pass) < count:
            return False
        for room in self.may_pass:
            used = min(count, room.left)
            room.left -= used
            count -= used
        return True

    @property
    def sweeps_possible(self) -> bool:
        """Whether jobs can have been taken back at all."""
        return bool(self.sweeps) or self.unheard_turns > 0

    def plan(self, job: str, run_at: int, token: int) -> None:
        """It is to be put in line when its run time has passed. Where clocks were set nobody can say when that is."""
        if self.steady_clock:
            self._dues += 1
            heapq.heappush(self.due, (run_at + MARGIN, self._dues, job, token))

    @property
    def latest_wall(self) -> int:
        """What the server may take for the time when it adds a delay: the later of its two readings."""
        return self.wall if self.real_ahead is None else max(self.wall, (self.t + self.real_ahead) // 1_000_000)

    def back_in_line(self, life: Life) -> None:
        """To the front, at its old place."""
        if life.place != NO_PLACE:
            self.line(life.terms.priority).put_back(life.place)

    @property
    def somebody_waits(self) -> bool:
        """Whether a job is certainly ready."""
        return any(not line.is_empty for line in self.lines.values())

    # -- holders -------------------------------------------------------------------------------------

    def holder(self, name: str, pid: int) -> Holder:
        """Who holds under this name."""
        holder = self.holders.get(name)
        if holder is None:
            holder = self.holders[name] = Holder(name, False)
        holder.pids.add(pid)
        return holder

    def keep(self, holder: Holder, lease: int) -> None:
        """Its leases are good for so many ms from now; from the first time that this was asked, if it was repeated."""
        end = self.now - self.trip + lease
        if end > holder.end:
            holder.end = end
        good = self.sent_t + lease * 900_000 - 100_000_000  # nine tenths of it, less what a repeat may have taken
        if good > holder.good:
            holder.good = good
        holder.lease = max(lease, holder.lease)
        if self.t > holder.heard:
            holder.heard = self.t
