"""The real server of a simulation: called one step at a time, its wall clock frozen at virtual time.

All simulated connections share one real connection, because requests come one at a time. It also holds all their
subscriptions. A PING behind every request marks the point where all messages published by it have been read, so the
order of messages does not depend on real time.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Self

from hiredis import PushNotification, Reader
from redis._parsers import BaseParser  # the same errors that the client's own connections give
from redis.exceptions import InvalidResponse
from tests.support.queue_clock import unpack_core
from tests.support.server import Server

from chaos.clock import ServerClock
from windlass.storage.native.keys import queue_key
from windlass.transport.endpoint import Endpoint
from windlass.transport.io_steps import pack

_ANSWER_TIMEOUT_S = 20.0  # real seconds
_END = pack("PING")
_MEMORY = Path("/dev/shm")  # in memory, because the log is synced after every write


class Engine:
    """A sequence of server processes on the same data."""

    def __init__(self, binary: Path | None = None) -> None:
        self._clock = ServerClock()
        self._clock.freeze(0)
        self._folder = Path(tempfile.mkdtemp(prefix="wl-sim-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.server = Server(
            binary,
            env=self._clock.environment(),
            appendonly=True,
            appendfsync="always",
            config={"dir": str(self._folder), "auto-aof-rewrite-percentage": "0"},
        )
        self.endpoint = Endpoint.parse(self.server.url)
        self._clock_view: list[list[Any]] = []
        self.channels: dict[str, int] = {}  # number of simulated subscribers
        self.calls = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_clock(self, ns: int) -> None:
        """Set the server's clock, in ns since 1970."""
        self._clock.freeze_ns(ns)

    def call(self, packed: bytes, replies: int) -> list[Any]:
        """Execute a request on the server."""
        self.calls += 1
        return self._ask(packed, replies)

    def subscribe(self, channel: str) -> None:
        """Add a simulated subscriber."""
        self.channels[channel] = self.channels.get(channel, 0) + 1
        if self.channels[channel] == 1:
            self._ask(pack("SUBSCRIBE", channel), 0)

    def unsubscribe(self, channel: str) -> None:
        """Remove a simulated subscriber."""
        self.channels[channel] -= 1
        if not self.channels[channel]:
            del self.channels[channel]
            self._ask(pack("UNSUBSCRIBE", channel), 0)

    def published(self) -> list[list[Any]]:
        """Messages published since the last call: [kind, channel, payload]."""
        heard, self._clock_view = self._clock_view, []
        return [message for message in heard if message[0] == b"message"]

    def _ask(self, packed: bytes, replies: int) -> list[Any]:
        self._socket.sendall(packed + _END)
        found: list[Any] = []
        while len(found) <= replies:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(65536))
            elif isinstance(reply, PushNotification):
                self._clock_view.append(list(reply))
            else:
                found.append(reply)
        assert found.pop() == b"PONG", "one answer too many"
        return found

    # -- life and death --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server on the existing data."""
        self.server.start()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_TIMEOUT_S)
        self._socket.connect(str(self.server.socket_path))
        self._reader = Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error)
        self._ask(pack("HELLO", "3"), 1)
        self.channels.clear()
        self._clock_view.clear()

    def kill(self) -> None:
        """SIGKILL."""
        self.server.kill()
        self._socket.close()

    @property
    def log_size(self) -> int:
        """Length of the log in bytes."""
        return self._log.stat().st_size

    def tear_log(self, size: int) -> None:
        """Truncate the log, while no server runs."""
        with self._log.open("r+b") as log:
            log.truncate(size)

    @property
    def _log(self) -> Path:
        (log,) = self._folder.glob("appendonlydir/*.incr.aof")
        return log

    def close(self) -> None:
        """Stop the server and remove all files."""
        if hasattr(self, "_socket"):
            self._socket.close()
        self.server.close()
        self._clock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- inspection ------------------------------------------------------------------------------

    def look(self, queue: str) -> dict[str, list[str]]:
        """The ids of the jobs in each place."""
        asked = {
            "ready": ("ZRANGE", "ready", "0", "-1"),
            "scheduled": ("ZRANGE", "scheduled", "0", "-1"),
            "leased": ("HKEYS", "leases"),
            "held": ("ZRANGE", "held", "0", "-1"),
            "blocked": ("HKEYS", "blocked"),
            "dead": ("ZRANGE", "dead", "0", "-1"),
            "broken": ("ZRANGE", "broken", "0", "-1"),
            "holders": ("ZRANGE", "holders", "0", "-1"),
            "data": ("HKEYS", "data"),
        }
        packed = b"".join(pack(verb, queue_key(queue, key), *rest) for verb, key, *rest in asked.values())
        replies = self._ask(packed, len(asked))
        seen: dict[str, list[str]] = {}
        for place, members in zip(asked, replies, strict=True):
            if place == "scheduled":  # members begin with a sequence number, which keeps the order
                seen[place] = [member[8:].decode() for member in members]
            else:
                names = [member.decode() for member in members]
                seen[place] = names if place == "ready" else sorted(names)
        return seen

    def step_of(self, queue: str) -> int:
        """The queue's current step number."""
        (core,) = self._ask(pack("HGET", queue_key(queue, "state"), "core"), 1)
        return unpack_core(core).step if core else 0
