"""The two ends of the service: lines from standard input and to standard output. Neither blocks the event loop."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable

from msgspec import Struct

from windlass.stdio.messages import MOST_BYTES

_CHUNK = 65_536
_ALWAYS_FITS = 4096  # what a pipe that is ready takes without blocking (PIPE_BUF)
_AGAIN = 0.005  # seconds
_BATCHES = 8  # read ahead: who writes faster than we work has to wait


class TooLong(Struct, frozen=True):
    """A line that was too long to be kept, and its size."""

    size: int


class Splitter:
    """Makes lines of pieces. Of a line that is too long only its length is kept."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._rest = bytearray()
        self._dropped = 0

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that end in this piece."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """What came behind the last line's end."""
        return [self._take()] if self._rest or self._dropped else []

    def _add(self, piece: bytes) -> None:
        if self._dropped or len(self._rest) + len(piece) > self._most:
            self._dropped += len(self._rest) + len(piece)
            self._rest.clear()
        else:
            self._rest += piece

    def _take(self) -> bytes | TooLong:
        line = TooLong(self._dropped) if self._dropped else bytes(self._rest)
        self._rest.clear()
        self._dropped = 0
        return line


class Batch(Struct, frozen=True):
    """Some lines that were read at once."""

    lines: list[bytes | TooLong]


class Lines:
    """The lines of a file descriptor, read by a thread: a file, a pipe and a terminal are all the same to it.

    Batches are delivered on the event loop, and None at the end. Each must be told to be `done` with.
    """

    def __init__(self, fd: int, deliver: Callable[[Batch | None], None]) -> None:
        self._fd = fd
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(_BATCHES)
        threading.Thread(target=self._read, name="windlass-stdin", daemon=True).start()

    def done(self) -> None:
        """A batch was handled: there is room for another."""
        self._room.release()

    def _read(self) -> None:
        splitter = Splitter()
        data = b"-"
        while data:
            try:
                data = os.read(self._fd, _CHUNK)
            except OSError:
                data = b""
            lines = splitter.feed(data) if data else splitter.end()
            if lines:
                self._room.acquire()
                self._hand_over(Batch(lines))
        self._hand_over(None)

    def _hand_over(self, batch: Batch | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch)
        except RuntimeError:
            pass  # the service has ended before its input


class Output:
    """Lines to a file descriptor. Who reads them slowly makes the service wait, but not its event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def write(self, line: bytes) -> None:
        """The whole line; BrokenPipeError when nobody reads any more."""
        view = memoryview(line)
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while view:
            if not poll.poll(0):
                await asyncio.sleep(_AGAIN)
                continue
            try:
                view = view[os.write(self._fd, view[:_ALWAYS_FITS]) :]
            except BlockingIOError:
                await asyncio.sleep(_AGAIN)
