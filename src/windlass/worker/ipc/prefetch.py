"""A prefetch: small jobs that lie ready for a child, so that it need not wait for the runner between two of them.

Whoever takes one out has it: the child to run it, or the runner to have it run elsewhere. The kernel gives each packet
to one of them, so a job that was taken back was certainly not begun, whatever the child is doing or has died of. Each
has a number, for while the runner takes back some the child may take one between them.

No call here waits in the kernel for a packet, and none goes by `socket.setdefaulttimeout`, which the user's code may
set: whether a socket blocks is a property that both processes share.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from typing import Self

LARGEST = 16 * 1024  # bytes: for what is larger only its number is put here, and it follows on the child's socket

_NUMBER = struct.Struct(">I")


class Prefetch:
    """The runner's side: both ends, for it puts jobs in and takes them back."""

    def __init__(self, inlet: socket.socket, outlet: socket.socket) -> None:
        self._inlet = inlet
        self._outlet = outlet
        inlet.settimeout(0)
        outlet.settimeout(0)

    @classmethod
    def from_fds(cls, fds: list[int]) -> Self | None:
        """What came from the supervisor; None where there are no prefetchs."""
        return cls(*(socket.socket(fileno=fd) for fd in fds)) if fds else None

    def put(self, number: int, job: bytes) -> bool:
        """Whether there was room for it."""
        try:
            self._inlet.send(_NUMBER.pack(number) + job, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def take_back(self) -> set[int]:
        """Take out all that is in it: which ones that were. They are nobody's from now on."""
        numbers = set()
        try:
            while packet := self._outlet.recv(_NUMBER.size, socket.MSG_DONTWAIT):  # the rest of it is dropped
                numbers.add(int(_NUMBER.unpack(packet)[0]))
        except OSError:
            pass
        return numbers

    def close(self) -> None:
        """Nothing more will come: a child that waits for a job ends."""
        self._inlet.close()
        self._outlet.close()


def new_pair() -> tuple[socket.socket, ...]:
    """Where jobs go in and where they come out, for the supervisor to hand on; none where there are no such sockets."""
    if not sys.platform.startswith("linux"):
        return ()
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        return ()


def open_outlet(fd: int) -> socket.socket:
    """For the child: its end, as the forkserver handed it over."""
    outlet = socket.socket(fileno=fd)
    outlet.settimeout(0)
    return outlet


def take(outlet: socket.socket) -> bytes | None:
    """For the child: wait for the next job. Empty if it follows on the socket, None when nothing more will come."""
    while True:
        try:
            packet = outlet.recv(_NUMBER.size + LARGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(outlet, select.POLLIN)
            waiting.poll()
        else:
            return packet[_NUMBER.size :] if packet else None
