"""What a queue should do, in plain Python: the model that the real one is compared with, step by step.

Time is a number that only the test moves. Nothing here knows of keys, scores or scripts; the order of jobs
is a list of (priority, turn) pairs, and each turn number is given out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

RunAtMode = Literal["always", "never", "later", "earlier"]
DEFAULT_LIMITS = (10, 3)
UNKNOWN_AGAIN = 300  # seconds that a job of an unknown task is parked


@dataclass
class Change:
    """The arguments of an enqueue or update. `run_at` 0 is now."""

    data: bytes
    priority: int = 5
    run_at: float = 0
    limits: tuple[int, int] = DEFAULT_LIMITS
    update_data: bool = True
    run_at_mode: RunAtMode = "always"
    update_priority: bool = True
    update_limits: bool = True
    reset_counts: bool = True
    keep: bool = False
    must_exist: bool = False
    lasts: float | None = None  # from the run time to the expiry; 0 removes the expiry of an existing job
    expires: float = 0
    replace_extras: bool = True


@dataclass
class Entry:
    """A job that waits, runs, or is dead or broken. It is parked while its run time is `aside_until`."""

    id: str
    data: bytes
    priority: int
    limits: tuple[int, int]
    run_at: float = 0
    turn: int = 0
    failures: int = 0
    stalls: int = 0
    snoozes: int = 0
    fence: int = 0
    holder: str = ""
    cancelled: bool = False
    progress: float | None = None
    suspect: bool = False
    aside_until: float = 0
    lasts: float = 0
    expires: float = 0


@dataclass
class QueueModel:
    """One queue."""

    max_dead: int
    max_broken: int
    dropped: int = 0
    now: float = 0
    turns: int = 0
    ticks: int = 0
    paused: bool = False
    ready: dict[str, Entry] = field(default_factory=dict)
    scheduled: dict[str, Entry] = field(default_factory=dict)
    leased: dict[str, Entry] = field(default_factory=dict)
    blocked: dict[str, Change] = field(default_factory=dict)
    dead: dict[str, Entry] = field(default_factory=dict)
    broken: dict[str, Entry] = field(default_factory=dict)
    parked: set[tuple[str, str]] = field(default_factory=set)  # (task, id); may contain outdated entries
    holders: dict[str, tuple[float, int]] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)  # how jobs ended that did not complete, by id

    # -- moves -----------------------------------------------------------------------------------

    def _next_turn(self) -> int:
        self.turns += 1
        return self.turns

    def _tick(self) -> int:
        self.ticks += 1
        return self.ticks

    def _place(self, job: Entry, keep_turn: bool = False) -> None:
        if job.run_at > self.now:
            job.turn = self._next_turn()
            self.scheduled[job.id] = job
            return
        if not keep_turn:
            job.turn = self._next_turn()
        job.run_at = 0
        self.ready[job.id] = job

    def _promote(self) -> None:
        due = [job for job in self.scheduled.values() if job.run_at <= self.now]
        for job in sorted(due, key=lambda job: (job.run_at, job.turn)):
            del self.scheduled[job.id]
            self._place(job)

    @staticmethod
    def _merge(job: Entry, change: Change) -> None:
        if change.update_data:
            job.data = change.data
        if change.update_limits:
            job.limits = change.limits
        if change.update_priority:
            job.priority = change.priority
        if change.reset_counts:
            job.failures = job.stalls = job.snoozes = 0
            job.suspect = False
        if change.replace_extras or change.lasts is not None:
            job.lasts, job.expires = change.lasts or 0, change.expires
        job.run_at = _run_at(job.run_at, change.run_at, change.run_at_mode)
        _end_expiry_if_started(job)

    def _set_expiry(self, job: Entry | Change, moved: bool) -> None:
        if job.lasts and (moved or not job.expires):
            job.expires = max(self.now, job.run_at) + job.lasts

    def _is_past_expiry(self, job: Entry | Change | None) -> bool:
        return job is not None and 0 < job.expires <= self.now

    def _place_again(self, job: Entry, keep_turn: bool) -> None:
        _end_expiry_if_started(job)
        change = self.blocked.pop(job.id, None)
        if self._is_past_expiry(change):
            self.marks[job.id] = "BLOCKED_EXPIRED"
        elif change:
            self._merge(job, change)
            self._set_expiry(job, moved=job.run_at > self.now)
        job.holder, job.fence, job.progress, job.cancelled = "", 0, None, False
        self._place(job, keep_turn)

    def _gone(self, id: str) -> bool:
        """Remove a job. True if the one that was blocked behind it goes on."""
        change = self.blocked.pop(id, None)
        if change:
            self._place(_new_entry(id, change))
        return change is not None

    def _cancelled(self, id: str) -> None:
        if not self._gone(id):
            self.marks[id] = "CANCELLED"

    def _bury(self, job: Entry, *, broken: bool = False) -> None:
        self.dead.pop(job.id, None)
        self.broken.pop(job.id, None)
        (self.broken if broken else self.dead)[job.id] = job
        while len(self.dead) > self.max_dead:
            oldest = next(iter(self.dead))
            del self.dead[oldest]
            self.dropped += 1
        self.marks[job.id] = "GOES_ON" if self._gone(job.id) else "BROKE" if broken else "DIED"

    def _end_lease(self, job: Entry) -> None:
        del self.leased[job.id]

    def _drop_raw_holder(self, holder: str) -> None:
        if holder.startswith(".") and not any(job.holder == holder for job in self.leased.values()):
            self.holders.pop(holder, None)

    # -- verbs -----------------------------------------------------------------------------------

    def enqueue(self, id: str, change: Change) -> str | None:
        """Add or change a job; returns the status."""
        self._promote()
        waiting = self.ready.get(id) or self.scheduled.get(id)
        running = self.leased.get(id)
        if self._is_past_expiry(waiting):
            if change.must_exist:
                return None
            self.cancel(id, running=False)
            waiting = None
        if (waiting or running) and change.keep:
            return "kept"
        if running:
            return self._block(id, change)
        if waiting:
            self._update(waiting, change)
            return "updated"
        if change.must_exist:
            return None
        self.marks.pop(id, None)
        self._set_expiry(change, moved=False)
        self._place(_new_entry(id, change))
        return "added"

    def _update(self, job: Entry, change: Change) -> None:
        was_scheduled, old_run_at = job.id in self.scheduled, job.run_at
        self._merge(job, change)
        self._set_expiry(job, moved=job.run_at != old_run_at)
        if was_scheduled and job.run_at == old_run_at:
            return
        if was_scheduled:
            del self.scheduled[job.id]
            self._place(job)
        elif job.run_at > self.now:
            del self.ready[job.id]
            self._place(job)
        else:
            job.run_at = 0

    def _block(self, id: str, change: Change) -> str | None:
        first = self.blocked.get(id)
        if first is None or self._is_past_expiry(first):
            if change.must_exist:
                return None
            self.marks.pop(id, None)
            self.blocked[id] = replace(change)
            self._set_expiry(self.blocked[id], moved=False)
            return "blocked"
        mode = change.run_at_mode
        folded: RunAtMode = (
            first.run_at_mode if mode == "never" else "always" if first.run_at_mode == "always" else mode
        )
        gives_expiry = change.replace_extras or change.lasts is not None
        self.blocked[id] = Change(
            data=change.data if change.update_data else first.data,
            priority=change.priority if change.update_priority else first.priority,
            run_at=_run_at(first.run_at, change.run_at, mode),
            limits=change.limits if change.update_limits else first.limits,
            update_data=first.update_data or change.update_data,
            run_at_mode=folded,
            update_priority=first.update_priority or change.update_priority,
            update_limits=first.update_limits or change.update_limits,
            reset_counts=first.reset_counts or change.reset_counts,
            lasts=change.lasts if gives_expiry else first.lasts,
            expires=0 if gives_expiry else first.expires,
            replace_extras=first.replace_extras or change.replace_extras,
        )
        self._set_expiry(self.blocked[id], moved=self.blocked[id].run_at != first.run_at)
        return "blocked"

    def upkeep(self) -> None:
        """The middle of every turn: promote due jobs, and reclaim jobs from lost holders."""
        self._promote()
        lost = [name for name, (ends, _) in self.holders.items() if ends <= self.now]
        for name in sorted(lost, key=lambda name: self.holders[name]):
            held = [job for job in self.leased.values() if job.holder == name]
            for job in sorted(held, key=lambda job: job.id.encode()):
                self._end_lease(job)
                job.stalls += 1
                if job.cancelled:
                    self._cancelled(job.id)
                elif job.stalls > job.limits[1]:
                    self._bury(job)
                else:
                    self._place_again(job, keep_turn=True)
            del self.holders[name]

    def settle(self, id: str, fence: int, verb: str, run_at: float = 0, task: str = "") -> bool:
        """Apply one outcome; returns whether the lease was current."""
        job = self.leased.get(id)
        if job is None or job.fence != fence:
            return False
        holder = job.holder
        self._end_lease(job)
        if verb == "complete":
            self._gone(id)
        elif job.cancelled:
            self._cancelled(id)
        elif verb == "release" or (verb == "break" and self._no_room_for(id)):
            self._place_again(job, keep_turn=True)
        elif verb == "suspect":
            job.suspect = True
            self._place_again(job, keep_turn=True)
        elif verb == "crash":
            self._crash(job, run_at)
        elif verb == "snooze":
            job.snoozes += 1
            job.suspect = False
            job.run_at = run_at
            self._place_again(job, keep_turn=False)
        elif verb == "break":
            self._bury(job, broken=True)
        elif verb == "put aside":
            self.parked.add((task, id))
            job.run_at = job.aside_until = self.now + UNKNOWN_AGAIN
            self._place_again(job, keep_turn=False)
        elif verb == "retry" and job.failures < job.limits[0]:
            job.failures += 1
            job.suspect = False
            job.run_at = run_at
            self._place_again(job, keep_turn=False)
        else:
            job.failures += 1
            self._bury(job)
        self._drop_raw_holder(holder)
        return True

    def _no_room_for(self, id: str) -> bool:
        return len(self.broken) >= self.max_broken and id not in self.broken

    def _crash(self, job: Entry, run_at: float) -> None:
        job.stalls += 1
        if job.stalls > job.limits[1]:
            self._bury(job)
        else:
            job.run_at = run_at
            self._place_again(job, keep_turn=True)

    def unpark(self, task: str) -> int:
        """Release the jobs parked for this task; returns how many."""
        found = [id for each, id in self.parked if each == task]
        self.parked -= {(task, id) for id in found}
        count = 0
        for id in sorted(found, key=str.encode):
            job = self.scheduled.get(id)
            if job and job.run_at == job.aside_until:
                del self.scheduled[id]
                job.run_at = 0
                self._place(job)
                count += 1
        return count

    def claim(self, task: str, n: int) -> list[Entry]:
        """The parked jobs of this task that the next lease must begin with."""
        if self.paused:
            return []
        found = sorted((id for each, id in self.parked if each == task), key=str.encode)[:n]
        self.parked -= {(task, id) for id in found}
        claimed = [job for id in found if (job := self.scheduled.get(id)) and job.run_at == job.aside_until]
        for job in claimed:
            del self.scheduled[job.id]
            job.run_at = 0
            self._place(job)
        return claimed

    def revive(self, id: str) -> bool:
        """Revive a dead or broken job."""
        if id in self.ready or id in self.scheduled or id in self.leased:
            return False
        job = self.dead.pop(id, None) or self.broken.pop(id, None)
        if job is None:
            return False
        self.marks.pop(id, None)
        self._place(Entry(id, job.data, job.priority, job.limits))
        return True

    def lease(self, n: int, seconds: float, holder: str, claimed: Sequence[Entry] = ()) -> list[Entry]:
        """The jobs that must be leased now, in order: claimed ones first."""
        if self.paused:
            return []
        chosen: list[Entry] = []
        for job in [*claimed, *sorted(self.ready.values(), key=lambda job: (job.priority, job.turn))]:
            if len(chosen) == n:
                break
            if job.id not in self.ready:
                continue  # a claimed one, for the second time
            del self.ready[job.id]
            if self._is_past_expiry(job):
                self.marks[job.id] = "EXPIRED"
                continue
            job.holder = holder
            self.leased[job.id] = job
            chosen.append(job)
        if chosen:
            self._sign_of_life(holder, seconds)
        return chosen

    def _sign_of_life(self, holder: str, seconds: float) -> None:
        ends = (self.now + seconds, self._tick())
        self.holders[holder] = max(ends, self.holders.get(holder, ends))

    def extend(self, id: str, fence: int, seconds: float, raw_holder: str) -> bool:
        """More time."""
        job = self.leased.get(id)
        if job is None or job.fence != fence or job.cancelled:
            return False
        if job.holder.startswith("."):
            old, job.holder = job.holder, raw_holder
            self._sign_of_life(raw_holder, seconds)
            self._drop_raw_holder(old)
        elif job.holder in self.holders:
            self._sign_of_life(job.holder, seconds)
        return True

    def beat(self, holder: str, seconds: float, register: bool) -> bool:
        """A heartbeat."""
        known = holder in self.holders
        if known or register:
            self._sign_of_life(holder, seconds)
        return known

    def progress(self, id: str, fence: int, value: float) -> bool:
        """Report progress."""
        job = self.leased.get(id)
        if job is None or job.fence != fence or job.cancelled:
            return False
        job.progress = value
        return True

    def cancel(self, id: str, running: bool) -> bool:
        """Cancel a job."""
        job = self.leased.get(id)
        if job:
            found = self.blocked.pop(id, None) is not None
            if found:
                self.marks[id] = "BLOCKED_CANCELLED"
            if running and not job.cancelled:
                job.cancelled = found = True
            return found
        found = bool(self.ready.pop(id, None) or self.scheduled.pop(id, None))
        if found:
            self.marks[id] = "CANCELLED"
        return found

    def purge(self, state: str) -> int:
        """Delete all jobs in one state."""
        jobs: dict[str, object] = getattr(self, state)
        count = len(jobs)
        jobs.clear()
        if state == "dead":
            self.dropped = 0
        return count


def _new_entry(id: str, change: Change) -> Entry:
    lasts, expires = change.lasts or 0, change.expires
    return Entry(id, change.data, change.priority, change.limits, change.run_at, lasts=lasts, expires=expires)


def _end_expiry_if_started(job: Entry) -> None:
    if job.failures + job.stalls + job.snoozes or job.suspect:
        job.lasts = job.expires = 0


def _run_at(old: float, new: float, mode: RunAtMode) -> float:
    return {"always": new, "never": old, "later": max(old, new), "earlier": min(old, new)}[mode]
