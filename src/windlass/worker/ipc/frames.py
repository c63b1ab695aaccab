"""Frames between the processes of a worker, on Unix sockets, blocking or on an event loop.

Both sides are forks of one program, so an invalid frame means a bug or a death, and raises an error.

    4 bytes            4 bytes            header             body
    ┌──────────────────┬──────────────────┬──────────────────┬──────────────────┐
    │ length of header │ length of body   │ a JSON object    │ raw bytes        │
    └──────────────────┴──────────────────┴──────────────────┴──────────────────┘

File descriptors travel with the first byte of a frame. Its header then has `"fds": count`.
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
from windlass.values.validation import LARGEST_PAYLOAD

Header = dict[str, Any]

MAX_HEADER_BYTES = 4 * 1024 * 1024  # far above any real header: a larger length means that the stream is corrupt
MAX_BODY_BYTES = LARGEST_PAYLOAD + 1024 * 1024  # a lease: its payload, and far more than the rest of it needs
MAX_FDS = 16  # per frame; the largest carries three

_LENGTHS = struct.Struct(">II")
_PREFIX_BYTES = _LENGTHS.size
_CHUNK_BYTES = 64 * 1024  # one read takes many small frames
_JOIN_MAX_BYTES = 32 * 1024  # up to this size, one copy is cheaper than a second system call
_MAX_UNREAD_FRAMES = 256  # then the socket is no longer read, so that the sender feels backpressure

# macOS has no such flag; there the descriptors become close-on-exec right after they arrive.
_CLOEXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict).decode


class FrameError(WindlassError):
    """A received frame is invalid or incomplete, or a frame to send is too large."""


# -- blocking ------------------------------------------------------------------------------------


def send(sock: socket.socket, header: Header, body: bytes = b"") -> None:
    """Send one frame."""
    for piece in _pieces(header, body):
        sock.sendall(piece)


def receive(sock: socket.socket) -> tuple[Header, bytes] | None:
    """Wait for one frame; None when the other side is gone."""
    prefix = _read_exactly(sock, _PREFIX_BYTES, may_end=True)
    return _read_rest(sock, prefix) if prefix else None


def send_with_fds(sock: socket.socket, header: Header, body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send one frame together with file descriptors; the sender keeps its own copies open."""
    first, *more = _pieces(_announce(header, fds), body)
    sent = sock.sendmsg([first], _ancillary(fds))
    for piece in (first[sent:], *more):
        sock.sendall(piece)


def receive_with_fds(sock: socket.socket) -> tuple[Header, bytes, list[int]] | None:
    """Wait for one frame and its file descriptors, which the caller must close; None when the other side is gone."""
    prefix, fds = _receive_message(sock, _PREFIX_BYTES)
    if not prefix:
        return None
    try:
        prefix += _read_exactly(sock, _PREFIX_BYTES - len(prefix))
        header, body = _read_rest(sock, prefix)
        _expect_fds(header, len(fds))
    except BaseException:
        close_all(fds)
        raise
    return header, body, fds


