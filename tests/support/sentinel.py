"""A real Sentinel group for a test."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.replication import EAGER_REPLICATION, ROLE_CHANGE_ERRORS, follows, is_replica
from tests.support.server import HOST, Fsync, Server
from tests.support.waiting import wait_until


class SentinelGroup:
    """One primary, two replicas and three sentinels with a quorum of two."""

    NAME = "mymaster"

    def __init__(
        self,
        *,
        binary: Path | None = None,
        config: Mapping[str, str] | None = None,
        down_after_ms: int = 500,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
        first_host: str = HOST,
    ) -> None:
        """`first_host`: the address of the first primary, if it differs from that of the others.

        Each server then also has a unix socket, which works while that address is down.
        """
        self._first_host = first_host
        apart = first_host != HOST
        settings = {**EAGER_REPLICATION, **(config or {})}
        self.servers = [
            Server(binary, unix=apart, tcp=True, config=settings, appendonly=appendonly, appendfsync=appendfsync)
            for _ in range(3)
        ]
        if apart:
            for server in self.servers:
                server.config |= {"replica-announce-ip": HOST, "protected-mode": "no"}
            self.servers[0].config |= {"bind": f"{HOST} {first_host}", "replica-announce-ip": first_host}
        self.sentinels: list[Server] = [
            _Sentinel(binary, self.NAME, f"{first_host} {{}}", self.servers[0], down_after_ms) for _ in range(3)
        ]
        self._killed: Server | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.NAME}/0"

    @property
    def primary(self) -> Server:
        """The primary according to the sentinels; LookupError while they disagree."""
        found = self._agreed()
        if found is None:
            raise LookupError("the sentinels do not agree on a primary")
        return found

    def start(self) -> None:
        """Start everything; returns once each sentinel knows the others and both replicas."""
        primary, *replicas = self.servers
        primary.start()
        for replica in replicas:
            replica.config["replicaof"] = f"{self._first_host} {primary.port}"
            replica.start()
        wait_until(lambda: all(map(follows, replicas)), "the replicas to follow", ignoring=ROLE_CHANGE_ERRORS)
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(self._all_known, "the sentinels to know the group", ignoring=ROLE_CHANGE_ERRORS)

    def close(self) -> None:
        with ExitStack() as stack:
            for server in (*self.servers, *self.sentinels):
                stack.callback(server.close)

    def kill_primary(self) -> Server:
        """Kill the primary with SIGKILL, once no failover is in progress; returns it, so that it can be restarted."""
        # If the promoted server dies before the failover ends, a sentinel stays in that failover forever.
        self._killed = self.wait_calm()
        self._killed.kill()
        return self._killed

    def wait_calm(self) -> Server:
        """Return the primary, once all sentinels agree on it and no failover is in progress."""
        return wait_until(self._calm, "the sentinels to end the last failover", ignoring=ROLE_CHANGE_ERRORS)

    def wait_new_primary(self, timeout: float = 20.0, *, instead_of: Server | None = None) -> Server:
        """Return the promoted server, once all live sentinels name it and it reports the role itself.

        `instead_of`: the old primary; by default the last one killed.
        """
        self._killed = instead_of or self._killed
        return wait_until(self._promoted, "a new primary", timeout=timeout, ignoring=ROLE_CHANGE_ERRORS)

    def wait_replicas(self, count: int, timeout: float = 20.0) -> None:
        """Return once `count` live servers follow the primary, including restarted ones."""

        def followers() -> int:
            return sum(server.alive and is_replica(server) and follows(server) for server in self.servers)

        wait_until(lambda: followers() >= count, f"{count} replicas", timeout=timeout, ignoring=ROLE_CHANGE_ERRORS)

    def _promoted(self) -> Server | None:
        found = self._agreed()
        if found is None or found is self._killed or not found.alive or is_replica(found):
            return None
        return found

    def _agreed(self) -> Server | None:
        named: set[int] = set()
        for sentinel in self.sentinels:
            if sentinel.alive:
                reply = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
                named.add(int(reply[1]) if reply else 0)
        if len(named) != 1:
            return None
        return next((server for server in self.servers if server.port in named), None)

    def _calm(self) -> Server | None:
        found = self._agreed()
        calm = all(
            _pairs(sentinel.command("SENTINEL", "MASTER", self.NAME))["flags"] == "master"
            for sentinel in self.sentinels
            if sentinel.alive
        )
        return found if calm else None

    def _all_known(self) -> bool:
        line = f"status=ok,address={self._first_host}:{self.servers[0].port},slaves=2,sentinels=3"
        return all(line in sentinel.info("sentinel").get("master0", "") for sentinel in self.sentinels)


class _Sentinel(Server):
    # The defaults suit real networks: a group would take two seconds to meet and ten to see a replica.
    # A replica is promoted only if its INFO is younger than five ping periods; during a failover it comes each second.
    _PERIODS = ("INFO-PERIOD", 200, "PING-PERIOD", 300, "ASK-PERIOD", 100, "PUBLISH-PERIOD", 100)

    def __init__(self, binary: Path | None, name: str, address: str, primary: Server, down_after_ms: int) -> None:
        """`address`: of the primary, with a placeholder for its port, which is not chosen yet."""
        super().__init__(binary, unix=False, tcp=True)
        self._name = name
        self._address = address
        self._primary = primary
        self._down_after_ms = down_after_ms

    def start(self) -> None:
        super().start()
        self.command("SENTINEL", "DEBUG", *self._PERIODS)

    def _directives(self) -> list[str]:
        return [
            f"bind {HOST}",
            f"port {self.port}",
            f"dir {self.dir}",
            f"logfile {self._log}",
            f"sentinel monitor {self._name} {self._address.format(self._primary.port)} 2",
            f"sentinel announce-ip {HOST}",
            f"sentinel down-after-milliseconds {self._name} {self._down_after_ms}",
            f"sentinel failover-timeout {self._name} 2000",
        ]

    def _arguments(self) -> list[str]:
        return [str(self._conf), "--sentinel"]


def _pairs(reply: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
