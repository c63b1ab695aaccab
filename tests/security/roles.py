"""A server with the users of docs/acl, and a check that it logged no violation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.support.server import Server, valkey_binary

RULES = Path(__file__).parents[2] / "docs" / "acl"
ROLES = ("producer", "worker", "reader")


@contextmanager
def guarded_server() -> Iterator[Server]:
    """A server that loads the three files as its `aclfile`."""
    server = Server(valkey_binary())
    users = server.dir / "users.acl"
    lines = "".join((RULES / f"{role}.acl").read_text() for role in ROLES)
    users.write_text("user default on nopass ~* &* +@all\n" + lines)
    server.config["aclfile"] = str(users)
    with server:
        yield server


def url_as(server: Server, role: str) -> str:
    """The URL for a role."""
    return f"unix://windlass-{role}:change-me@{server.socket_path}"


def breaches(server: Server) -> list[tuple[bytes, ...]]:
    """The logged violations: user and command."""
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in server.command("ACL", "LOG")]
    return [(entry[b"username"], entry[b"context"], entry[b"object"]) for entry in entries]


class RoleSeat:
    """Replaces the test server: apps connect with a role, the test's own client with all rights."""

    def __init__(self, server: Server, role: str) -> None:
        self._server = server
        self.url = url_as(server, role)
        self.address = server.address
        self.socket_path = server.socket_path

    def client(self, *, timeout: float = 5.0) -> redis.Redis:
        return self._server.client(timeout=timeout)

    def command(self, *args: str | bytes | int) -> object:
        return self._server.command(*args)
