"""Proxies between a client and a real server.

`FaultProxy` reads whole requests and whole replies, so that a test can lose, cut, delay or change exactly one of them
and know whether the server executed it. `TlsProxy` puts TLS in front of a server that has none.


    client ──request──▶ FaultProxy ──request──▶ server     a fault is chosen for each request as it is read,
    client ◀──reply──── FaultProxy ◀──reply──── server     and a fault on its reply is applied when the reply arrives

Each proxy runs an event loop in a thread of its own, which ends with `close`.
"""

from __future__ import annotations

import asyncio
import datetime
import random
import re
import shutil
import ssl
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import trustme

T = TypeVar("T")
Address = Path | tuple[str, int]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Kind = Literal[
    "forward",
    "drop_reply",
    "drop_request",
    "cut_request",
    "cut_reply",
    "half_close",
    "delay",
    "delay_reply",
    "hang",
    "hang_reply",
    "rewrite",
]

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_STREAMING = {b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR", b"SYNC", b"PSYNC"}


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one request; use the constants and functions below."""

    kind: Kind
    seconds: float = 0.0
    change: Callable[[bytes], bytes] | None = None


FORWARD = Fault("forward")
"""No fault."""
DROP_REPLY = Fault("drop_reply")
"""The server executes the request and answers; the client sees a closed connection instead of the answer."""
DROP_REQUEST = Fault("drop_request")
"""The server never sees the request; the client gets the earlier answers, then a closed connection."""
CUT_REQUEST = Fault("cut_request")
"""The server gets half of the request's bytes, then both connections close."""
CUT_REPLY = Fault("cut_reply")
"""The server executes the request; the client gets half of the answer's bytes, then both connections close."""
HALF_CLOSE = Fault("half_close")
"""The server executes the request; the client reads end-of-stream instead of the answer. Later requests still run."""
HANG = Fault("hang")
"""The server never sees the request, and the connection stays open and silent until the client leaves."""
HANG_REPLY = Fault("hang_reply")
"""The server executes the request, and the connection stays open and silent until the client leaves."""


def delay(seconds: float) -> Fault:
    """Delay the request and those behind it; it reaches the server even if the client has left."""
    return Fault("delay", seconds=seconds)


def delay_reply(seconds: float) -> Fault:
    """The server executes the request at once; the answer and those behind it are delayed."""
    return Fault("delay_reply", seconds=seconds)


def rewrite(change: Callable[[bytes], bytes]) -> Fault:
    """Pass the answer through `change` as one whole RESP frame, type byte and lengths included."""
    return Fault("rewrite", change=change)


def rewrite_text(change: Callable[[bytes], bytes]) -> Fault:
    """Like `rewrite`, for a string answer: `change` sees only the text."""

    def reframe(frame: bytes) -> bytes:
        if frame[:1] not in (b"$", b"="):
            return frame
        text = frame[frame.index(b"\r\n") + 2 : -2]
        mark = text[:4] if frame[:1] == b"=" else b""
        text = mark + change(text[len(mark) :])
        return b"%b%d\r\n%b\r\n" % (frame[:1], len(text), text)

    return Fault("rewrite", change=reframe)


FaultFunction = Callable[[list[bytes]], Fault]
Only = Collection[str] | Callable[[list[bytes]], bool] | None


def random_faults(
    seed: int,
    *,
    drop_reply: float = 0.01,
    drop_request: float = 0.0,
    cut_request: float = 0.0,
    delays: float = 0.0,
    delay_seconds: float = 0.05,
    only: Only = None,
) -> FaultFunction:
    """Choose faults at random, each with its own probability, among the requests `only` lets through.

    `only` is a set of command names or a predicate on the request. The same seed gives the same choices for
    the same order of requests.
    """
    chance = random.Random(seed)
    table = (
        (drop_reply, DROP_REPLY),
        (drop_request, DROP_REQUEST),
        (cut_request, CUT_REQUEST),
        (delays, delay(delay_seconds)),
    )
    chosen = _matcher(only)

    def choose(request: list[bytes]) -> Fault:
        if not chosen(request):
            return FORWARD
        point = chance.random()
        for probability, fault in table:
            if point < probability:
                return fault
            point -= probability
        return FORWARD

    return choose


def nth(fault: Fault, *, only: Only = None, n: int = 1) -> FaultFunction:
    """Apply the fault to the `n`th request that `only` lets through, counted from 1; all others pass."""
    chosen = _matcher(only)
    seen = 0

    def choose(request: list[bytes]) -> Fault:
        nonlocal seen
        if not chosen(request):
            return FORWARD
        seen += 1
        return fault if seen == n else FORWARD

    return choose


def always(fault: Fault, *, only: Only = None) -> FaultFunction:
    """Apply the fault to every request that `only` lets through."""
    chosen = _matcher(only)
    return lambda request: fault if chosen(request) else FORWARD


def pretend_version(version: str, name: Literal["redis", "valkey"] = "redis") -> FaultFunction:
    """Make INFO and HELLO report another server or version; all else passes unchanged."""
    new = version.encode()

    def in_info(text: bytes) -> bytes:
        text = re.sub(rb"(?m)^(server_name|valkey_version|valkey_release_stage):.*\r\n", b"", text)
        said = b"redis_version:%b\r\n" % new
        if name == "valkey":
            said = b"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:%b\r\n" % new
        return re.sub(rb"(?m)^redis_version:.*\r\n", said, text)

    def in_hello(frame: bytes) -> bytes:
        for field, value in ((b"server", name.encode()), (b"version", new)):
            pattern = rb"(\$%d\r\n%b\r\n)\$\d+\r\n[^\r]*\r\n" % (len(field), field)
            frame = re.sub(pattern, rb"\g<1>$%d\r\n%b\r\n" % (len(value), value), frame)
        return frame

    table = {b"INFO": rewrite_text(in_info), b"HELLO": rewrite(in_hello)}
    return lambda request: table.get(request[0].upper(), FORWARD)


def _matcher(only: Only) -> Callable[[list[bytes]], bool]:
    if only is None:
        return lambda request: True
    if callable(only):
        return only
    names = {name.upper().encode() for name in only}
    return lambda request: request[0].upper() in names


class Framer:
    """Cuts a stream of RESP2 or RESP3 bytes into whole messages, reading each byte once.

    Nesting needs no stack: a count of the elements still to come is enough.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._missing = 1

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> bytes | None:
        """The next message, or None until more has come."""
        while self._missing:
            if not self._step():
                return None
        frame = bytes(self._buffer[: self._position])
        del self._buffer[: self._position]
        self._position, self._missing = 0, 1
        return frame

    def rest(self) -> bytes:
        """The remaining bytes, whole or not."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _step(self) -> bool:
        """Advance past one element if all of it has arrived."""
        end = self._buffer.find(b"\r\n", self._position)
        if end < 0:
            return False
        kind = chr(self._buffer[self._position])
        size = int(self._buffer[self._position + 1 : end]) if kind in "$=!*~>%|" else 0
        after = end + 2
        more = 0
        if kind in "$=!" and size >= 0:
            after += size + 2
            if len(self._buffer) < after:
                return False
        elif kind in "*~>":
            more = max(size, 0)
        elif kind in "%|":
            more = 2 * size + (kind == "|")  # attributes precede their value
        self._position = after
        self._missing += more - 1
        return True


def arguments(frame: bytes) -> list[bytes]:
    """The words of one whole request, also in inline form."""
    if frame[:1] != b"*":
        return frame.split() or [b""]
    words: list[bytes] = []
    position = frame.index(b"\r\n") + 2
    while position < len(frame):
        start = frame.index(b"\r\n", position) + 2
        end = start + int(frame[position + 1 : start - 2])
        words.append(frame[start:end])
        position = end + 2
    return words or [b""]


class _Proxy:
    """Listens, connects to the server for each client, and runs `_serve` on the pair until it returns."""

    def __init__(self, upstream: Address, *, unix: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream
        self.connections = 0
        self.errors: list[BaseException] = []
        self._tls = tls
        self._folder = Path(tempfile.mkdtemp(prefix="wl-"))
        self.socket_path: Path | None = self._folder / "proxy.sock" if unix else None
        self.port: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> Address:
        return self.socket_path or (HOST, self.port or 0)

    @property
    def url(self) -> str:
        if self.socket_path:
            return f"unix://{self.socket_path}"
        return f"{'rediss' if self._tls else 'redis'}://{HOST}:{self.port}/0"

    def start(self) -> None:
        """Start the thread; returns once clients can connect."""
        ready: Future[None] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)), name=type(self).__name__)
        self._thread.start()
        ready.result(10.0)

    def close(self) -> None:
        """Close every connection and end the thread; raises an error from inside, if there was one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(10.0)
            if thread.is_alive():
                raise RuntimeError(f"{type(self).__name__} thread did not end")
        shutil.rmtree(self._folder, ignore_errors=True)
        if self.errors:
            raise self.errors[0]

    def disconnect(self) -> None:
        """Close every open connection; new ones are accepted."""
        self._call(self._drop_connections())

    def down(self) -> None:
        """Close every connection and refuse new ones until `up`."""
        self._call(self._unlisten())

    def up(self) -> None:
        """Listen again, at the same address."""
        self._call(self._listen())

    async def _serve(self, client: Streams, server: Streams) -> None:
        raise NotImplementedError

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._thread is None:
            work.close()
            raise RuntimeError(f"{type(self).__name__} is not running: call start() first")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _main(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._listen()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        await self._stop.wait()
        await self._unlisten()

    async def _listen(self) -> None:
        if self.socket_path:
            self._listener = await asyncio.start_unix_server(self._accept, self.socket_path)
        else:
            patience = 0.1 if self._tls else None  # an idle client does not answer a TLS close_notify
            self._listener = await asyncio.start_server(
                self._accept, HOST, self.port or 0, ssl=self._tls, ssl_shutdown_timeout=patience
            )
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            if self.socket_path:
                self.socket_path.unlink(missing_ok=True)
        await self._drop_connections()

    async def _drop_connections(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connection((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, client: Streams) -> None:
        self.connections += 1
        server: Streams | None = None
        try:
            server = await self._connect()
            await self._serve(client, server)
        except OSError:  # either side has left
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            for _, writer in filter(None, (server, client)):
                await _hang_up(writer)

    async def _connect(self) -> Streams:
        if isinstance(self.upstream, Path):
            return await asyncio.open_unix_connection(self.upstream)
        return await asyncio.open_connection(*self.upstream)


class FaultProxy(_Proxy):
    """Forwards whole requests and replies; `faults`, which may be set at any time, chooses the fault of each request.

    `faults` runs in the proxy's thread. An exception in it closes that connection and is raised by `close`. After a
    request that turns replies into a stream (SUBSCRIBE, MONITOR) the connection passes through untouched.
    """

    def __init__(self, upstream: Address, *, faults: FaultFunction | None = None, unix: bool = False) -> None:
        super().__init__(upstream, unix=unix)
        self.faults: FaultFunction | None = faults
        self.counts: Counter[str] = Counter()
        """Number of requests per kind of fault, `forward` included."""

    @property
    def requests(self) -> int:
        return sum(self.counts.values())

    async def _serve(self, client: Streams, server: Streams) -> None:
        talk = _Talk(self._choose, client, server)
        await _first_of(talk.upward(), talk.downward())

    def _choose(self, request: list[bytes]) -> Fault:
        faults = self.faults
        fault = faults(request) if faults else FORWARD
        self.counts[fault.kind] += 1
        return fault


class _Talk:
    """One client's connection. It ends when either direction returns."""

    def __init__(self, choose: FaultFunction, client: Streams, server: Streams) -> None:
        self._choose = choose
        self._client_reader, self._client = client
        self._server_reader, self._server = server
        self._owed: deque[tuple[Fault, bool]] = deque()  # per expected reply: its fault, and whether a stream begins
        self._settled = asyncio.Event()

    async def upward(self) -> None:
        framer = Framer()
        while data := await self._client_reader.read(_CHUNK_BYTES):
            framer.feed(data)
            while (frame := framer.next()) is not None:
                request = arguments(frame)
                fault = self._choose(request)
                if fault.kind in ("drop_request", "cut_request"):
                    await self._all_answered()
                    if fault.kind == "cut_request":
                        await _send(self._server, frame[: len(frame) // 2])
                    return None
                if fault.kind == "hang":
                    return await self._client_gone()
                if fault.kind == "delay":
                    await self._server.drain()
                    await asyncio.sleep(fault.seconds)
                streams = request[0].upper() in _STREAMING
                self._owed.append((fault, streams))
                self._server.write(frame)
                if streams:
                    await _send(self._server, framer.rest())
                    await _pump(self._client_reader, self._server)
            await self._server.drain()
        return await self._client_gone()

    async def downward(self) -> None:
        framer = Framer()
        silent = False
        while data := await self._server_reader.read(_CHUNK_BYTES):
            framer.feed(data)
            while (frame := framer.next()) is not None:
                if frame[:1] == b">" and not (self._owed and self._owed[0][1]):  # a push message
                    if not silent:
                        self._client.write(frame)
                    continue
                fault, streams = self._owed.popleft()
                if fault.kind == "drop_reply":
                    return
                if fault.kind == "cut_reply":
                    await _send(self._client, frame[: len(frame) // 2])
                    return
                if fault.kind == "half_close" and not silent:
                    self._client.write_eof()
                silent = silent or fault.kind in ("hang_reply", "half_close")
                if silent:
                    continue
                if fault.kind == "delay_reply":
                    await self._client.drain()
                    await asyncio.sleep(fault.seconds)
                self._client.write(fault.change(frame) if fault.change else frame)
                if streams:
                    await _send(self._client, framer.rest())
                    await _pump(self._server_reader, self._client)
            await self._client.drain()
            if not self._owed:
                self._settled.set()

    async def _all_answered(self) -> None:
        while self._owed:
            self._settled.clear()
            await self._settled.wait()

    async def _client_gone(self) -> None:
        """Ignore the client until it leaves, then let the server finish its requests and close."""
        while await self._client_reader.read(_CHUNK_BYTES):
            pass
        self._server.write_eof()
        await asyncio.Event().wait()  # the other direction ends the connection


class TlsProxy(_Proxy):
    """Speaks TLS to clients and plain RESP to the server, with a certificate issued at start.

    `good` is valid for 127.0.0.1 and localhost; `untrusted` has another authority than `ca_path`.
    With `require_client_certificate` only clients that present `client_cert_path` (key included) are accepted.
    """

    def __init__(
        self,
        upstream: Address,
        *,
        certificate: Literal["good", "expired", "wrong_host", "untrusted"] = "good",
        require_client_certificate: bool = False,
    ) -> None:
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _issue(authority, certificate).configure_cert(context)
        if require_client_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            authority.configure_trust(context)
        super().__init__(upstream, tls=context)
        self.ca_path = self._folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca_path)
        self.client_cert_path = self._folder / "client.pem"
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(self.client_cert_path)

    async def _serve(self, client: Streams, server: Streams) -> None:
        await _first_of(_pump(client[0], server[1]), _pump(server[0], client[1]))


def _issue(authority: trustme.CA, certificate: str) -> trustme.LeafCert:
    now = datetime.datetime.now(datetime.UTC)
    names = ["wrong.example.org"] if certificate == "wrong_host" else [HOST, "localhost"]
    issuer = trustme.CA() if certificate == "untrusted" else authority
    day = datetime.timedelta(days=1)
    if certificate == "expired":
        return issuer.issue_cert(*names, not_before=now - 2 * day, not_after=now - day)
    return issuer.issue_cert(*names)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await _send(writer, data)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, cancel the rest, and raise their errors."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close after the pending writes, or soon after if the other side does not read."""
    writer.close()
    try:
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
    except OSError:
        writer.transport.abort()
        await asyncio.sleep(0)
