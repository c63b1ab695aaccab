"""Forwards the output of a worker's processes, and keeps the last lines for crash reports."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable
from time import monotonic

MAX_LAST_LINES = 20  # enough for the end of a traceback in a crash report
STALLED_READER_TIMEOUT_S = 2.0  # then output is dropped: jobs that print must not wait longer for a stalled reader
MAX_LINE_BYTES = 1024 * 1024  # a longer line is cut in two, so that a job cannot fill the supervisor's memory
_CHUNK_BYTES = 65_536  # the default capacity of a Linux pipe
_PIPE_BUF_BYTES = 4096  # a pipe that polls as writable takes this much without blocking (PIPE_BUF)
_RETRY_S = 0.05  # between two writes to a full pipe: short against the heartbeat, long enough not to spin


class NonBlockingStderr:
    """Standard error for a process that must never block: the supervisor, whose heartbeats would stop.

    It buffers output that the reader does not take at once, and drops it after STALLED_READER_TIMEOUT_S. The jobs that
    print wait meanwhile.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._pending = bytearray()
        self._stuck_since: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether output is still buffered, so that producers must wait."""
        return bool(self._pending)

    def write(self, data: str | bytes) -> None:
        """Buffer the data and write as much as the reader takes now."""
        self._pending += data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
        self.flush()

    def flush(self) -> None:
        """Write as much of the buffer as the reader takes now. Never blocks."""
        try:
            while self._pending and self._is_ready():
                del self._pending[: os.write(self._fd, self._pending[:_PIPE_BUF_BYTES])]
                self._stuck_since = None
        except BlockingIOError:
            pass  # another process made the pipe non-blocking
        except OSError:
            self._pending.clear()  # the reader is gone, and the worker goes on without it
        if self._pending:
            self._stuck_since = self._stuck_since or monotonic()
            if monotonic() - self._stuck_since > STALLED_READER_TIMEOUT_S:
                self._pending.clear()

    def _is_ready(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))


STDERR = NonBlockingStderr()


class CapturedOutput:
    """A pipe for the output of one process. The process gets `writer`; the event loop reads the other end.

    `shown` says what to write to standard error for a line, and `meant` what the line is in a crash report.
    """

    def __init__(self, shown: Callable[[bytes], bytes], meant: Callable[[bytes], bytes]) -> None:
        self._shown = shown
        self._meant = meant
        self._read, self.writer = os.pipe()
        os.set_blocking(self._read, False)
        self._lines: deque[bytes] = deque(maxlen=MAX_LAST_LINES)
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._on_readable)

    def close_writer(self) -> None:
        """Close our copy of the writer once the process has its own, so that the pipe ends with the process."""
        os.close(self.writer)

    @property
    def last(self) -> tuple[str, ...]:
        """The last lines of output."""
        lines = [*self._lines, self._partial] if self._partial else list(self._lines)
        return tuple(self._meant(line).decode("utf-8", "replace")[:500] for line in lines[-MAX_LAST_LINES:])

    def _on_readable(self) -> None:
        try:
            data = os.read(self._read, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if self._partial and (not data or len(self._partial) > MAX_LINE_BYTES):
            lines, self._partial = [*lines, self._partial], b""
        self._lines.extend(lines)
        STDERR.write(b"".join(map(self._shown, lines)))
        if not data:
            self.close()
            return
        if STDERR.is_full:
            self._loop.remove_reader(self._read)
            self._loop.call_later(_RETRY_S, self._read_again)

    def _read_again(self) -> None:
        STDERR.flush()
        if self._read < 0:
            return
        if STDERR.is_full:
            self._loop.call_later(_RETRY_S, self._read_again)
        else:
            self._loop.add_reader(self._read, self._on_readable)

    def drain(self) -> None:
        """Read the rest of the pipe after the process has ended: its last lines explain a crash best."""
        while self._read >= 0:
            before = self._read
            try:
                if not os.get_blocking(before) and not _has_data(before):
                    return
            except OSError:
                return
            self._on_readable()

    def close(self) -> None:
        """Stop reading."""
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1


def _has_data(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
