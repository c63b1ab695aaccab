"""The result of a check: figures, sets of jobs, and every broken promise."""

from __future__ import annotations

from collections import Counter

import msgspec

INVARIANTS = {
    "I1": "no acknowledged enqueue is lost",
    "I2": "jobs are not invented or changed",
    "I3": "an enqueue happens once",
    "I4": "a job has one end",
    "I5": "an ended job never runs again",
    "I6": "one live lease, rising fences",
    "I7": "only the lease's owner can settle",
    "I8": "every duplicate has a cause",
    "I9": "one runs at a time",
    "I10": "never early",
    "I11": "first in, first out within a priority",
    "I12": "budgets are exact, and everything drains",
}
EXAMPLES = 20  # job names listed per set


class Violation(msgspec.Struct, frozen=True):
    """A broken promise, with the log lines of the job."""

    invariant: str
    queue: str
    job: str
    sentence: str
    history: tuple[str, ...] = ()


class Jobs(msgspec.Struct, frozen=True):
    """A set of jobs: the count, and the first names."""

    count: int = 0
    some: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """The result of a check. Times are seconds unless the name says otherwise."""

    ok: bool
    files: int
    processes: int
    queues: int
    calls: int
    in_doubt: int  # calls that were unanswered, or given up in doubt
    not_applied: int  # refused calls, which certainly changed nothing
    steps: int

    asked: int
    acknowledged: int
    completed: int
    dead: int
    broken: int
    cancelled: int
    ended_unheard: int  # ended by an unanswered call
    claimed_unheard: int  # leases by unanswered calls, as far as later steps revealed them
    left: int  # on the server at the end, neither dead nor broken
    handled: int  # jobs of failure handlers

    claims: int
    attempts: int
    reaped: int
    stale_refused: int
    settled_then_run_again: int
    rerun_after_rewind: int

    lost: Jobs
    unexpected: Jobs
    duplicated: Jobs
    recovered: Jobs
    forgotten: Jobs  # lost within what their durability allows
    lost_first: int  # lost jobs that precede all surviving jobs of their producer
    lost_middle: int
    lost_last: int
    duplicates: dict[str, int]  # repeated starts, by cause

    overlaps: int
    overlap_ms_total: float
    overlap_ms_max: float
    late_ms_p50: float
    late_ms_p99: float
    late_ms_max: float
    timed: int  # leases of jobs with a run time

    worker_kills: int
    server_kills: int
    processes_ended: int
    rewinds: int
    faults: dict[str, int]

    violated: dict[str, int]
    violations: tuple[Violation, ...]

    def text(self) -> str:
        """For people."""
        return "\n".join(_lines(self))


class Findings:
    """Collects findings during the check."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.counts: Counter[str] = Counter()
        self.violated: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self._sets: dict[str, tuple[int, list[str]]] = {}
        self.duplicates: Counter[str] = Counter()
        self.lateness: list[int] = []
        self.overlaps: list[float] = []
        self.lost_jobs: list[tuple[str, str]] = []

    def problem(self, invariant: str, queue: str, job: str, sentence: str) -> None:
        """Count a broken promise. The first of each invariant are reported in full."""
        self.violated[invariant] += 1
        if self.violated[invariant] <= self._most:
            self.violations.append(Violation(invariant, queue, job, sentence))

    def add(self, name: str, job: str) -> None:
        """Add a job to a set."""
        count, some = self._sets.setdefault(name, (0, []))
        if count < EXAMPLES:
            some.append(job)
        self._sets[name] = (count + 1, some)

    def jobs(self, name: str) -> Jobs:
        """A set in the form of the report."""
        count, some = self._sets.get(name, (0, []))
        return Jobs(count, tuple(some))


def percentile(values: list[int], share: float) -> float:
    """A percentile of sorted values."""
    return float(values[min(len(values) - 1, int(len(values) * share))]) if values else 0.0


def _lines(report: Report) -> list[str]:
    said = [
        "OK: every promise was kept" if report.ok else "BROKEN: " + ", ".join(sorted(report.violated, key=_number)),
        f"  log          {report.files} files of {report.processes} processes, {report.queues} queues, "
        f"{report.steps} steps, {report.calls} calls ({report.in_doubt} in doubt, {report.not_applied} refused)",
        f"  jobs         {report.acknowledged} acknowledged of {report.asked} asked for: {report.completed} completed, "
        f"{report.dead} dead, {report.broken} broken, {report.cancelled} cancelled, {report.left} unfinished"
        + (f"; {report.handled} failures handled" if report.handled else ""),
        f"  unanswered   {report.ended_unheard} jobs ended by an unanswered call, "
        f"{report.claimed_unheard} leased by one",
        f"  attempts     {report.attempts} of {report.claims} leases; reclaimed from lost holders {report.reaped}; "
        f"stale settles refused {report.stale_refused}",
        f"  lost         {report.lost.count}"
        + (
            f" (first {report.lost_first}, middle {report.lost_middle}, last {report.lost_last})"
            if report.lost.count
            else ""
        )
        + _some(report.lost),
        f"  unexpected   {report.unexpected.count}{_some(report.unexpected)}",
        f"  duplicated   {report.duplicated.count}, by cause: "
        + (", ".join(f"{cause} {count}" for cause, count in report.duplicates.items() if count) or "none"),
        f"  recovered    {report.recovered.count} jobs exist although their enqueue was in doubt",
        f"  rewound      {report.rewinds} times: {report.forgotten.count} lost within their durability"
        f"{_some(report.forgotten)}, {report.rerun_after_rewind} settled jobs ran again",
        f"  run again    {report.settled_then_run_again} settled jobs ran again without a rewind",
        f"  overlaps     {report.overlaps}, the longest {report.overlap_ms_max:.0f} ms, "
        f"total {report.overlap_ms_total:.0f} ms",
        f"  lateness     p50 {report.late_ms_p50:.0f} ms, p99 {report.late_ms_p99:.0f} ms, "
        f"max {report.late_ms_max:.0f} ms over {report.timed} leases with a run time",
        f"  faults       {report.worker_kills} worker kills, {report.server_kills} server kills, "
        f"{report.processes_ended} processes ended"
        + "".join(f"\n               {count:6} {name}" for name, count in report.faults.items()),
    ]
    for invariant in sorted(report.violated, key=_number):
        said.append(f"\n{invariant} ({INVARIANTS[invariant]}): broken {report.violated[invariant]} times")
        for violation in report.violations:
            if violation.invariant == invariant:
                said.append(f"  {violation.queue} {violation.job}: {violation.sentence}")
                said += [f"      {line}" for line in violation.history]
    return said


def _some(jobs: Jobs) -> str:
    if not jobs.some:
        return ""
    more = ", …" if jobs.count > len(jobs.some) else ""
    return f": {', '.join(jobs.some)}{more}"


def _number(invariant: str) -> int:
    return int(invariant[1:])


def as_json(report: Report) -> bytes:
    """For programs."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1)
