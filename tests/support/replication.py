"""Support for clusters and Sentinel groups: servers that follow a primary and change roles."""

from __future__ import annotations

import redis

from tests.support.server import Server

# While roles change, servers close the connections of their clients.
ROLE_CHANGE_ERRORS = (redis.ConnectionError, redis.TimeoutError)
EAGER_REPLICATION = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


def primary_port(server: Server) -> int | None:
    """The port of its primary, if the server is a replica."""
    role = server.command("ROLE")
    return int(role[2]) if role[0] == b"slave" else None


def is_replica(server: Server) -> bool:
    return primary_port(server) is not None


def follows(server: Server) -> bool:
    """True for a primary, and for a replica whose link is up."""
    role = server.command("ROLE")
    return bool(role[0] != b"slave" or role[3] == b"connected")
