"""What the processes of a worker print: passed on as it comes, and the last lines kept in case they die."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque

LINES = 20
_CHUNK = 65_536


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
        _pass_on(lines)

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
    import select

    return bool(select.select([fd], [], [], 0)[0])


def _pass_on(lines: list[bytes]) -> None:
    try:
        sys.stderr.buffer.write(b"".join(line + b"\n" for line in lines))
        sys.stderr.buffer.flush()
    except (OSError, ValueError):
        pass  # nobody reads us: a worker goes on all the same
