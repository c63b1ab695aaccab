"""A child process: it answers every job, with any exception."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from tests.support.waiting import LIMIT_S
from tests.worker import sample_app
from tests.worker.test_forkserver import SAMPLE, Child
from windlass.worker.executors import child
from windlass.worker.ipc import frames
from windlass.worker.supervisor.forkserver import ForkServer

# All tests share one forkserver; each test forks a child of its own.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forkserver() -> AsyncIterator[ForkServer]:
    async with await ForkServer.open(SAMPLE) as forkserver:
        yield forkserver


async def test_every_exception_becomes_an_answer(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        for what, kind in (("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt"), ("value", "ValueError")):
            header, _ = await one.ask({"run": "raise", "what": what})
            assert (header["end"], header["type"]) == ("raised", kind)
            assert "job_raise" in header["traceback"]
        assert header["message"] == "no good"
        header, _ = await one.ask({"run": "raise", "what": "mute"})
        assert (header["type"], header["message"]) == ("Mute", "(its text cannot be shown: RuntimeError)")
        assert (await one.ask({"run": "echo"}, b"still here")) == ({"end": "done"}, b"still here")


async def test_an_answer_that_cannot_be_sent(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        header, _ = await one.ask({"run": "unsendable"})
        assert (header["end"], header["type"]) == ("raised", "TypeError")
        header, _ = await one.ask({"run": "huge"})
        assert (header["end"], header["type"]) == ("raised", "FrameError")
        assert (await one.ask({"run": "echo"}))[0] == {"end": "done"}


async def test_progress_from_many_threads(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        await one.stream.send({"run": "progress"})
        seen: dict[int, list[int]] = {part: [] for part in range(4)}
        while "progress" in (header := await one.hear()):
            seen[header["part"]].append(header["progress"])
        assert seen == {part: list(range(50)) for part in range(4)}
        assert header == {"end": "done"}
        # A thread that a job left behind cannot send frames for the next job.
        assert (await one.ask({"run": "late_word"}))[0] == {"sent": False}


async def test_a_job_may_fork(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        for _ in range(5):
            assert (await one.ask({"run": "fork"}))[0] == {"end": "original", "codes": [0, 0]}
        assert (await one.ask({"run": "echo"}, b"1"))[1] == b"1"


async def test_a_child_ends_when_its_socket_closes(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        await one.ask({"run": "echo"})
        one.stream.close()
        ending = await asyncio.wait_for(one.forked.exited, LIMIT_S)
        assert (ending.code, ending.signal) == (0, None)


async def test_a_child_exits_with_a_message_on_an_unknown_frame(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        await one.stream.send({"dance": 1})
        assert (await asyncio.wait_for(one.forked.exited, LIMIT_S)).code == 70
        assert b"a child accepts only frames with 'run', and received ['dance']" in await one.printed()


async def test_a_flood_of_output_for_a_slow_reader(forkserver: ForkServer) -> None:
    async with Child(forkserver, reading=False) as one:
        await one.stream.send({"run": "print", "lines": 10_500})
        whole = bytearray()
        while len(whole) < 1_050_000:
            whole += await asyncio.to_thread(os.read, one.output, 16_384)
            await asyncio.sleep(0.001)  # a slow reader
        assert "took" in await one.hear()
        assert whole == (b"x" * 99 + b"\n") * 10_500


async def test_output_with_a_stalled_reader(forkserver: ForkServer) -> None:
    async with Child(forkserver, reading=False) as one:
        header, _ = await one.ask({"run": "print", "lines": 10_500})
        assert header["took"] >= child.STALLED_READER_TIMEOUT_S
        await one.ask({"run": "print", "lines": 10_500})
        await asyncio.to_thread(os.read, one.output, 65_536)
        await one.ask({"run": "print", "lines": 1})
        assert b"bytes of output dropped, reader stalled" in await asyncio.to_thread(os.read, one.output, 65_536)


async def test_output_waits_once_for_a_stalled_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Stalled:
        def register(self, fd: int, events: int) -> None: ...

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            waits.append(milliseconds)
            return []

    monkeypatch.setattr(child, "select", SimpleNamespace(poll=Stalled, POLLOUT=select.POLLOUT))
    output = child.NonBlockingOutput(-1)
    for _ in range(100):
        output.write(b"x")
    assert waits == [child.STALLED_READER_TIMEOUT_S * 1000] + [0.0] * 99


async def test_output_with_a_closed_reader(forkserver: ForkServer) -> None:
    async with Child(forkserver, reading=False) as one:
        os.close(one.output)
        one.output = -1
        assert "took" in (await one.ask({"run": "print", "lines": 1000}))[0]
        assert (await one.ask({"run": "close_output"}))[0] == {"end": "done"}


async def test_a_job_cannot_close_the_output(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        await one.ask({"run": "close_output"})
        one.stream.close()
        assert await one.printed() == b"still there\n"


async def test_serve_needs_no_forkserver() -> None:
    here, there = socket.socketpair()
    app: Any = sample_app.app
    thread = threading.Thread(target=child.serve, args=(there, app, sample_app.run_job))
    thread.start()
    frames.send(here, {"run": "echo"}, b"x")
    assert frames.receive(here) == ({"end": "done"}, b"x")
    here.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    there.close()
