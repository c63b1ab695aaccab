"""When to poll one queue. A poll is a probe, which is a cheap read, or a turn that asks for jobs.

A queue that had jobs is polled again at once. An empty queue is polled when a wake-up comes, and after the poll
interval in case one was lost. After an error the queue pauses.
"""

from __future__ import annotations

import asyncio
from random import uniform
from time import monotonic

from windlass.storage.formats import MAX_POLL_MS, MAX_PROBING_MS
from windlass.storage.port import Turn
from windlass.values.decode_guard import DecodeGuard

MIN_POLL_S = 1.0  # with few waiting workers, a lost wake-up delays a job by at most this
FULL_RATE_WAITERS = 4  # if more workers wait, each polls less often: all together poll about as often as four
MAX_POLL_S = MAX_POLL_MS / 1000
MIN_SHARED_POLL_S = 0.2  # lower bound of the random pause when many workers poll: keeps a lucky worker from spinning
MAX_PROBING_S = MAX_PROBING_MS / 1000
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.2, 3.0  # pause after a failed turn: short for a blip, bounded so work resumes soon


class PollTimer:
    """When to poll one queue: learns from replies, wake-ups and errors. Sends nothing itself."""

    def __init__(self, guard: DecodeGuard, lease_s: float, *, strictly: bool) -> None:
        self.needs_wake_up = asyncio.Event()  # the queue looks empty and the runner has free slots
        self._guard = guard
        # At most a lease: a job that a peer leases after a poll and then loses is found in time.
        self._longest_s = min(MAX_POLL_S, lease_s)
        self._strictly = strictly  # jobs start exactly in queue order, so only one poll runs at a time
        self._polls = 0  # running now
        self._more = True  # the queue may have jobs: the last poll found some, or a wake-up came
        self._found_nothing = False  # the last poll
        self._found_all_wanted = False  # the last turn got as many jobs as it asked for, so two polls at a time pay off
        self._poll_at = 0.0
        self._poll_every_s = MIN_POLL_S
        self._full_poll_at = 0.0  # from then on a probe is not enough
        self._backoff_s = 0.0
        self._backoff_until = 0.0

    def is_due(self, now: float, *, in_flight: bool) -> bool:
        """Return whether to poll now. While the queue looks empty, one poll at a time is enough."""
        if (self._strictly or self._guard.suspended) and (self._polls or now < self._guard.retry_at):
            return False
        return self._more or (not in_flight and not self._polls and now >= self._poll_at)

    def begin(self) -> None:
        """Record that a poll starts. A second one runs at the same time only if the last got all it asked for."""
        self._more = self._found_all_wanted
        self._polls += 1

    def end(self, _: object = None) -> None:
        """Record that a poll has ended."""
        self._polls -= 1

    def wake(self) -> None:
        """Record that the queue may have jobs."""
        self._more = True
        self.needs_wake_up.clear()

    @property
    def looks_empty(self) -> bool:
        """Whether the last poll found nothing and no wake-up came since."""
        return self._found_nothing and not self._more

    @property
    def probe_is_enough(self) -> bool:
        """Whether a probe is enough: the queue was empty, no wake-up came, and a turn was not long ago."""
        return self.looks_empty and monotonic() < self._full_poll_at

    @property
    def next_at(self) -> float:
        """When to poll if no wake-up comes."""
        return max(self._poll_at, self._backoff_until, self._guard.retry_at)

    def back_off(self) -> None:
        """Pause the queue after an error, twice as long each time."""
        self._backoff_s = min(self._backoff_s * 2 or MIN_BACKOFF_S, MAX_BACKOFF_S)
        self._backoff_until = monotonic() + self._backoff_s
        self._more = True

    def is_backing_off(self, now: float) -> bool:
        """Return whether the queue is paused after an error."""
        return now < self._backoff_until

    def learn_from_probe(self, work_in_s: float | None) -> None:
        """Choose the next poll after a probe that found nothing to do for `work_in_s`."""
        if work_in_s is not None:
            self._full_poll_at = min(self._full_poll_at, monotonic() + work_in_s)
        self._poll_at = self._choose_poll_at()

    def learn_from_turn(self, turn: Turn, want: int) -> None:
        """Choose the next poll after a turn that asked for `want` jobs."""
        self._backoff_s = 0.0
        if want:
            self._found_all_wanted = len(turn.leases) >= want
        if turn.leases or turn.undecodable:
            self.wake()  # only a poll that finds nothing registers us for a wake-up
            self._found_nothing = False
        elif want:
            self._found_nothing = True
            self.needs_wake_up.set()
            longest = MAX_PROBING_S * uniform(0.7, 1.0)  # spreads workers that started together
            self._full_poll_at = monotonic() + (
                longest if turn.next_work_in is None else min(longest, turn.next_work_in)
            )
            self._poll_every_s = max(MIN_POLL_S, min(self._longest_s, MIN_POLL_S * turn.waiting / FULL_RATE_WAITERS))
            self._poll_at = self._choose_poll_at()

    def _choose_poll_at(self) -> float:
        """Choose the next poll, at random if many workers wait: the earliest one finds a job that sent no wake-up."""
        many = self._poll_every_s > MIN_POLL_S
        wait = uniform(MIN_SHARED_POLL_S, self._poll_every_s) if many else MIN_POLL_S
        return min(monotonic() + wait, self._full_poll_at)
