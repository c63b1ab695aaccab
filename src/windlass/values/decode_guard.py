"""Keeps a worker with wrong keys or old code from moving a whole queue to `broken`.

A job that cannot be decoded goes to `broken`. If many in a row fail, the worker itself may be at fault, and another
worker may be able to run them. So after `MAX_UNDECODABLE_IN_A_ROW` of them the worker suspends the queue: it releases
the jobs that wait here. Then it tries one job at a time, after longer and longer pauses, until it can decode one. The
queue is suspended in the same way when it keeps `max_broken` broken jobs already.
"""

from __future__ import annotations

from time import monotonic

from windlass.values.outcome import Broken, Released

MAX_UNDECODABLE_IN_A_ROW = 20  # more than one faulty producer sends, few enough to revive by hand
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0


class DecodeGuard:
    """What one worker could decode of one queue lately, and whether it has suspended the queue."""

    def __init__(self) -> None:
        self.reason = ""  # why the queue is suspended; empty while it is not
        self.retry_at = 0.0  # when to try the next job (monotonic)
        self._broken_allowed = MAX_UNDECODABLE_IN_A_ROW  # undecodable jobs that may still go to `broken`
        self._last = ""
        self._no_room = False  # suspended because the queue keeps `max_broken` jobs
        self._trial = False  # one job is being tried while the queue is suspended
        self._pause_s = 0.0

    @property
    def suspended(self) -> bool:
        """Whether the queue is suspended: the worker only tries one job at a time."""
        return bool(self.reason)

    @property
    def remedy(self) -> str:
        """What ends the suspension."""
        return "Revive or purge broken jobs" if self._no_room else "Check the code and the keys of this worker"

    @property
    def all_decoded(self) -> bool:
        """Whether all of the last jobs could be decoded."""
        return self._broken_allowed == MAX_UNDECODABLE_IN_A_ROW and not self.reason

    def record_undecodable(self, broken: Broken) -> Broken | Released:
        """Count a job that cannot be decoded. Returns its outcome: broken, or released after too many in a row."""
        if not broken.worker_specific:
            return broken  # no worker can decode it, so it says nothing about this one
        if self._broken_allowed == 0:
            return Released(broken.lease)
        self._broken_allowed -= 1
        self._last = broken.message
        return broken

    def record_decoded(self) -> bool:
        """Record that a job could be decoded. Returns whether this ended the suspension."""
        ended = self.suspended
        self.reason, self.retry_at, self._pause_s, self._broken_allowed, self._no_room = (
            "",
            0.0,
            0.0,
            MAX_UNDECODABLE_IN_A_ROW,
            False,
        )
        return ended

    def record_stored(self) -> bool:
        """Record that the queue took in a broken job. Returns whether this ended a suspension for `max_broken`."""
        return self._no_room and self.record_decoded()

    def suspend_if_too_many(self) -> bool:
        """Suspend the queue if too many jobs in a row could not be decoded. Returns whether that is new."""
        if self._broken_allowed:
            return False
        return self._suspend(
            self.reason or f"{MAX_UNDECODABLE_IN_A_ROW} jobs in a row could not be decoded; the last one: {self._last}"
        )

    def record_broken_limit(self) -> bool:
        """Suspend the queue, because it has `max_broken` broken jobs and released one. Returns whether that is new."""
        self._no_room = True
        return self._suspend("the queue has reached its limit of broken jobs (max_broken)")

    def begin_trial(self) -> None:
        """Allow one more undecodable job to go to `broken`: the worker is about to try one."""
        self._broken_allowed = max(self._broken_allowed, 1)
        self._trial = True

    def _suspend(self, reason: str) -> bool:
        new = not self.suspended
        if not new and not self._trial:
            return False  # leased before the suspension began; only a trial says more
        self.reason = reason
        self._broken_allowed, self._trial = 0, False
        self._pause_s = min(self._pause_s * 2 or FIRST_PAUSE_S, MAX_PAUSE_S)
        self.retry_at = monotonic() + self._pause_s
        return new
