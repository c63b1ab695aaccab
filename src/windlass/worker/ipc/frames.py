"""What the processes of a worker say to each other: frames on Unix sockets, blocking or on an event loop.
Both sides are forks of one program, so a frame that breaks the format means a bug or a death, and is an error.

    4 bytes            4 bytes            header             body
    ┌──────────────────┬──────────────────┬──────────────────┬──────────────────┐
    │ length of header │ length of body   │ a JSON object    │ bytes as they are│
    └──────────────────┴──────────────────┴──────────────────┴──────────────────┘

File descriptors travel beside the first byte of a frame; its header then has `"fds": how many`.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.errors import WindlassError

Header = dict[str, Any]

HEADER_LIMIT = 4 * 1024 * 1024
BODY_LIMIT = 64 * 1024 * 1024
MOST_FDS = 16

_LENGTHS = struct.Struct(">II")
_PREFIX = _LENGTHS.size
_CHUNK = 64 * 1024
_JOINED = 32 * 1024  # up to here one copy is cheaper than a second system call
_CROWD = 256  # frames that nobody took yet, before the socket is no longer read

# Where the flag is missing (macOS) the descriptors are closed to exec right after they came.
_CLOEXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict).decode


class FrameError(WindlassError):
    """What came is no frame, or the sender ended in the middle of one; or what is to be sent does not fit."""


# -- blocking ------------------------------------------------------------------------------------


def send(sock: socket.socket, header: Header, body: bytes = b"") -> None:
    """Send one frame."""
    for piece in _pieces(header, body):
        sock.sendall(piece)


def receive(sock: socket.socket) -> tuple[Header, bytes] | None:
    """Wait for one frame. None when the other side is gone."""
    prefix = _read_exactly(sock, _PREFIX, may_end=True)
    return _read_rest(sock, prefix) if prefix else None


def send_with_fds(sock: socket.socket, header: Header, body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send one frame together with file descriptors; the sender keeps its own copies open."""
    first, *more = _pieces(_announce(header, fds), body)
    sent = sock.sendmsg([first], _ancillary(fds))
    for piece in (first[sent:], *more):
        sock.sendall(piece)


def receive_with_fds(sock: socket.socket) -> tuple[Header, bytes, list[int]] | None:
    """Wait for one frame and what descriptors came along. They are the receiver's to close."""
    prefix, fds = _receive_message(sock, _PREFIX)
    if not prefix:
        return None
    try:
        prefix += _read_exactly(sock, _PREFIX - len(prefix))
        header, body = _read_rest(sock, prefix)
        _expect_fds(header, len(fds))
    except BaseException:
        close_all(fds)
        raise
    return header, body, fds


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors, whatever became of them."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


def _read_rest(sock: socket.socket, prefix: bytes) -> tuple[Header, bytes]:
    header_length, body_length = _lengths(prefix)
    rest = _read_exactly(sock, header_length + body_length)
    return _read_header(rest[:header_length]), rest[header_length:]


def _read_exactly(sock: socket.socket, length: int, *, may_end: bool = False) -> bytes:
    data = sock.recv(min(length, _CHUNK)) if length else b""
    if len(data) == length or (may_end and not data):
        return data
    whole = bytearray(data)
    while len(whole) < length:
        data = sock.recv(min(length - len(whole), 16 * _CHUNK))
        if not data:
            raise _cut_off(len(whole), length)
        whole += data
    return bytes(whole)


# -- on an event loop ----------------------------------------------------------------------------


