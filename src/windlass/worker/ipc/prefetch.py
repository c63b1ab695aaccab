"""The prefetch of a child: a socket pair that holds small jobs, so that the child need not wait for the runner.

Both the child and the runner take jobs out: the child to run them, the runner to run them elsewhere. The kernel gives
each packet to only one of them, so a job that the runner withdrew never started, even if the child has died. Jobs are
numbered, because the child may take one while the runner withdraws the others.

The sockets are non-blocking. Both processes share that property, so `socket.setdefaulttimeout` of the user's code must
not change it, and no call here waits in the kernel for a packet.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from typing import Self

MAX_JOB_BYTES = 16 * 1024  # fits many times into a socket buffer; a larger job follows on the child's socket

_NUMBER = struct.Struct(">I")


class Prefetch:
    """The runner's side. It holds both ends, because it puts jobs in and withdraws them."""

    def __init__(self, inlet: socket.socket, outlet: socket.socket) -> None:
        self._inlet = inlet
        self._outlet = outlet
        inlet.settimeout(0)
        outlet.settimeout(0)

    @classmethod
    def from_fds(cls, fds: list[int]) -> Self | None:
        """Wrap the descriptors from the supervisor; None if this system has no prefetch."""
        return cls(*(socket.socket(fileno=fd) for fd in fds)) if fds else None

    def put(self, number: int, job: bytes) -> bool:
        """Put a job in. Returns False if it does not fit."""
        try:
            self._inlet.send(_NUMBER.pack(number) + job, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def withdraw(self) -> set[int]:
        """Withdraw all jobs and return their numbers."""
        numbers = set()
        try:
            while packet := self._outlet.recv(_NUMBER.size, socket.MSG_DONTWAIT):  # recv drops the packet's rest
                numbers.add(int(_NUMBER.unpack(packet)[0]))
        except OSError:
            pass
        return numbers

    def close(self) -> None:
        """Close both ends. A child that waits for a job ends."""
        self._inlet.close()
        self._outlet.close()


def new_pair() -> tuple[socket.socket, ...]:
    """Create the inlet and the outlet, for the supervisor to pass on. Empty if the system has no such sockets."""
    if not sys.platform.startswith("linux"):
        return ()
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        return ()


def open_outlet(fd: int) -> socket.socket:
    """Open the child's end, from the descriptor that the forkserver passed."""
    outlet = socket.socket(fileno=fd)
    outlet.settimeout(0)
    return outlet


def take(outlet: socket.socket) -> bytes | None:
    """Wait in the child for the next job. Empty if the job follows on the socket, None when the prefetch is closed."""
    while True:
        try:
            packet = outlet.recv(_NUMBER.size + MAX_JOB_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(outlet, select.POLLIN)
            waiting.poll()
        else:
            return packet[_NUMBER.size :] if packet else None
