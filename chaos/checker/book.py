"""The checker's state of one queue while it walks through the queue's steps.

The invariants are functions over this state: enqueues.py, claims.py, settles.py, reaps.py, runs.py, rewinds.py,
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
    STATE_MASK,
    UNHEARD,
    WAITING,
    Columns,
    Ledger,
    Terms,
)
from chaos.checker.line import Line
from chaos.checker.lives import Holder, Lease, Life
from chaos.checker.report import Findings
from chaos.log import Finished, Rewound, SettleAsked, Started

CLOCK_SLACK_NS = 5_000_000  # ns by which two clocks of one machine may differ
JUMPED_SLACK_NS = 100_000_000  # the same after the server's clock was set and corrected from its callers' clocks
PROMOTION_MARGIN_MS = 3500  # ms after its run time from which a job's place in line is certain
MAX_PROMOTED = 1000  # jobs that one step can promote
_NAMES = {COMPLETED: "completed", DEAD: "dead", BROKEN: "broken", CANCELLED: "cancelled", UNHEARD: "ended_unheard"}


class Limits(NamedTuple):
    """The limits that a run must keep."""

    live: float = 10.0  # seconds within which ready jobs must be leased once all faults have ended
    linger: float = 0.25  # seconds that an attempt may run on after its process was resumed
    most: int = 20  # violations per invariant that are shown with their history


class Sweep(NamedTuple):
    """A step that reclaimed jobs from lost holders."""

    at: int
    now: int
    t: int


class Grave(NamedTuple):
    """The expected dead record of a job."""

    failures: int
    stalls: int
    reason: str
    check: int


class Undone(NamedTuple):
    """A job touched by steps that a rewind may have undone."""

    before: int  # its state before
    after: int  # its last known state
    rewound: Rewound


class Room:
    """How many jobs unanswered calls may have leased: such jobs look skipped.

    Later claims show whether they were. After some time and claims the excuse expires.
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
        self.slack = CLOCK_SLACK_NS if self.steady_clock else JUMPED_SLACK_NS
        self.real_ahead = evidence.wall_ahead

        # The current step. A repeated answer carries the times of the repeat: `trip` bounds the difference.
        self.t = 0
        self.sent_t = 0
        self.step = 0
        self.at = 0  # our own count of steps: it also rises when the server starts over
        self.now = 0
        self.wall = 0
        self.wall_high = 0  # the highest so far: jobs due then stay due, even if the clock is set back
        self.trip = 0  # ms
        self.generation = 0
        self.segment = -1
        self.wrote = -1  # the last step that wrote
        self.now_low = 0  # lower bound of the queue's clock

        self.lives: dict[str, Life] = {}
        self.held: dict[int, Lease] = {}
        self.lost: dict[int, Lease] = {}  # reclaimed, and perhaps still running
        self.holders: dict[str, Holder] = {}
        self.fence = 0
        self.started = False  # some process logs starts
        self.early: dict[int, list[Started | Finished]] = {}  # runs whose fence is not known yet
        self.overlapping: list[tuple[Lease, Lease]] = []  # attempts at one job that may overlap

        self.lines: dict[int, Line] = {}
        self.priorities: list[int] = []
        self.timed: dict[str, tuple[int, int]] = {}  # never leased: `run_at` and `not_before`, see lives.py
        self.due: list[tuple[int, int, str, int]] = []
        self._dues = 0
        self.again: set[str] = set()  # jobs enqueued again after their end

        self.unheard: list[Unheard] = []
        self.unheard_at = 0
        self.unheard_turns = 0
        self.unheard_leases: list[int] = []  # request times of unanswered leases
        self.raw_unheard = False
        self.may_pass: list[Room] = []
        self.claiming = 0  # number of answers with leases
        self.doubts: dict[int, list[SettleAsked]] = {}
        self.doubted: dict[str, list[SettleAsked]] = {}
        self.maybe_cancelled: set[str] = set()
        self.maybes: dict[str, set[int]] = {}  # singletons: payloads that may have arrived

        self.sweeps: list[Sweep] = []
        self.recovered = 0
        self.reaped = 0
        self.unclear = 0  # leases that may or may not belong to unanswered calls
        self.dead: dict[str, Grave] = {}
        self.died = 0
        self.caught: set[str] = set()  # failure jobs that were leased
        self.promised: dict[str, str] = {}  # child → parent, for jobs sent from another queue
        self.inspected = False
        self.others: dict[str, Book] = {}  # the other queues of the run
        self.idle_since = 0  # since when jobs have been ready without a lease; 0: none is ready

        self.rewinds: list[Rewound] = evidence.rewinds
        self.journal: dict[str, int] | None = None  # jobs touched since the next rewind's `since` → state before
        self.undone: dict[str, Undone] = {}  # jobs that a rewind may have undone, until an answer shows their state

    # -- reporting violations ------------------------------------------------------------------------

    def problem(self, invariant: str, job: str, sentence: str) -> None:
        """Report a broken promise."""
        self.findings.problem(invariant, self.name, job, f"{sentence} (step {self.step})")

    # -- jobs ----------------------------------------------------------------------------------------

    def touch(self, job: str, before: int) -> None:
        """Remember that a job changes, in case a rewind undoes it."""
        if self.journal is not None:
            self.journal.setdefault(job, before & STATE_MASK)

    def terms(self, columns: Columns, row: int) -> Terms:
        return self.ledger.terms[columns.terms[row]]

    def give_life(self, job: str, columns: Columns, row: int) -> Life:
        """Create the life of a job that so far was only a row."""
        life = Life(job, columns, row, self.ledger.terms[columns.terms[row]])
        columns.states[row] = columns.states[row] & ACKNOWLEDGED | ALIVE
        self.lives[job] = life
        return life

    def end(self, life: Life, where: int) -> None:
        """End a job; the blocked generation of a singleton, if any, is next."""
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
            life.last_run = None  # breaks the cycle, so that memory is freed at once
        del self.lives[life.job]

    def believe(self, life: Life) -> bool:
        """Accept the server's state of a job after a rewind. Returns whether a rewind undid the job's end."""
        life.fuzzy = False
        undone = self.undone.pop(life.job, None)
        if undone is None or undone.after <= ALIVE:
            return False
        self.counts[_NAMES[undone.after]] -= 1
        return True

    def die(self, life: Life, reason: str) -> None:
        """The job died, and must have a dead record."""
        self.died += 1
        self.dead[life.job] = Grave(life.failures, life.stalls, reason, life.check)
        self.end(life, DEAD)

    # -- the line of ready jobs ----------------------------------------------------------------------

    def line(self, priority: int) -> Line:
        """The line of ready jobs of a priority."""
        line = self.lines.get(priority)
        if line is None:
            line = self.lines[priority] = Line()
            self.priorities = sorted(self.lines)
        return line

    def leave_line(self, life: Life) -> None:
        """The job is no longer ready, or its state is unknown."""
        if life.place != NO_PLACE:
            self.line(life.terms.priority).take(life.place)
        life.waiting += 1

    def who_stands(self, priority: int, place: int) -> str:
        """The job at this place. A slow search, used only for reports."""
        for columns in self.ledger.columns():
            for row, found in enumerate(columns.places):
                ours = columns.owners[row] == self.owner and columns.states[row] & STATE_MASK == WAITING
                if found == place and ours and self.terms(columns, row).priority == priority:
                    return columns.name(row)
        lives = (life.job for life in self.lives.values() if life.place == place and life.terms.priority == priority)
        return next(lives, "?")

    def last_fence(self, job: str) -> int:
        """The last known fence of a job that has not ended."""
        life = self.lives.get(job)
        return life.fence if life is not None else 0

    def unheard_since(self, t: int) -> int:
        """How many leases were requested after `t` without an answer."""
        return len(self.unheard_leases) - bisect_right(self.unheard_leases, t)

    def use_room(self, count: int) -> bool:
        """Whether unanswered calls can have leased `count` jobs. Each unanswered lease excuses only once."""
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
        """Whether jobs can have been reclaimed at all."""
        return bool(self.sweeps) or self.unheard_turns > 0

    def plan(self, job: str, run_at: int, token: int) -> None:
        """Put a job in line when its run time has passed. After clock changes that moment is unknown."""
        if self.steady_clock:
            self._dues += 1
            heapq.heappush(self.due, (run_at + PROMOTION_MARGIN_MS, self._dues, job, token))

    @property
    def latest_wall(self) -> int:
        """The time to which the server may add a delay: the later of its two readings."""
        return self.wall if self.real_ahead is None else max(self.wall, (self.t + self.real_ahead) // 1_000_000)

    def back_in_line(self, life: Life) -> None:
        """Return a job to the front, at its old place."""
        if life.place != NO_PLACE:
            self.line(life.terms.priority).put_back(life.place)

    @property
    def somebody_waits(self) -> bool:
        """Whether a job is certainly ready."""
        return any(not line.is_empty for line in self.lines.values())

    # -- holders -------------------------------------------------------------------------------------

    def holder(self, name: str, pid: int) -> Holder:
        """The holder of this name."""
        holder = self.holders.get(name)
        if holder is None:
            holder = self.holders[name] = Holder(name, False)
        holder.pids.add(pid)
        return holder

    def keep(self, holder: Holder, lease: int) -> None:
        """Extend the holder's leases by `lease` ms; a repeated call counts from its first send."""
        end = self.now - self.trip + lease
        if end > holder.end:
            holder.end = end
        good = (
            self.sent_t + lease * 900_000 - 100_000_000
        )  # nine tenths of the lease, less the time that a repeat may have taken
        if good > holder.good:
            holder.good = good
        holder.lease = max(lease, holder.lease)
        if self.t > holder.heard:
            holder.heard = self.t
