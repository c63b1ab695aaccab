"""I11: the line in which ready jobs of one priority stand, and who is passed over.

The server gives out the first of the line, so the first that is not taken must be the next one claimed. A job that came
at a noted step has an exact place. One that had a run time gets its place when that has passed by a margin: who was in
line before it is known, and who stood behind it, but not what happened in that very second.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

_SAMPLE = 50  # ms between two notes of how long the line was


class Line:
    """Places from 0 on; each is taken (given out, taken away, or not to be judged) or not."""

    __slots__ = ("_lengths", "_walls", "head", "taken")

    def __init__(self) -> None:
        self.taken = bytearray()
        self.head = 0  # the first that is not taken
        self._walls = array("Q")
        self._lengths = array("I")

    def append(self) -> int:
        """A place at the end."""
        self.taken.append(0)
        return len(self.taken) - 1

    def take(self, place: int) -> None:
        """This one is not in line any more."""
        self.taken[place] = 1
        if place == self.head:
            head = self.taken.find(0, place)
            self.head = head if head >= 0 else len(self.taken)

    def put_back(self, place: int) -> None:
        """In line again, at its old place."""
        self.taken[place] = 0
        if place < self.head:
            self.head = place

    @property
    def is_empty(self) -> bool:
        return self.head >= len(self.taken)

    def first(self, count: int, before: int) -> list[int]:
        """The first places that are not taken, so many at most, that are before this one."""
        found: list[int] = []
        place = self.head
        while 0 <= place < before and len(found) < count:
            found.append(place)
            place = self.taken.find(0, place + 1, before)
        return found

    def note(self, wall: int) -> None:
        """Remember how long the line is at this time."""
        if not self._walls or wall >= self._walls[-1] + _SAMPLE:
            self._walls.append(wall)
            self._lengths.append(len(self.taken))

    def length_before(self, wall: int) -> int:
        """How long it was, at least, when the clock was last seen to show less than this."""
        at = bisect_left(self._walls, wall)
        return self._lengths[at - 1] if at else 0
