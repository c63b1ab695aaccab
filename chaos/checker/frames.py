"""Fast log reading: undecoded frames, and single records at known offsets.

A run of millions of jobs has tens of millions of records. Most are read once; a few bytes tell their kind, and only
the needed ones are decoded.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from chaos.log import Any_

_LENGTH = struct.Struct("<I")
_length = _LENGTH.unpack_from
_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 17
_MAX_OPEN_FILES = 200
_LONG_ARRAY = 0xDC  # msgpack's marker of an array with more than 15 items

decode = msgspec.msgpack.Decoder(Any_).decode


class TornLog(Exception):
    """A file ends in the middle of a record, which whole-record appends cannot produce."""


def frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """All records of a file, undecoded, each with its offset."""
    with path.open("rb", buffering=0) as file:
        base, rest = 0, b""
        while chunk := file.read(_BLOCK_BYTES):
            data = rest + chunk
            at, end = 0, len(data)
            while at + 4 <= end:
                stop = at + 4 + _length(data, at)[0]
                if stop > end:
                    break
                yield base + at, data[at + 4 : stop]
                at = stop
            base += at
            rest = data[at:]
        if rest:
            raise TornLog(f"{path} ends in the middle of a record")


def kind(body: bytes) -> bytes:
    """The first three letters of a record's tag."""
    return body[4:7] if body[0] == _LONG_ARRAY else body[2:5]


class Shelf:
    """The files of a log by number, for reads at known offsets: mostly sequential, so a window at a time."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._open: OrderedDict[int, _Window] = OrderedDict()

    def read(self, file: int, offset: int) -> Any:
        """The record at this offset."""
        window = self._open.get(file)
        if window is None:
            window = self._open[file] = _Window(self._paths[file])
            if len(self._open) > _MAX_OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(file)
        return decode(window.body(offset))

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()


class _Window:
    """A cached block of one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._start = 0
        self._data = b""

    def body(self, offset: int) -> bytes:
        at = offset - self._start
        data = self._data
        if at < 0 or at + 4 > len(data):
            at, data = 0, self._move(offset, _WINDOW_BYTES)
        stop = at + 4 + _length(data, at)[0]
        if stop > len(data):
            size = stop - at
            at, data = 0, self._move(offset, max(_WINDOW_BYTES, size))
            stop = size
        return data[at + 4 : stop]

    def _move(self, offset: int, size: int) -> bytes:
        self._start = offset
        self._data = os.pread(self._file, size, offset)
        return self._data

    def close(self) -> None:
        os.close(self._file)
