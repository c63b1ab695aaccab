"""What a session asks its runner to do: the only steps at which blocking and asyncio programs differ."""

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
        """Close at once, without waiting: nothing more is read from it."""
        ...


class Connect(Struct, frozen=True):
    """Open a connection and authenticate. Answer: the wire. Raises ConnectFailed, or an error reply as value."""

    address: Address
    sentinel: bool = False


class Exchange(Struct, frozen=True):
    """Send packed commands and read as many replies. Answer: the replies, errors among them. Raises WireLost.

    `meanwhile` is done when all is on its way, before anything is read.
    """

    wire: Wire
    packed: bytes
    replies: int = 1
    meanwhile: Callable[[], object] | None = None

    def pass_the_time(self) -> None:
        """Do what is to be done meanwhile. If that fails nobody will read the replies, so the wire is closed."""
        if self.meanwhile is None:
            return
        try:
            self.meanwhile()
        except BaseException:
            self.wire.abort()
            raise


class Hear(Struct, frozen=True):
    """Wait for a message on a subscribed wire. Answer: [kind, channel, payload], an error reply, or None in vain.

    Raises WireLost.
    """

    wire: Wire
    seconds: float


class Sleep(Struct, frozen=True):
    """Wait."""

    seconds: float


class Work(Struct, frozen=True):
    """Run a function that may block. Answer: what it returns."""

    function: Callable[[], Any]


def pack(*words: bytes | str | int) -> bytes:
    """A command as it is sent."""
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub wants a tuple of one
    return packed


Step = Connect | Exchange | Hear | Sleep | Work
Flow = Generator[Step, Any, T]
