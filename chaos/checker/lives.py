"""Jobs that have been claimed and have not ended, the leases on them, and who holds those."""

from __future__ import annotations

from chaos.checker.ledger import NO_PLACE, Columns, Terms

# Why a job is given out again: the causes of duplicates.
RETRY, RELEASE, LOST_LEASE, CRASH = "retry", "release", "lost lease", "crash"
IN_DOUBT, OPERATOR, REWIND, UNEXPLAINED = "in-doubt settle", "operator", "rewind", "UNEXPLAINED"
CAUSES = (RETRY, RELEASE, LOST_LEASE, CRASH, IN_DOUBT, OPERATOR, REWIND, UNEXPLAINED)


class Holder:
    """Who holds leases under one name. A raw lease is a holder of its own: nobody beats for it."""

    __slots__ = ("end", "good", "heard", "judged", "lease", "lost", "name", "pids", "raw", "unheard")

    def __init__(self, name: str, raw: bool) -> None:
        self.name = name
        self.raw = raw
        self.end = 0  # until when its leases are certainly good, by the queue's clock
        self.good = 0  # the same in real time, monotonic ns, with some room
        self.lease = 0  # ms
        self.heard = 0  # when it last heard that they are, ns
        self.pids: set[int] = set()
        self.unheard = 0  # leases that it asked for and was not answered
        self.lost = False  # all that it held was certainly taken back
        self.judged = -1  # the `heard` for which its loss was judged: once is enough


class Lease:
    """One claim of a job, and the attempt that was made under it."""

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
        self.cause = cause  # why the job was given out again; "" the first time
        self.not_before = 0  # monotonic ns before which it must not start
        self.cancelled = False
        self.gone = False  # its owner was told that it is not the owner any more
        self.unsure = False  # the server was rewound, and may know of it or not
        self.started = 0
        self.finished = 0
        self.how = ""
        self.pid = 0
        self.end = 0  # of the run, where it is known by other signs than its own


class Life:
    """A job from its first claim to its end."""

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
        self.place = columns.places[row]  # in line, if that is known; at least as far in front as this
        self.low = 0 if self.place == NO_PLACE else self.place  # and at most so far
        self.failures = 0
        self.stalls = 0
        self.lease: Lease | None = None
        self.fence = 0  # the last that is known
        self.claimed = 0  # when that was asked for
        self.cause = ""  # why it is waiting again
        self.starts = 0
        self.run_at = 0  # by the server's clock for run times, at least; 0: no run time
        self.not_before = 0  # the same in monotonic ns
        self.waiting = 0  # changes whenever it is put in line in the future: what was planned before is void
        self.fuzzy = False  # the server was rewound, and what it knows of this job is not certain
        self.last_run: Lease | None = None
        # Of ids that are enqueued again while they are there:
        self.blocked: int | None = None  # the payload that waits behind the one that runs
        self.owed: int | None = None  # the payload that was acknowledged last, if it was not given out yet
