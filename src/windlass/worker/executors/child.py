"""A child: runs one job at a time, from its prefetch or as frames on its socket ask, until these end.
Nothing that a job does to Python can end it; what a job does to the process (a signal, `os._exit`) may.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import msgspec

from windlass.errors import InvalidOption
from windlass.worker.ipc import frames
from windlass.worker.ipc.frames import FrameError, Header
from windlass.worker.ipc.prefetch import open_outlet, take
from windlass.worker.ipc.slot_table import SlotTable

Perform = Callable[[Any, Header, bytes, "Link"], tuple[Header, bytes]]

RUN: Header = {"run": "a lease"}
LONGEST_MESSAGE = 16 * 1024
LONGEST_TRACEBACK = 128 * 1024


class Link:
    """The way back to the runner while a job runs, for any thread. `slot_table` is there if one was handed over."""

    def __init__(self, sock: socket.socket, lock: threading.Lock, slot_table: SlotTable | None) -> None:
        self.slot_table = slot_table
        self._sock = sock
        self._lock = lock
        self._pid = os.getpid()
        self._open = True

    def send(self, header: Header, body: bytes = b"") -> bool:
        """Send a frame such as {"progress": 0.5}. False if it is too late: the job has ended, or nobody listens."""
        if self._pid != os.getpid():  # a fork of the job must not talk in between; and the lock may be held for ever
            return False
        with self._lock:
            return self._open and self._send(header, body)

    def _send(self, header: Header, body: bytes) -> bool:
        try:
            frames.send(self._sock, header, body)
        except OSError:
            return False
        return True

    def _end(self, header: Header, body: bytes) -> bool:
        """The last word on this job: no thread that it left behind can speak after it."""
        with self._lock:
            self._open = False
            return self._send(header, body)


def begin(app: object, arguments: Mapping[str, Any], fds: Mapping[str, int]) -> None:
    """What the forkserver calls in a new child: `perform` among the arguments names the function that runs a job."""
    perform: Perform = find_function(arguments["perform"])
    slot_table = SlotTable.attach(fds["slot_table"]) if "slot_table" in fds else None
    prefetch = open_outlet(fds["prefetch"]) if "prefetch" in fds else None
    serve(socket.socket(fileno=fds["frames"]), app, perform, slot_table, prefetch)


def find_function(name: str) -> Any:
    """The function of a name such as `package.module:function` or `package.module.function`."""
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidOption(f"there is no function {name!r}: {error}") from error


def serve(
    sock: socket.socket,
    app: object,
    perform: Perform,
    slot_table: SlotTable | None = None,
    prefetch: socket.socket | None = None,
) -> None:
    """Run job after job, until the runner closes the socket or is gone."""
    lock = threading.Lock()
    while (frame := _receive(sock) if prefetch is None else _take(prefetch, sock)) is not None:
        header, body = frame
        if "run" not in header:
            raise FrameError(f"a child can only be asked to run a job; it was sent {sorted(header)}")
        link = Link(sock, lock, slot_table)
        answer = _run(app, perform, header, body, link)
        if not _answer(link, answer):
            return


def _take(prefetch: socket.socket, sock: socket.socket) -> tuple[Header, bytes] | None:
    job = take(prefetch)
    if job is None:
        return None
    return (RUN, job) if job else _receive(sock)


def _receive(sock: socket.socket) -> tuple[Header, bytes] | None:
    try:
        return frames.receive(sock)
    except ConnectionError:
        return None


def _run(app: object, perform: Perform, header: Header, body: bytes, link: Link) -> tuple[Header, bytes]:
    pid = os.getpid()
    try:
        return perform(app, header, body, link)
    except BaseException as error:
        return _raised(error), b""
    finally:
        # A job that forked may come out of here twice. The copy has no business with the runner.
        if pid != os.getpid():
            os._exit(0)


def _answer(link: Link, answer: tuple[Header, bytes]) -> bool:
    try:
        header, body = answer
        return link._end(header, body)
    except (FrameError, TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        # Nothing of it was sent: a frame is made whole before its first byte goes out.
        return link._end(_raised(error), b"")


def _raised(error: BaseException) -> Header:
    kind = type(error)
    return {
        "end": "raised",
        "type": kind.__qualname__,
        "module": kind.__module__,
        "message": _shortened(_said(lambda: str(error)), LONGEST_MESSAGE),
        "traceback": _shortened(_said(lambda: "".join(traceback.format_exception(error))), LONGEST_TRACEBACK),
    }


def _said(say: Callable[[], str]) -> str:
    # An error's own text is the user's code as well, and may fail or be no text at all.
    try:
        return say().encode("utf-8", "backslashreplace").decode()
    except BaseException as error:
        return f"(it cannot be shown: {type(error).__name__})"


def _shortened(text: str, limit: int) -> str:
    # The end of a traceback says more than its middle.
    return text if len(text) <= limit else f"{text[: limit // 4]}\n[…]\n{text[-limit * 3 // 4 :]}"


# -- standard output -----------------------------------------------------------------------------

PATIENCE = 2.0
_ALWAYS_FITS = 4096  # what a pipe that is ready takes without blocking (PIPE_BUF)


class Output(io.RawIOBase):
    """Standard output or error that never holds up a job for good and never fails it: when nobody reads, it waits
    a while once and then drops what does not fit; when nobody is there, all is dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._dropped = 0

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _ALWAYS_FITS):
            self._write_or_drop(view[start : start + _ALWAYS_FITS])
        return len(view)

    def _write_or_drop(self, piece: memoryview) -> None:
        try:
            if not self._is_ready(0.0 if self._dropped else PATIENCE):
                self._dropped += len(piece)
                return
            if self._dropped:
                note, self._dropped = f"\n[windlass: {self._dropped:,} bytes were dropped, nobody read them]\n", 0
                os.write(self._fd, note.encode())
                self._write_or_drop(piece)
                return
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError as error:
            if error.errno == errno.EAGAIN:  # somebody made the pipe non-blocking, and somebody else filled it
                self._dropped += len(piece)

    def _is_ready(self, patience: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(patience * 1000))


class _Unclosable(io.BufferedWriter):
    """A job that closes its output would otherwise break every `print` of the jobs after it."""

    def close(self) -> None:
        self.flush()


def take_over_output() -> None:
    """Put `Output` under `sys.stdout` and `sys.stderr`. Done before the app is imported: its log handlers keep
    the streams that they find, and these stay good in every fork."""
    sys.stdout = _text_on(1)
    sys.stderr = _text_on(2)


def _text_on(fd: int) -> TextIO:
    # Not the default buffer size: what is larger than a line goes out in pieces that a ready pipe takes.
    buffered = _Unclosable(Output(fd), _ALWAYS_FITS)
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def flush_output() -> None:
    """Let nothing be written twice by a fork, nor be lost by `os._exit`."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # the app put something else in its place, and that is its own affair