class _Stream:
    """A socket on the running event loop, read and written without asyncio's transports: as fast for small frames
    (measured), and one text for frames with and without file descriptors, which transports know nothing of."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._unread = bytearray()
        self._frames: deque[tuple[Header, bytes]] = deque()
        self._fds: deque[int] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._outbox: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._flushed: asyncio.Future[None] | None = None
        self._fault: FrameError | None = None
        self._ended = False
        self.unheard = False  # the other side went without having read all that we sent; not every system tells
        self._closed = False
        self._reading = True
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self._sock.fileno()

    @property
    def ended(self) -> bool:
        """Whether the other side is known to be gone."""
        return self._ended

    def close(self) -> None:
        """Close the socket. Who waits for a frame gets None, what was not sent yet is dropped."""
        if self._closed:
            return
        self._closed = True
        self._stop_reading()
        self._drop_outbox()
        self._sock.close()
        close_all(self._fds)
        self._fds.clear()
        self._frames.clear()
        self._end()

    # -- reading

    async def _next(self) -> tuple[Header, bytes] | None:
        while not self._frames:
            if self._fault:
                raise self._fault
            if self._ended:
                return None
            if self._waiter is not None:
                raise RuntimeError("two tasks receive from one frame stream: let one receive and hand on")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frame = self._frames.popleft()
        if not self._reading and not self._ended and len(self._frames) < _CROWD // 2:
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
        return frame

    def _read(self) -> bytes:
        return self._sock.recv(_CHUNK)

    def _on_readable(self) -> None:
        try:
            data = self._read()
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:
            data = b""  # it died with something of ours unread: gone is gone
            self.unheard = True
        except FrameError as fault:
            self._end(fault)
            return
        if not data:
            self._end(_cut_off(len(self._unread), None) if self._unread else None)
            return
        try:
            self._take(data)
        except FrameError as fault:
            self._end(fault)
            return
        if len(self._frames) >= _CROWD:
            self._stop_reading()
        if self._frames:
            self._wake()

    def _take(self, data: bytes | bytearray) -> None:
        if self._unread:
            self._unread += data
            data = self._unread
        start, size = 0, len(data)
        while size - start >= _PREFIX:
            header_length, body_length = _lengths(data, start)
            body_start = start + _PREFIX + header_length
            end = body_start + body_length
            if end > size:
                break
            header = _read_header(data[start + _PREFIX : body_start])
            self._frames.append((header, bytes(data[body_start:end])))
            start = end
        if data is self._unread:
            del self._unread[:start]
        elif start < size:
            self._unread += data[start:]

    def _end(self, fault: FrameError | None = None) -> None:
        self._ended = True
        self._fault = self._fault or fault
        self._stop_reading()
        self._wake()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- writing

    def _post(self, pieces: Sequence[bytes], fds: Sequence[int] = ()) -> None:
        """Send now what the socket takes, and the rest as soon as it can. Whole frames, in order."""
        if self._closed:
            raise BrokenPipeError("this frame stream is closed")
        for piece in pieces:
            rest = memoryview(piece)
            if not self._outbox:
                rest, fds = self._write(rest, fds)
            if rest:
                # Copies, for the sender may close its own before these are on their way.
                self._outbox.append((rest, [os.dup(fd) for fd in fds]))
                fds = ()
        if self._outbox and self._flushed is None:
            self._flushed = self._loop.create_future()
            self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def _write(self, data: memoryview, fds: Sequence[int]) -> tuple[memoryview, Sequence[int]]:
        try:
            sent = self._sock.sendmsg([data], _ancillary(fds)) if fds else self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return data, fds
        return data[sent:], ()

    def _on_writable(self) -> None:
        try:
            while self._outbox:
                data, fds = self._outbox.popleft()
                rest, left = self._write(data, fds)
                if rest:
                    self._outbox.appendleft((rest, left))
                if not left:
                    close_all(fds)
                if rest:
                    return
        except OSError:
            self._drop_outbox()  # gone: who waits for the flush hears of it, the reader sees the end
            return
        self._finish_writing(None)

    def _drop_outbox(self) -> None:
        for _, fds in self._outbox:
            close_all(fds)
        self._outbox.clear()
        self._finish_writing(BrokenPipeError("the other side of this frame stream is gone"))

    def _finish_writing(self, error: OSError | None) -> None:
        flushed, self._flushed = self._flushed, None
        if flushed is None:
            return
        self._loop.remove_writer(self._sock.fileno())
        if flushed.done():
            return
        if error is None:
            flushed.set_result(None)
        else:
            flushed.set_exception(error)
            flushed.exception()  # perhaps nobody waits, and that is no fault

    async def _flush(self) -> None:
        if self._flushed is not None:
            await asyncio.shield(self._flushed)


class FrameStream(_Stream):
    """Frames on the event loop: the runner's end of a child's socket. Made while the loop runs; owns the socket."""

    async def send(self, header: Header, body: bytes = b"") -> None:
        """Send one frame. Raises `BrokenPipeError` (or another `OSError`) when the other side is gone."""
        self._post(_pieces(header, body))
        if self._flushed is not None:
            await self._flush()

    async def receive(self) -> tuple[Header, bytes] | None:
        """The next frame; None when the other side is gone. One task at a time."""
        return await self._next()


class FdStream(_Stream):
    """Frames with file descriptors on the event loop: a supervisor's control sockets."""

    def post(self, header: Header, body: bytes = b"") -> None:
        """Send one frame without waiting until it is on its way."""
        self._post(_pieces(header, body))

    async def send(self, header: Header, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send one frame together with file descriptors; the sender keeps its own copies open."""
        self._post(_pieces(_announce(header, fds), body), fds)
        await self._flush()

    async def receive(self) -> tuple[Header, bytes, list[int]] | None:
        """The next frame and what descriptors came along: the receiver's to close. None at the end."""
        frame = await self._next()
        if frame is None:
            return None
        header, body = frame
        fds = [self._fds.popleft() for _ in range(min(header.get("fds", 0), len(self._fds)))]
        try:
            _expect_fds(header, len(fds))
        except FrameError:
            close_all(fds)
            raise
        return header, body, fds

    def finish(self) -> None:
        """Tell the other side that nothing more will come. What it still says can be received."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _read(self) -> bytes:
        data, fds = _receive_message(self._sock, _CHUNK)
        self._fds.extend(fds)
        return data


# -- the format ----------------------------------------------------------------------------------


def _pieces(header: Header, body: bytes) -> tuple[bytes, ...]:
    text = _encode(header)
    if len(text) > HEADER_LIMIT or len(body) > BODY_LIMIT:
        raise FrameError(
            f"a frame with a header of {len(text):,} bytes and a body of {len(body):,} does not fit: "
            f"the most is {HEADER_LIMIT:,} and {BODY_LIMIT:,}. Keep large data elsewhere and send where it is."
        )
    prefix = _LENGTHS.pack(len(text), len(body))
    return (prefix + text + body,) if len(body) <= _JOINED else (prefix + text, body)


def _lengths(data: bytes | bytearray, start: int = 0) -> tuple[int, int]:
    header_length, body_length = _LENGTHS.unpack_from(data, start)
    if header_length > HEADER_LIMIT or body_length > BODY_LIMIT:
        raise FrameError(
            f"a frame claims a header of {header_length:,} bytes and a body of {body_length:,}, over the limits of "
            f"{HEADER_LIMIT:,} and {BODY_LIMIT:,}: something else was written into this socket"
        )
    return header_length, body_length


def _read_header(text: bytes | bytearray) -> Header:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"a frame's header is no JSON object ({error}): it begins with {bytes(text[:40])!r}") from None


def _cut_off(had: int, wanted: int | None) -> FrameError:
    of = f" of {wanted:,}" if wanted is not None else ""
    return FrameError(f"the other side ended in the middle of a frame, after {had:,}{of} bytes")


# -- file descriptors ----------------------------------------------------------------------------


def _announce(header: Header, fds: Sequence[int]) -> Header:
    if len(fds) > MOST_FDS:
        raise FrameError(f"{len(fds)} file descriptors are too many for one frame: the most is {MOST_FDS}")
    return header | {"fds": len(fds)} if fds else header


def _expect_fds(header: Header, came: int) -> None:
    told = header.pop("fds", 0)
    if told != came:
        raise FrameError(
            f"{came} file descriptors came with a frame that has {told}: has this process run out of them?"
        )


def _ancillary(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def _receive_message(sock: socket.socket, most: int) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, ancillary, flags, _ = sock.recvmsg(most, socket.CMSG_SPACE(MOST_FDS * fds.itemsize), _CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        close_all(fds)
        raise FrameError("file descriptors were lost on their way: raise this process's limit of open files")
    for fd in fds if not _CLOEXEC else ():
        os.set_inheritable(fd, False)
    return data, list(fds)
