"""The I/O steps that a session asks its driver for: the only places where blocking and asyncio programs differ."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from hiredis import pack_command
from msgspec import Struct

from windlass.transport.endpoint import Address

T = TypeVar("T")


class Wire(Protocol):
    """An open connection."""

    def abort(self) -> None:
        """Close at once, without waiting for replies."""
        ...


class Connect(Struct, frozen=True):
    """Open a connection and authenticate. Result: the wire, or an error reply as a value. Raises ConnectFailed."""

    address: Address
    sentinel: bool = False


class Exchange(Struct, frozen=True):
    """Send packed commands and read `replies` replies. Result: the replies, including errors. Raises WireLost.

    `meanwhile` runs after the commands are sent and before the replies are read.
    """

    wire: Wire
    packed: bytes
    replies: int = 1
    meanwhile: Callable[[], object] | None = None

    def run_meanwhile(self) -> None:
        """Call `meanwhile`. If it raises, nothing reads the replies, so the wire is closed."""
        if self.meanwhile is None:
            return
        try:
            self.meanwhile()
        except BaseException:
            self.wire.abort()
            raise


class AwaitMessage(Struct, frozen=True):
    """Wait for a message on a subscribed wire. Result: [kind, channel, payload], an error reply, or None.

    Raises WireLost.
    """

    wire: Wire
    seconds: float


class Sleep(Struct, frozen=True):
    """Sleep."""

    seconds: float


class Work(Struct, frozen=True):
    """Run a function that may block. Result: its return value."""

    function: Callable[[], Any]


def pack(*words: bytes | str | int) -> bytes:
    """Encode a command."""
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub wants a tuple of one
    return packed


Step = Connect | Exchange | AwaitMessage | Sleep | Work
Flow = Generator[Step, Any, T]
