"""Every key that a server touches, as MONITOR shows it, and whether that key is allowed.

MONITOR tells of a script first, then of each command within it. So what a script does to keys that it made up itself is
seen as well, which the list of keys that it was called with would not show.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from redis.crc import key_slot

from tests.support.server import Server
from windlass.storage.native.keys import any_queue

# (key, command) → the queue that the key belongs to; None if it must not be touched.
Judge = Callable[[bytes, bytes], bytes | None]

_FIRST = frozenset(
    b"APPEND BLMOVE GET HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HMGET HRANDFIELD HSCAN HSET HSETNX INCRBY LINDEX "
    b"LLEN LPOP LPOS LPUSH LRANGE LREM LTRIM PERSIST PEXPIRE PTTL RPOP RPUSH SADD SCARD SET SETNX SISMEMBER SMEMBERS "
    b"SRANDMEMBER SREM TYPE ZADD ZCARD ZCOUNT ZMSCORE ZPOPMIN ZRANDMEMBER ZRANGE ZREM ZREMRANGEBYLEX ZREMRANGEBYSCORE "
    b"ZSCAN ZSCORE HPEXPIRE EXPIRE".split()
)
_FIRST_TWO = frozenset(b"LMOVE SMOVE RENAME".split())
_ALL = frozenset(b"DEL EXISTS MGET SDIFF UNLINK".split())
_NONE = frozenset(b"AUTH CLIENT CLUSTER COMMAND CONFIG ECHO HELLO INFO PING SCRIPT SELECT TIME WAIT WAITAOF".split())
_CHANNELS = frozenset(b"PUBLISH SUBSCRIBE UNSUBSCRIBE".split())
_CHANNEL = re.compile(rb"windlass:(wake|cancel|event|parked):.+", re.DOTALL)
_LINE = re.compile(rb"\+[0-9.]+ \[\d+ ([^\]]*)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}
_MARK = b"now-watching "
_NATIVE = re.compile(rb"windlass:\{([A-Za-z0-9][A-Za-z0-9._-]{0,127}|\.workers)\}:.+", re.DOTALL)


def native_key(key: bytes, command: bytes = b"") -> bytes | None:
    """The queue of a key of the native layout, by the form that the docs give."""
    found = _NATIVE.fullmatch(key)
    return found[1] if found else None


def _plain(word: bytes) -> bytes:
    """The original bytes of a word, without MONITOR's escapes."""
    if b"\\" not in word:
        return word
    return _ESCAPE.sub(
        lambda found: (
            bytes([int(found[1][1:], 16)])
            if found[1][:1] == b"x" and len(found[1]) == 3
            else _LETTERS.get(found[1], found[1])
        ),
        word,
    )


class KeyWatch:
    """Checks every command of a server from now on; `outside` lists every key that must not be touched."""

    def __init__(self, server: Server, judge: Judge = native_key, *, one_slot: bool = True) -> None:
        assert isinstance(server.address, Path)
        self.commands = 0
        self.outside: list[str] = []
        self._server = server
        self._judge = judge
        self._one_slot = one_slot
        self._expected: bytes | None = None
        self._script: tuple[bytes, bytes | None] = (b"", None)  # its first key, and that key's queue
        self._marks = 0
        self._seen = threading.Condition()
        self._last_mark = -1
        self._marker = server.client()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server.address))
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5) == b"+OK\r\n"
        self._thread = threading.Thread(target=self._read, name="key-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()
        self._marker.close()

    def expect(self, queue: str | None) -> None:
        """From now on only this queue may be touched; or any known queue."""
        self._marks += 1
        self._marker.echo(_MARK + b"%d " % self._marks + (queue or "").encode())

    def finish(self, patience: float = 60.0) -> list[str]:
        """Wait until all commands so far are checked; returns the keys outside."""
        self.expect(None)
        with self._seen:
            assert self._seen.wait_for(lambda: self._last_mark == self._marks, patience), "MONITOR has fallen silent"
        return self.outside

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> None:
        rest = b""
        while True:
            try:
                data = self._socket.recv(1 << 18)
            except OSError:
                return
            if not data:
                return
            *lines, rest = (rest + data).split(b"\r\n")
            for line in lines:
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        found = _LINE.fullmatch(line)
        if found is None:
            return self._complain(b"", b"a line of MONITOR that cannot be read: " + line[:80])
        self.commands += 1
        sender, said = found[1], found[2]
        head = _WORD.match(said)
        command = head[1].upper() if head else b""
        if command == b"ECHO":
            return self._hear_mark(_plain(_WORD.findall(said)[1]))
        if command in (b"EVALSHA", b"EVAL"):
            words = _WORD.findall(said)
            keys = [_plain(word) for word in words[3 : 3 + int(words[2])]]
            self._script = (keys[0], self._judge(keys[0], command)) if keys else (b"", None)
            return self._judge_keys(command, keys)
        return self._judge_keys(command, self._keys(command, said), inside=sender == b"lua")

    def _hear_mark(self, text: bytes) -> None:
        if not text.startswith(_MARK):
            return
        number, _, queue = text.removeprefix(_MARK).partition(b" ")
        self._expected = queue or None
        with self._seen:
            self._last_mark = int(number)
            self._seen.notify_all()

    def _keys(self, command: bytes, said: bytes) -> list[bytes]:
        if command in _NONE:
            return []
        if command in _FIRST:
            found = _WORD.match(said, _WORD.match(said).end() + 1)  # type: ignore[union-attr]  # it is a command
            return [_plain(found[1])] if found else []
        words = [_plain(word) for word in _WORD.findall(said)[1:]]
        if command in _FIRST_TWO:
            return words[:2]
        if command in _ALL:
            return words
        if command in _CHANNELS:
            for channel in words[:1] if command == b"PUBLISH" else words:
                if not _CHANNEL.fullmatch(channel):
                    self._complain(command, channel)
            return []
        if command == b"SCAN" and (any_queue().encode() in words):
            return []
        self._complain(command, b"a command that nothing should need")
        return []

    def _judge_keys(self, command: bytes, keys: list[bytes], inside: bool = False) -> None:
        first, owner = self._script
        for key in keys:
            queue = self._judge(key, command)
            if queue is None or (self._expected and queue != self._expected):
                self._complain(command, key)
            elif inside and (queue != owner or (self._one_slot and key_slot(key) != key_slot(first))):
                self._complain(command, key + b" (in a script on " + first + b")")

    def _complain(self, command: bytes, about: bytes) -> None:
        if len(self.outside) < 100:
            self.outside.append(f"{command.decode()} {about!r}")
