"""The board: seen by every process that maps it, whoever of them dies."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable

import pytest

from windlass.errors import InvalidOption
from windlass.worker.ipc import slot_table as boards
from windlass.worker.ipc.slot_table import Board, NotABoard, Running, now_ms


def test_begin_and_end() -> None:
    board = Board.create(4)
    assert (board.entries, board.running(), board.finished, board.ticked) == (4, [], 0, 0)
    before = now_ms()
    board.begin(2, 2**60, before + 500)
    board.begin(0, 7)
    free, timed = board.running()
    assert free == Running(0, 7, 0, free.started)
    assert timed == Running(2, 2**60, before + 500, timed.started)
    assert before <= timed.started <= now_ms()
    assert board.overdue(before + 499) == []
    assert board.overdue(before + 500) == [timed]
    board.end(2)
    assert board.running() == [free]
    assert board.finished == 1
    board.tick()
    assert before <= board.ticked <= now_ms()
    board.close()
    board.close()


def in_another_process(work: Callable[[], None]) -> int:
    """Fork, run it there, and say how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_outlives_its_writer() -> None:
    board = Board.create(3)

    def write_and_die() -> None:
        attached = Board.attach(os.dup(board.fd))
        attached.begin(1, 99, 12345)
        attached.end(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_another_process(write_and_die) == -signal.SIGKILL
    (job,) = board.running()
    assert (job.slot, job.fence, job.deadline) == (1, 99, 12345)
    assert board.finished == 1
    board.close()


def test_a_reader_sees_whole_entries_only() -> None:
    board = Board.create(1)

    def write() -> None:
        for fence in range(1, 200_000):
            board.begin(0, fence, fence)
            board.end(0)
        os._exit(0)

    pid = os.fork()
    if pid == 0:
        write()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        for job in board.running():
            assert job.deadline == job.fence
    assert board.finished == 199_999
    board.close()


def test_nobody_can_cut_it_off() -> None:
    board = Board.create(1)
    if hasattr(os, "memfd_create"):
        with pytest.raises(PermissionError):
            os.ftruncate(board.fd, 0)
    assert not os.get_inheritable(board.fd)
    board.close()


def test_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    board = Board.create(2)
    board.begin(1, 5)
    other = Board.attach(os.dup(board.fd))
    board.close()
    assert other.running()[0].fence == 5
    other.close()


def test_what_is_no_board() -> None:
    for content in (b"", bytes(1000)):
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()
            with pytest.raises(NotABoard, match="pass the `fd` of a Board"):
                Board.attach(file.fileno())
    with pytest.raises(InvalidOption):
        Board.create(0)


def test_begin_and_end_are_cheap(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board.create(8)
    rounds = 100_000
    best = 1e9
    for _ in range(5):
        began = time.perf_counter()
        for fence in range(1, rounds):
            board.begin(3, fence, 1)
            board.end(3)
        best = min(best, (time.perf_counter() - began) / rounds)
    with capsys.disabled():
        print(f"\nboard: begin + end {best * 1e6:.2f} µs")
    assert best < 4e-6, "far from the 1 µs that it takes on a quiet machine"
    assert len(board.words) == boards.FIRST + boards.WIDTH * 8
    board.close()
