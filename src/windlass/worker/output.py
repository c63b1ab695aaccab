"""What the processes of a worker print: passed on as it comes, and the last lines kept in case they die."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from time import monotonic

LINES = 20
PATIENCE = 2.0  # seconds for which a reader of our own output is waited for, not counting us: we never wait
_CHUNK = 65_536
_ALWAYS_FITS = 4096  # what a pipe that is ready takes without blocking (PIPE_BUF)
_AGAIN = 0.05


class Outlet:
    """Our own standard error, for a process that must never wait: the supervisor, whose heartbeats would stop with it.

    What is not taken at once is kept, and the jobs that print it have to wait; after a while it is dropped.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._kept = bytearray()
        self._stuck_since: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether something is still to be written: bring no more."""
        return bool(self._kept)

    def write(self, data: str | bytes) -> None:
        """Write what can be written now."""
        self._kept += data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
        self.flush()

    def flush(self) -> None:
        """Write on; never waits."""
        try:
            while self._kept and self._is_ready():
                del self._kept[: os.write(self._fd, self._kept[:_ALWAYS_FITS])]
                self._stuck_since = None
        except BlockingIOError:
            pass  # somebody made it non-blocking
        except OSError:
            self._kept.clear()  # nobody is there: a worker goes on all the same
        if self._kept:
            self._stuck_since = self._stuck_since or monotonic()
            if monotonic() - self._stuck_since > PATIENCE:
                self._kept.clear()

    def _is_ready(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))


OUTLET = Outlet()


class Output:
    """A pipe for the standard output and error of one process. `end` is for the process; ours is read on the loop."""

    def __init__(self) -> None:
        self._read, self.end = os.pipe()
        os.set_blocking(self._read, False)
        self._lines: deque[bytes] = deque(maxlen=LINES)
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._on_readable)

    def handed_over(self) -> None:
        """The process has its end: with ours closed, the pipe ends when it does."""
        os.close(self.end)

    @property
    def last(self) -> tuple[str, ...]:
        """The last lines."""
        lines = [*self._lines, self._rest] if self._rest else list(self._lines)
        return tuple(line.decode("utf-8", "replace")[:500] for line in lines[-LINES:])

    def _on_readable(self) -> None:
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_CHUNK:]
        self._lines.extend(lines)
        OUTLET.write(b"".join(line + b"\n" for line in lines))
        if OUTLET.is_full:
            self._loop.remove_reader(self._read)
            self._loop.call_later(_AGAIN, self._read_again)

    def _read_again(self) -> None:
        OUTLET.flush()
        if self._read < 0:
            return
        if OUTLET.is_full:
            self._loop.call_later(_AGAIN, self._read_again)
        else:
            self._loop.add_reader(self._read, self._on_readable)

    def drain(self) -> None:
        """Read what is still in the pipe: the process is gone, and its last words matter most."""
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
