"""Lines from standard input, and to standard output. Neither blocks the event loop."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable

from msgspec import Struct

from windlass.stdio.messages import MAX_LINE_BYTES

_CHUNK_BYTES = 65_536
_PIPE_BUF_BYTES = 4096  # a writable pipe takes these without blocking
_RETRY_INTERVAL_S = 0.005
_MAX_BATCHES_AHEAD = 8  # a writer that is faster than the service must wait


class TooLong(Struct, frozen=True):
    """The size of a line that was too long to keep."""

    size: int


class Splitter:
    """Joins pieces to lines. Of a line that is too long, it keeps only the size."""

    def __init__(self, most: int = MAX_LINE_BYTES) -> None:
        self._most = most
        self._rest = bytearray()
        self._dropped = 0

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """Add a piece. Returns the lines that end in it."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """The last line, if it has no line break."""
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
    """Lines that were read at once."""

    lines: list[bytes | TooLong]


class Lines:
    """The lines of a file descriptor: a file, a pipe or a terminal. A thread reads them.

    `deliver` gets the batches on the event loop, then None. Call `done` after each batch.
    """

    def __init__(self, fd: int, deliver: Callable[[Batch | None], None]) -> None:
        self._fd = fd
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(_MAX_BATCHES_AHEAD)
        threading.Thread(target=self._read, name="windlass-stdin", daemon=True).start()

    def done(self) -> None:
        """A batch is handled: the thread may read another."""
        self._room.release()

    def _read(self) -> None:
        splitter = Splitter()
        data = b"-"
        while data:
            try:
                data = os.read(self._fd, _CHUNK_BYTES)
            except OSError:
                data = b""
            lines = splitter.feed(data) if data else splitter.end()
            if lines:
                self._room.acquire()
                self._deliver_on_loop(Batch(lines))
        self._deliver_on_loop(None)

    def _deliver_on_loop(self, batch: Batch | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch)
        except RuntimeError:
            pass  # the service has ended, and its event loop is closed


class OutputPipe:
    """Writes lines to a file descriptor. A slow reader makes `write` wait, but does not block the event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def write(self, line: bytes) -> None:
        """Write the whole line. Raises BrokenPipeError if the reader has closed the pipe."""
        view = memoryview(line)
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while view:
            if not poll.poll(0):
                await asyncio.sleep(_RETRY_INTERVAL_S)
                continue
            try:
                view = view[os.write(self._fd, view[:_PIPE_BUF_BYTES]) :]
            except BlockingIOError:
                await asyncio.sleep(_RETRY_INTERVAL_S)
