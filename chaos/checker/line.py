"""I11: the line of ready jobs of one priority, and detection of skipped jobs.

The server leases the first job of the line, so the first job that is not taken must be leased next. A job that arrived
at a logged step has an exact place. A job with a run time gets its place when that time has passed by a margin: it is
certain who was in line before and who came later, but not the order within that second.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

_SAMPLE_MS = 50  # ms between two samples of the line's length


class Line:
    """Places from 0 on; each is taken (leased, cancelled, or not to be judged) or not."""

    __slots__ = ("_lengths", "_walls", "head", "taken")

    def __init__(self) -> None:
        self.taken = bytearray()
        self.head = 0  # the first place that is not taken
        self._walls = array("Q")
        self._lengths = array("I")

    def append(self) -> int:
        """Add a place at the end."""
        self.taken.append(0)
        return len(self.taken) - 1

    def take(self, place: int) -> None:
        """Mark a place as taken."""
        self.taken[place] = 1
        if place == self.head:
            head = self.taken.find(0, place)
            self.head = head if head >= 0 else len(self.taken)

    def put_back(self, place: int) -> None:
        """Return to the line, at the old place."""
        self.taken[place] = 0
        if place < self.head:
            self.head = place

    @property
    def is_empty(self) -> bool:
        return self.head >= len(self.taken)

    def first(self, count: int, before: int) -> list[int]:
        """At most `count` of the first free places before `before`."""
        found: list[int] = []
        place = self.head
        while 0 <= place < before and len(found) < count:
            found.append(place)
            place = self.taken.find(0, place + 1, before)
        return found

    def note(self, wall: int) -> None:
        """Sample the length of the line."""
        if not self._walls or wall >= self._walls[-1] + _SAMPLE_MS:
            self._walls.append(wall)
            self._lengths.append(len(self.taken))

    def length_before(self, wall: int) -> int:
        """Lower bound of the length at the last sample with a smaller clock value."""
        at = bisect_left(self._walls, wall)
        return self._lengths[at - 1] if at else 0
