"""A table in shared memory: which job runs in which slot, and until when.

The runner writes it and the supervisor reads it. So the supervisor knows what ran when a process dies, and sees when
the runner's event loop is blocked.

    words of 8 bytes
    0 magic   1 entries   2 loop alive at (ms)   3 finished   4 safe until (ms)   5…7 spare
    8 + 4·slot:   fence (0 = none)   deadline (ms, 0 = none)   started (ms)   spare

Times are CLOCK_MONOTONIC in milliseconds, the same in every process of a machine. The runner is the only writer. It
writes the fence last when a job begins and first when it ends, so an entry with a fence is complete. Word 4 alone is
written by the supervisor, by the clock that measures leases (`boot_clock.awake`).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterable
from time import monotonic_ns
from typing import NamedTuple, Self

from windlass.errors import InvalidOption, WindlassError

# Indexes into `SlotTable.words`.
LOOP_ALIVE_AT = 2
FINISHED = 3
SAFE_UNTIL = 4
FIRST = 8
WIDTH = 4
FENCE, DEADLINE, STARTED = range(3)

FILE_NAME = "windlass-slot-table"  # the name of the memory in /proc
_MAGIC = int.from_bytes(b"wndlass1", "big")
_MAX_ENTRIES = 65_536  # 2 MB of shared memory: far more slots than a worker can use


class NotASlotTable(WindlassError):
    """The file descriptor does not belong to a slot table."""


class Running(NamedTuple):
    """A running job. `deadline` 0 means none."""

    slot: int
    fence: int
    deadline: int
    started: int


def now_ms() -> int:
    """Return the time by the slot table's clock."""
    return monotonic_ns() // 1_000_000


class SlotTable:
    """A mapping of the table. The table lives as long as any process maps it or holds its descriptor."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, size)
        self.words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, entries: int) -> Self:
        """Create a table with empty slots. Its descriptor is close-on-exec; pass it on with a frame."""
        if not 0 < entries <= _MAX_ENTRIES:
            raise InvalidOption(f"a slot table has 1 to {_MAX_ENTRIES:,} entries, not {entries}")
        size = (FIRST + WIDTH * entries) * 8
        slot_table = cls(_shared_file(size), size)
        slot_table.words[1] = entries
        slot_table.words[0] = _MAGIC
        return slot_table

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map a table from another process. The table owns the descriptor from now on."""
        size = os.fstat(fd).st_size
        if size < (FIRST + WIDTH) * 8:
            raise NotASlotTable(
                f"file descriptor {fd} has {size} bytes and is not a slot table: pass the `fd` of a SlotTable"
            )
        slot_table = cls(fd, size)
        if slot_table.words[0] != _MAGIC or (FIRST + WIDTH * slot_table.entries) * 8 != size:
            slot_table.words.release()
            slot_table._map.close()
            raise NotASlotTable(f"file descriptor {fd} does not hold a slot table: pass the `fd` of a SlotTable")
        return slot_table

    @property
    def entries(self) -> int:
        """The number of slots."""
        return self.words[1]

    @property
    def finished(self) -> int:
        """The number of jobs that have ended."""
        return self.words[FINISHED]

    @property
    def loop_alive_at(self) -> int:
        """When the runner's event loop last ran; 0 before the first time."""
        return self.words[LOOP_ALIVE_AT]

    def mark_loop_alive(self) -> None:
        """Record that the event loop runs."""
        self.words[LOOP_ALIVE_AT] = monotonic_ns() // 1_000_000

    @property
    def safe_until(self) -> float:
        """Until when the leases are safe, by `awake` in seconds; 0 before the supervisor has set it."""
        return self.words[SAFE_UNTIL] / 1000

    def set_safe_until(self, seconds: float) -> None:
        """Set until when jobs may go on without a sign from the supervisor."""
        self.words[SAFE_UNTIL] = int(seconds * 1000)

    def begin(self, slot: int, fence: int, deadline_ms: int = 0, started_ms: int = 0) -> None:
        """Record that a job begins in a slot, by default now."""
        words = self.words
        place = FIRST + WIDTH * slot
        words[place + 1] = deadline_ms
        words[place + 2] = started_ms or now_ms()
        words[place] = fence

    def end(self, slot: int) -> None:
        """Record that the job in a slot has ended."""
        words = self.words
        words[FIRST + WIDTH * slot] = 0
        words[FINISHED] += 1

    def running(self) -> list[Running]:
        """Return the running jobs. An entry that changes during the read is read again."""
        return self._read_those(fence > 0 for fence in self._fences())

    def overdue(self, now: int) -> list[Running]:
        """Return the jobs that run past their deadline."""
        deadlines = self.words[FIRST + 1 :: WIDTH].tolist()
        late = (fence > 0 and 0 < deadline <= now for fence, deadline in zip(self._fences(), deadlines, strict=True))
        return [each for each in self._read_those(late) if 0 < each.deadline <= now]

    def _fences(self) -> list[int]:
        return self.words[FIRST::WIDTH].tolist()  # one copy of all slots: the supervisor reads 20 times a second

    def _read_those(self, wanted: Iterable[bool]) -> list[Running]:
        found = (self._read(slot) for slot, is_wanted in enumerate(wanted) if is_wanted)
        return [each for each in found if each.fence]

    def close(self) -> None:
        """Unmap the table and close the descriptor. Other processes keep theirs."""
        if self.fd >= 0:
            self.words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def _read(self, slot: int) -> Running:
        words = self.words
        place = FIRST + WIDTH * slot
        while True:
            entry = Running(slot, words[place], words[place + 1], words[place + 2])
            if words[place] == entry.fence:
                return entry


def _shared_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        # Sealed: a job that truncated the file would kill every process that maps it with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    with tempfile.TemporaryFile(prefix=f"{FILE_NAME}-") as file:
        fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
