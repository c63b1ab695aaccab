"""The slot table: every process that maps it can read it, even if the others die."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable

import pytest

from windlass.errors import InvalidOption
from windlass.worker.ipc import slot_table as slot_tables
from windlass.worker.ipc.slot_table import NotASlotTable, Running, SlotTable, now_ms


def test_begin_and_end() -> None:
    slot_table = SlotTable.create(4)
    assert (slot_table.entries, slot_table.running(), slot_table.finished, slot_table.loop_alive_at) == (4, [], 0, 0)
    before = now_ms()
    slot_table.begin(2, 2**60, before + 500)
    slot_table.begin(0, 7)
    free, timed = slot_table.running()
    assert free == Running(0, 7, 0, free.started)
    assert timed == Running(2, 2**60, before + 500, timed.started)
    assert before <= timed.started <= now_ms()
    assert slot_table.overdue(before + 499) == []
    assert slot_table.overdue(before + 500) == [timed]
    slot_table.end(2)
    assert slot_table.running() == [free]
    assert slot_table.finished == 1
    slot_table.mark_loop_alive()
    assert before <= slot_table.loop_alive_at <= now_ms()
    slot_table.close()
    slot_table.close()


def in_another_process(work: Callable[[], None]) -> int:
    """Run a function in a fork, and return its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_table_outlives_its_writer() -> None:
    slot_table = SlotTable.create(3)

    def write_and_die() -> None:
        attached = SlotTable.attach(os.dup(slot_table.fd))
        attached.begin(1, 99, 12345)
        attached.end(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_another_process(write_and_die) == -signal.SIGKILL
    (job,) = slot_table.running()
    assert (job.slot, job.fence, job.deadline) == (1, 99, 12345)
    assert slot_table.finished == 1
    slot_table.close()


def test_a_reader_sees_only_complete_entries() -> None:
    slot_table = SlotTable.create(1)

    def write() -> None:
        for fence in range(1, 200_000):
            slot_table.begin(0, fence, fence)
            slot_table.end(0)
        os._exit(0)

    pid = os.fork()
    if pid == 0:
        write()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        for job in slot_table.running():
            assert job.deadline == job.fence
    assert slot_table.finished == 199_999
    slot_table.close()


def test_the_table_cannot_be_truncated() -> None:
    slot_table = SlotTable.create(1)
    if hasattr(os, "memfd_create"):
        with pytest.raises(PermissionError):
            os.ftruncate(slot_table.fd, 0)
    assert not os.get_inheritable(slot_table.fd)
    slot_table.close()


def test_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    slot_table = SlotTable.create(2)
    slot_table.begin(1, 5)
    other = SlotTable.attach(os.dup(slot_table.fd))
    slot_table.close()
    assert other.running()[0].fence == 5
    other.close()


def test_descriptors_that_are_no_slot_table() -> None:
    for content in (b"", bytes(1000)):
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()
            with pytest.raises(NotASlotTable, match="pass the `fd` of a SlotTable"):
                SlotTable.attach(file.fileno())
    with pytest.raises(InvalidOption):
        SlotTable.create(0)


def test_its_size_is_that_of_its_slots() -> None:
    slot_table = SlotTable.create(8)
    assert len(slot_table.words) == slot_tables.FIRST + slot_tables.WIDTH * 8
    slot_table.close()
