"""Jobs that have been leased and have not ended, their leases, and the holders."""

from __future__ import annotations

from chaos.checker.ledger import NO_PLACE, Columns, Terms

# Why a job is leased again: the causes of duplicates.
RETRY, SNOOZE, RELEASE, LOST_LEASE, CRASH = "retry", "snooze", "release", "lost lease", "crash"
IN_DOUBT, OPERATOR, REWIND, UNEXPLAINED = "in-doubt settle", "operator", "rewind", "UNEXPLAINED"
CAUSES = (RETRY, SNOOZE, RELEASE, LOST_LEASE, CRASH, IN_DOUBT, OPERATOR, REWIND, UNEXPLAINED)


class Holder:
    """The owner of all leases under one name. A raw lease is a holder of its own, without heartbeats."""

    __slots__ = ("end", "good", "heard", "judged", "lease", "lost", "name", "pids", "raw", "unheard")

    def __init__(self, name: str, raw: bool) -> None:
        self.name = name
        self.raw = raw
        self.end = 0  # until when its leases are certainly valid, by the queue's clock
        self.good = 0  # the same in real time, monotonic ns, with a margin
        self.lease = 0  # ms
        self.heard = 0  # when it last got a confirmation, ns
        self.pids: set[int] = set()
        self.unheard = 0  # lease requests without an answer
        self.lost = False  # all its jobs were certainly reclaimed
        self.judged = -1  # the `heard` for which its loss was judged, to judge each loss once


class Lease:
    """One lease of a job, and the attempt made under it."""

    __slots__ = (
        "at",
        "cancelled",
        "cause",
        "end",
        "fence",
        "finished",
        "gone",
        "holder",
        "how",
        "life",
        "not_before",
        "pid",
        "started",
        "t",
        "unsure",
    )

    def __init__(self, life: Life, fence: int, holder: Holder, at: int, t: int, cause: str) -> None:
        self.life = life
        self.fence = fence
        self.holder = holder
        self.at = at
        self.t = t
        self.cause = cause  # why the job was leased again; "" the first time
        self.not_before = 0  # earliest start, monotonic ns
        self.cancelled = False
        self.gone = False  # its owner was told that the lease is lost
        self.unsure = False  # after a rewind: the server may or may not know it
        self.started = 0
        self.finished = 0
        self.how = ""
        self.pid = 0
        self.end = 0  # end of the run, if known from other records


class Life:
    """A job from its first lease to its end."""

    __slots__ = (
        "blocked",
        "cause",
        "check",
        "claimed",
        "columns",
        "failures",
        "fence",
        "fuzzy",
        "job",
        "last_run",
        "lease",
        "low",
        "not_before",
        "owed",
        "place",
        "row",
        "run_at",
        "stalls",
        "starts",
        "terms",
        "waiting",
    )

    def __init__(self, job: str, columns: Columns, row: int, terms: Terms) -> None:
        self.job = job
        self.columns = columns
        self.row = row
        self.terms = terms
        self.check = columns.checks[row]
        self.place = columns.places[row]  # upper bound of its place in line, if known
        self.low = 0 if self.place == NO_PLACE else self.place  # lower bound
        self.failures = 0
        self.stalls = 0
        self.lease: Lease | None = None
        self.fence = 0  # the last known fence
        self.claimed = 0  # when its lease was requested
        self.cause = ""  # why it is waiting again
        self.starts = 0
        self.run_at = 0  # lower bound, by the server's clock for run times; 0: no run time
        self.not_before = 0  # the same in monotonic ns
        self.waiting = 0  # version of its plan: a change voids earlier plans
        self.fuzzy = False  # after a rewind: the server's state of this job is uncertain
        self.last_run: Lease | None = None
        # For singletons:
        self.blocked: int | None = None  # the payload blocked by the running job
        self.owed: int | None = None  # the last acknowledged payload, if not leased yet
