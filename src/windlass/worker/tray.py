"""A tray: small jobs that lie ready for a child, so that it need not wait for the runner between two of them.

Whoever takes one out has it: the child to run it, or the runner to have it run elsewhere. The kernel gives each packet
to one of them, so a job that was taken back was certainly not begun, whatever the child is doing or has died of. Each
has a number, for while the runner takes back some the child may take one between them.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Self

LARGEST = 16 * 1024  # bytes: for what is larger only its number is put here, and it follows on the child's socket

_NUMBER = struct.Struct(">I")


class Tray:
    """The runner's side: both ends, for it puts jobs in and takes them back."""

    def __init__(self, entry: socket.socket, exit: socket.socket) -> None:
        self._entry = entry
        self._exit = exit  # shared with the child, which waits at it: so it is not made non-blocking here

    @classmethod
    def from_fds(cls, fds: list[int]) -> Self | None:
        """What came from the keeper; None where there are no trays."""
        return cls(*(socket.socket(fileno=fd) for fd in fds)) if fds else None

    def put(self, number: int, job: bytes) -> bool:
        """Whether there was room for it."""
        try:
            self._entry.send(_NUMBER.pack(number) + job, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def first(self) -> int | None:
        """Which one the child would take next; None if there is none."""
        return self._number(socket.MSG_PEEK)

    def take_back(self) -> set[int]:
        """Take out all that is in it: which ones that were. They are nobody's from now on."""
        numbers = set()
        while (number := self._number()) is not None:
            numbers.add(number)
        return numbers

    def _number(self, flags: int = 0) -> int | None:
        try:
            packet = self._exit.recv(_NUMBER.size, socket.MSG_DONTWAIT | flags)  # the rest of it is dropped
        except OSError:
            return None
        return int(_NUMBER.unpack(packet)[0]) if packet else None

    def close(self) -> None:
        """Nothing more will come: a child that waits for a job ends."""
        self._entry.close()
        self._exit.close()


def new_pair() -> tuple[socket.socket, ...]:
    """Where jobs go in and where they come out, for the keeper to hand on; none where there are no such sockets."""
    if not sys.platform.startswith("linux"):
        return ()
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def take(exit: socket.socket) -> bytes | None:
    """For the child: wait for the next job. Empty if it follows on the socket, None when nothing more will come."""
    packet = exit.recv(_NUMBER.size + LARGEST)
    return packet[_NUMBER.size :] if packet else None