def close_all(fds: Sequence[int]) -> None:
    """Close file descriptors, ignoring those that are closed already."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


def _read_rest(sock: socket.socket, prefix: bytes) -> tuple[Header, bytes]:
    header_length, body_length = _lengths(prefix)
    if body_length > _CHUNK_BYTES:  # cutting a large body off would copy it once more
        return _read_header(_read_exactly(sock, header_length)), _read_exactly(sock, body_length)
    rest = _read_exactly(sock, header_length + body_length)
    return _read_header(rest[:header_length]), rest[header_length:]


def _read_exactly(sock: socket.socket, length: int, *, may_end: bool = False) -> bytes:
    data = sock.recv(min(length, _CHUNK_BYTES)) if length else b""
    if len(data) == length or (may_end and not data):
        return data
    whole = bytearray(data)
    while len(whole) < length:
        data = sock.recv(min(length - len(whole), 16 * _CHUNK_BYTES))
        if not data:
            raise _cut_off(len(whole), length)
        whole += data
    return bytes(whole)


# -- on an event loop ----------------------------------------------------------------------------


class _Stream:
    """A socket on the running event loop, without asyncio's transports.

    Transports cannot carry file descriptors, and they are not faster for small frames (measured).
    """

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
        self.unread_by_peer = False  # the other side died before it read all that we sent; some systems do not tell
        self._closed = False
        self._reading = True
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self._sock.fileno()

    @property
    def ended(self) -> bool:
        """Whether the other side is gone, as far as we know."""
        return self._ended

    def close(self) -> None:
        """Close the socket. A waiting receiver gets None; unsent frames are dropped."""
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
                raise RuntimeError("two tasks receive from one frame stream: let one task receive for both")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frame = self._frames.popleft()
        if not self._reading and not self._ended and len(self._frames) < _MAX_UNREAD_FRAMES // 2:
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
        return frame

    def _read(self) -> bytes:
        return self._sock.recv(_CHUNK_BYTES)

    def _on_readable(self) -> None:
        try:
            data = self._read()
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:
            data = b""  # the peer died before it read all frames
            self.unread_by_peer = True
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
        if len(self._frames) >= _MAX_UNREAD_FRAMES:
            self._stop_reading()
        if self._frames:
            self._wake()

    def _take(self, data: bytes | bytearray) -> None:
        if self._unread:
            self._unread += data
            data = self._unread
        start, size = 0, len(data)
        while size - start >= _PREFIX_BYTES:
            header_length, body_length = _lengths(data, start)
            body_start = start + _PREFIX_BYTES + header_length
            end = body_start + body_length
            if end > size:
                break
            header = _read_header(data[start + _PREFIX_BYTES : body_start])
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
        """Send as much as the socket takes now, and the rest when it is writable. Keeps frames whole and in order."""
        if self._closed:
            raise BrokenPipeError("this frame stream is closed")
        for piece in pieces:
            rest = memoryview(piece)
            if not self._outbox:
                rest, fds = self._write(rest, fds)
            if rest:
                # Duplicates, because the caller may close its own descriptors before these are sent.
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
            self._drop_outbox()  # the peer is gone; this fails the waiting flush, and the reader sees the end
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
            flushed.exception()  # marks it as retrieved: often no task waits for the flush

    async def _flush(self) -> None:
        if self._flushed is not None:
            await asyncio.shield(self._flushed)


class FrameStream(_Stream):
    """Frames on the running event loop: the runner's end of a child's socket. Owns the socket."""

    async def send(self, header: Header, body: bytes = b"") -> None:
        """Send one frame. Raises `BrokenPipeError` (or another `OSError`) when the other side is gone."""
        self._post(_pieces(header, body))
        if self._flushed is not None:
            await self._flush()

    async def receive(self) -> tuple[Header, bytes] | None:
        """Wait for the next frame; None when the other side is gone. Only one task may wait at a time."""
        return await self._next()


class FdStream(_Stream):
    """Frames with file descriptors on the running event loop: a supervisor's control sockets."""

    def post(self, header: Header, body: bytes = b"") -> None:
        """Queue one frame without waiting for the socket."""
        self._post(_pieces(header, body))

    async def send(self, header: Header, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send one frame together with file descriptors; the sender keeps its own copies open."""
        self._post(_pieces(_announce(header, fds), body), fds)
        await self._flush()

    async def receive(self) -> tuple[Header, bytes, list[int]] | None:
        """Wait for the next frame and its file descriptors, which the caller must close; None when the peer is gone."""
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
        """Tell the other side that no more frames will come. Its own frames can still be received."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _read(self) -> bytes:
        data, fds = _receive_message(self._sock, _CHUNK_BYTES)
        self._fds.extend(fds)
        return data


# -- the format ----------------------------------------------------------------------------------


def _pieces(header: Header, body: bytes) -> tuple[bytes, ...]:
    text = _encode(header)
    if len(text) > MAX_HEADER_BYTES or len(body) > MAX_BODY_BYTES:
        raise FrameError(
            f"a frame with a header of {len(text):,} bytes and a body of {len(body):,} bytes is too large: the limits "
            f"are {MAX_HEADER_BYTES:,} and {MAX_BODY_BYTES:,}. Store large data elsewhere and send a reference."
        )
    prefix = _LENGTHS.pack(len(text), len(body))
    return (prefix + text + body,) if len(body) <= _JOIN_MAX_BYTES else (prefix + text, body)


def _lengths(data: bytes | bytearray, start: int = 0) -> tuple[int, int]:
    header_length, body_length = _LENGTHS.unpack_from(data, start)
    if header_length > MAX_HEADER_BYTES or body_length > MAX_BODY_BYTES:
        raise FrameError(
            f"a frame claims a header of {header_length:,} bytes and a body of {body_length:,} bytes, over the limits "
            f"of {MAX_HEADER_BYTES:,} and {MAX_BODY_BYTES:,}: other data was written to this socket"
        )
    return header_length, body_length


def _read_header(text: bytes | bytearray) -> Header:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        start = bytes(text[:40])
        raise FrameError(f"a frame's header is not a JSON object ({error}): it begins with {start!r}") from None


def _cut_off(had: int, wanted: int | None) -> FrameError:
    of = f" of {wanted:,}" if wanted is not None else ""
    return FrameError(f"the other side closed in the middle of a frame, after {had:,}{of} bytes")


# -- file descriptors ----------------------------------------------------------------------------


def _announce(header: Header, fds: Sequence[int]) -> Header:
    if len(fds) > MAX_FDS:
        raise FrameError(f"{len(fds)} file descriptors are too many for one frame: the limit is {MAX_FDS}")
    return header | {"fds": len(fds)} if fds else header


def _expect_fds(header: Header, came: int) -> None:
    announced = header.pop("fds", 0)
    if announced != came:
        raise FrameError(
            f"a frame announces {announced} file descriptors and {came} arrived: check this process's open-files limit"
        )


def _ancillary(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def _receive_message(sock: socket.socket, most: int) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    data, ancillary, flags, _ = sock.recvmsg(most, socket.CMSG_SPACE(MAX_FDS * fds.itemsize), _CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        close_all(fds)
        raise FrameError("the kernel dropped file descriptors of a frame: raise this process's open-files limit")
    for fd in fds if not _CLOEXEC else ():
        os.set_inheritable(fd, False)
    return data, list(fds)
