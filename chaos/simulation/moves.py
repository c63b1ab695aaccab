"""The places of a queue's jobs and their moves, independent of the server's implementation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from chaos.simulation.jobs import (
    LIMITED,
    LIMITS_GIVEN,
    REPLACE_EXTRAS,
    RESET,
    SUSPECT,
    UNDECODABLE,
    UPDATE_DATA,
    UPDATE_LIMITS,
    UPDATE_PRIORITY,
    Asked,
    Done,
    Hold,
    Job,
    Moment,
    Reading,
    When,
    choose,
    new_job,
)
from chaos.simulation.violation import Violation

DISTRUST_MARGIN_MS = 2_000  # ms added to a delay while the server's clock is distrusted


@dataclass
class Moves:
    """One queue."""

    queue: str
    ready: dict[str, Job] = field(default_factory=dict)
    scheduled: dict[str, Job] = field(default_factory=dict)
    leased: dict[str, Job] = field(default_factory=dict)
    blocked: dict[str, Asked] = field(default_factory=dict)
    dead: dict[str, Job] = field(default_factory=dict)
    broken: dict[str, Job] = field(default_factory=dict)
    holders: dict[str, Hold] = field(default_factory=dict)
    callers: dict[str, Done] = field(default_factory=dict)
    # For the check of the programs' answers: the fate of each payload, lease and outcome.
    enqueued: dict[bytes, str] = field(default_factory=dict)
    given: dict[int, Job] = field(default_factory=dict)
    settled: dict[int, str] = field(default_factory=dict)
    orders: int = 0
    fence: int = 0
    clock: int | None = None
    wall: int = 0
    behind: int = 0
    frame: int = 0
    skew: int = 0
    belief: int = 0
    grace: int = 0
    grace_from: int = 0
    step: int = 0
    epoch: int = 0
    most_ahead: float = -inf
    shortest: float = 0.0  # maximum ms by which a lease was cut short
    earliest: float = 0.0  # maximum ms by which a job was leased before its delay was over
    reaped: int = 0
    expired: int = 0
    replays: int = 0
    stale: int = 0
    # State of the current step.
    moment: Moment = field(init=False)
    reading: Reading = field(init=False)
    now: int = 0
    due: int = 0
    changed: bool = False
    answer: Any = None
    open_grace: int = 0
    open_grace_from: int = 0
    open_behind: int = 0
    open_frame: int = 0

    def _next(self) -> int:
        self.orders += 1
        return self.orders

    def _place(self, job: Job, keep_order: bool = False) -> None:
        if job.when.at > self.due:
            job.order = self._next()
            self.scheduled[job.id] = job
            return
        if not keep_order:
            job.order = self._next()
        self.ready[job.id] = job

    def _promote(self) -> None:
        due = [job for job in self.scheduled.values() if job.when.at <= self.due]
        for job in sorted(due, key=lambda job: (job.when.at, job.order)):
            del self.scheduled[job.id]
            self._place(job)
            self.changed = True

    def _merge(self, job: Job | Asked, asked: Asked) -> None:
        if asked.has(UPDATE_DATA):
            job.data = asked.data
        new = zip(UPDATE_LIMITS, asked.limits, job.limits, strict=True)
        job.limits = tuple(theirs if asked.has(flag) else ours for flag, theirs, ours in new)  # type: ignore[assignment]
        if asked.has(UPDATE_PRIORITY):
            job.priority = asked.priority
        if asked.has(REPLACE_EXTRAS) or asked.expires is not None or asked.lasts:
            job.expires, job.lasts = asked.expires if isinstance(job, Asked) else asked.expires or 0, asked.lasts
        job.when = choose(job.when, asked.when, asked.mode)
        if isinstance(job, Asked):
            return
        if asked.has(LIMITS_GIVEN):
            job.marks |= LIMITED
        if asked.has(RESET):
            job.failures = job.stalls = job.snoozes = 0
            job.marks &= ~SUSPECT
        self._end_expiry_if_started(job)

    def _end_expiry_if_started(self, job: Job) -> None:
        if job.failures + job.stalls + job.snoozes or job.marks & SUSPECT:
            job.expires = job.lasts = 0

    def _set_expiry(self, job: Job | Asked, moved: bool) -> None:
        """An expiry given as a duration counts from the run time, or from now."""
        if job.lasts and (moved or not job.expires):
            ahead = job.when.at > self.due
            job.expires = int(job.when.at) + job.lasts if ahead else self._from_now(int(job.lasts)).at

    def _is_past_expiry(self, job: Job | Asked | None) -> bool:
        return job is not None and 0 < (job.expires or 0) <= self.due

    def _place_again(self, job: Job, when: When, keep_order: bool) -> None:
        job.when, job.holder, job.fence, job.cancelled = when, "", 0, False
        self._end_expiry_if_started(job)
        asked = self.blocked.pop(job.id, None)
        if asked is not None and not self._is_past_expiry(asked):
            self._merge(job, asked)
            self._set_expiry(job, moved=job.when.at > self.due)
        self._place(job, keep_order)

    def _gone(self, id: str) -> None:
        asked = self.blocked.pop(id, None)
        if asked is not None:
            self._place(new_job(id, asked))

    def _bury(self, job: Job, reason: str) -> None:
        job.reason, job.expires, job.lasts = reason, 0, 0
        self.dead.pop(job.id, None)
        self.broken.pop(job.id, None)
        (self.broken if reason == UNDECODABLE else self.dead)[job.id] = job
        self._gone(job.id)

    def _drop_raw(self, holders: Iterable[str]) -> None:
        for holder in holders:
            if holder.startswith(".") and not any(job.holder == holder for job in self.leased.values()):
                self.holders.pop(holder, None)

    def _sign_of_life(self, holder: str, ms: int) -> None:
        old, new = self.holders.get(holder), self._hold(ms)
        self.holders[holder] = new if old is None or new.ends > old.ends else old

    def _hold(self, ms: int) -> Hold:
        if self.open_behind > ms:
            self.open_behind, self.open_frame = 0, self.open_frame + 1
        return Hold(self.now + ms + self.open_behind, self.moment.true_ms + ms, self.moment.jumps)

    def _from_now(self, ms: int) -> When:
        moment = self.moment
        now = max(moment.wall, self.due) if ms else self.due
        if ms and self.due != moment.wall:
            now += DISTRUST_MARGIN_MS
        return When(now + ms, moment.true_ms + ms, moment.jumps, max(0.0, moment.true_ms - now))

    def _same(self, before: Any, told: str) -> str:
        if before != told:
            raise Violation("I3", f"the answer to a repeat is {told}, but the first answer was {before}")
        return told
