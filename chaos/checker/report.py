"""What a check found: figures, sets, and every promise that was broken."""

from __future__ import annotations

from collections import Counter

import msgspec

INVARIANTS = {
    "I1": "no acknowledged enqueue is lost",
    "I2": "nothing is invented or changed",
    "I3": "an enqueue happens once",
    "I4": "a job has one end",
    "I5": "a settled job never runs again",
    "I6": "one live lease, rising fences",
    "I7": "only the owner's word counts",
    "I8": "every duplicate has a cause",
    "I9": "one runs at a time",
    "I10": "never early",
    "I11": "first in, first out within a priority",
    "I12": "budgets are exact, and everything drains",
}
EXAMPLES = 20  # names that are listed of a set


class Violation(msgspec.Struct, frozen=True):
    """One broken promise, with all that the log says of the job."""

    invariant: str
    queue: str
    job: str
    sentence: str
    history: tuple[str, ...] = ()


class Jobs(msgspec.Struct, frozen=True):
    """A set of jobs: how many, and the first of them."""

    count: int = 0
    some: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """The result of a check. Times are seconds unless the name says otherwise."""

    ok: bool
    files: int
    processes: int
    queues: int
    calls: int
    in_doubt: int  # calls that were not answered, or given up in doubt
    not_applied: int  # calls that were refused, and certainly changed nothing
    steps: int

    asked: int
    acknowledged: int
    completed: int
    dead: int
    broken: int
    cancelled: int
    ended_unheard: int  # ended by a call whose answer nobody lived to hear
    claimed_unheard: int  # leases that nobody lived to hear of, as far as they showed later
    left: int  # on the server at the end, and not dead or broken
    handled: int  # jobs that told a failure handler of others

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
    forgotten: Jobs  # lost as their durability allowed
    lost_first: int  # of the lost: before all others of their producer that are not lost
    lost_middle: int
    lost_last: int
    duplicates: dict[str, int]  # starts after the first, by cause

    overlaps: int
    overlap_ms_total: float
    overlap_ms_max: float
    late_ms_p50: float
    late_ms_p99: float
    late_ms_max: float
    timed: int  # claims of jobs that had a run time

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
    """What is gathered while checking."""

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
        """A promise is broken. The first of each kind are told, all are counted."""
        self.violated[invariant] += 1
        if self.violated[invariant] <= self._most:
            self.violations.append(Violation(invariant, queue, job, sentence))

    def add(self, name: str, job: str) -> None:
        """One more of a set."""
        count, some = self._sets.setdefault(name, (0, []))
        if count < EXAMPLES:
            some.append(job)
        self._sets[name] = (count + 1, some)

    def jobs(self, name: str) -> Jobs:
        """A set as it is reported."""
        count, some = self._sets.get(name, (0, []))
        return Jobs(count, tuple(some))


def percentile(values: list[int], share: float) -> float:
    """Of sorted values."""
    return float(values[min(len(values) - 1, int(len(values) * share))]) if values else 0.0


def _lines(report: Report) -> list[str]:
    said = [
        "OK: every promise was kept" if report.ok else "BROKEN: " + ", ".join(sorted(report.violated, key=_number)),
        f"  log          {report.files} files of {report.processes} processes, {report.queues} queues, "
        f"{report.steps} steps, {report.calls} calls ({report.in_doubt} in doubt, {report.not_applied} refused)",
        f"  jobs         {report.acknowledged} acknowledged of {report.asked} asked for: {report.completed} completed, "
        f"{report.dead} dead, {report.broken} broken, {report.cancelled} cancelled, {report.left} left"
        + (f"; {report.handled} failures handled" if report.handled else ""),
        f"  unheard      {report.ended_unheard} ended by a call whose answer nobody lived to hear, "
        f"{report.claimed_unheard} claimed by one",
        f"  attempts     {report.attempts} of {report.claims} claims; taken back from lost holders {report.reaped}; "
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
        f"  recovered    {report.recovered.count}: in doubt when they were enqueued, and there",
        f"  rewound      {report.rewinds} times: {report.forgotten.count} lost as their durability allows"
        f"{_some(report.forgotten)}, {report.rerun_after_rewind} settled and run again",
        f"  run again    {report.settled_then_run_again} after they were settled, beside those",
        f"  overlaps     {report.overlaps}, the longest {report.overlap_ms_max:.0f} ms, "
        f"in all {report.overlap_ms_total:.0f} ms",
        f"  lateness     p50 {report.late_ms_p50:.0f} ms, p99 {report.late_ms_p99:.0f} ms, "
        f"max {report.late_ms_max:.0f} ms of {report.timed} with a run time",
        f"  faults       {report.worker_kills} worker kills, {report.server_kills} server kills, "
        f"{report.processes_ended} processes seen to end"
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
