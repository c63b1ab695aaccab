"""A child process: runs one job at a time, from its prefetch or its socket, until both are closed.

No exception of a job ends the child. Only what a job does to the process does, such as a signal or `os._exit`.
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
from windlass.worker.logs import LogOptions, set_up_process

RunJob = Callable[[Any, Header, bytes, "Link"], tuple[Header, bytes]]

RUN: Header = {"run": True}
MAX_MESSAGE_CHARS = 16 * 1024  # leaves the header far below MAX_HEADER_BYTES
MAX_TRACEBACK_CHARS = 128 * 1024  # a longer one, such as that of a RecursionError, loses its middle


class Link:
    """Sends frames to the runner while a job runs, from any thread."""

    def __init__(self, sock: socket.socket, lock: threading.Lock) -> None:
        self._sock = sock
        self._lock = lock
        self._pid = os.getpid()
        self._open = True

    def send(self, header: Header, body: bytes = b"") -> bool:
        """Send a frame such as {"progress": 0.5}. Returns False if the job has ended or the runner is gone."""
        if self._pid != os.getpid():  # a fork of the job must not send frames, and its copy of the lock may be held
            return False
        with self._lock:
            return self._open and self._send(header, body)

    def _send(self, header: Header, body: bytes) -> bool:
        try:
            frames.send(self._sock, header, body)
        except OSError:
            return False
        return True

    def _send_last(self, header: Header, body: bytes) -> bool:
        """Send the last frame of this job. Threads that the job left behind cannot send after it."""
        with self._lock:
            self._open = False
            return self._send(header, body)


def begin(app: object, arguments: Mapping[str, Any], fds: Mapping[str, int]) -> None:
    """Run a new child; the forkserver calls this. `arguments["run_job"]` names the function that runs a job."""
    if "logs" in arguments:
        set_up_process(msgspec.convert(arguments["logs"], LogOptions))
    run_job: RunJob = find_function(arguments["run_job"])
    prefetch = open_outlet(fds["prefetch"]) if "prefetch" in fds else None
    serve(socket.socket(fileno=fds["frames"]), app, run_job, prefetch)


def find_function(name: str) -> Any:
    """Import the function with a name such as `package.module:function` or `package.module.function`."""
    module, _, attribute = name.rpartition(":" if ":" in name else ".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidOption(f"no function {name!r}: {error}") from error


def serve(
    sock: socket.socket,
    app: object,
    run_job: RunJob,
    prefetch: socket.socket | None = None,
) -> None:
    """Run job after job until the runner closes the socket or dies."""
    lock = threading.Lock()
    while (frame := _receive(sock) if prefetch is None else _take(prefetch, sock)) is not None:
        header, body = frame
        if "run" not in header:
            raise FrameError(f"a child accepts only frames with 'run', and received {sorted(header)}")
        link = Link(sock, lock)
        answer = _run(app, run_job, header, body, link)
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


def _run(app: object, run_job: RunJob, header: Header, body: bytes, link: Link) -> tuple[Header, bytes]:
    pid = os.getpid()
    try:
        return run_job(app, header, body, link)
    except BaseException as error:
        return _error_header(error), b""
    finally:
        # A job may fork, and then the copy comes through here too. It must not answer the runner.
        if pid != os.getpid():
            os._exit(0)


def _answer(link: Link, answer: tuple[Header, bytes]) -> bool:
    try:
        header, body = answer
        return link._send_last(header, body)
    except (FrameError, TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        # No byte was sent: the whole frame is built before the first byte goes out.
        return link._send_last(_error_header(error), b"")


def _error_header(error: BaseException) -> Header:
    return {
        "end": "raised",
        "type": type(error).__qualname__,
        "message": _shortened(_safe_text(lambda: str(error)), MAX_MESSAGE_CHARS),
        "traceback": _shortened(_safe_text(lambda: "".join(traceback.format_exception(error))), MAX_TRACEBACK_CHARS),
    }


def _safe_text(render: Callable[[], str]) -> str:
    # The error's __str__ is user code: it may raise, or return something that is not a string.
    try:
        return render().encode("utf-8", "backslashreplace").decode()
    except BaseException as error:
        return f"(its text cannot be shown: {type(error).__name__})"


def _shortened(text: str, limit: int) -> str:
    # The end of a traceback matters more than its middle.
    return text if len(text) <= limit else f"{text[: limit // 4]}\n[…]\n{text[-limit * 3 // 4 :]}"


# -- standard output -----------------------------------------------------------------------------

STALLED_READER_TIMEOUT_S = 2.0  # then output is dropped: a stalled reader must not hold up the job
_PIPE_BUF_BYTES = 4096  # a pipe that polls as writable takes this much without blocking (PIPE_BUF)


class NonBlockingOutput(io.RawIOBase):
    """Standard output or error that never blocks a job for long and never fails it.

    If the reader stalls, it waits once for STALLED_READER_TIMEOUT_S and then drops output until the reader goes on. If
    the reader is gone, it drops everything.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._dropped = 0

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIPE_BUF_BYTES):
            self._write_or_drop(view[start : start + _PIPE_BUF_BYTES])
        return len(view)

    def _write_or_drop(self, piece: memoryview) -> None:
        try:
            if not self._is_ready(0.0 if self._dropped else STALLED_READER_TIMEOUT_S):
                self._dropped += len(piece)
                return
            if self._dropped:
                note, self._dropped = f"\n[windlass: {self._dropped:,} bytes of output dropped, reader stalled]\n", 0
                os.write(self._fd, note.encode())
                self._write_or_drop(piece)
                return
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError as error:
            if error.errno == errno.EAGAIN:  # another process made the pipe non-blocking, and it is full
                self._dropped += len(piece)

    def _is_ready(self, timeout: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(timeout * 1000))


class _Unclosable(io.BufferedWriter):
    """Ignores `close`: a job that closes its output must not break `print` in the jobs after it."""

    def close(self) -> None:
        self.flush()


def take_over_output() -> None:
    """Put `NonBlockingOutput` under `sys.stdout` and `sys.stderr`.

    Call it before the app is imported: the app's log handlers keep these streams, and they work in every fork.
    """
    sys.stdout = _text_on(1)
    sys.stderr = _text_on(2)


def _text_on(fd: int) -> TextIO:
    # A small buffer, so that each write fits into a pipe that polls as writable.
    buffered = _Unclosable(NonBlockingOutput(fd), _PIPE_BUF_BYTES)
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def flush_output() -> None:
    """Flush output, so that a fork does not write it twice and `os._exit` does not lose it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # the app replaced the stream with one that cannot be flushed
