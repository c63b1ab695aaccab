"""Alternatives to a single test server: an embedded server, a Sentinel group, a cluster.

A seat provides what most tests need: a URL for the app, and a client that sees the keys. Only a test's own single
process can be killed, paused or put behind a proxy: a test that needs this is skipped, with a reason.

"""

from __future__ import annotations

import functools
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.cluster import Cluster
from tests.support.embedded import kill, servers_of
from tests.support.sentinel import SentinelGroup
from tests.support.server import HOST, Server, plain_client
from windlass.embedded import EmbeddedServer

# These tests need no role changes, so even a slow machine must not trigger any.
DOWN_AFTER_MS = 15_000

TOPOLOGIES = ("valkey", "redis7", "embedded", "sentinel", "cluster")


class Seat(ABC):
    """Stands where a test expects a `Server`."""

    lacks: ClassVar[str]
    """Why tests that need a single server are skipped."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for an app."""

    @abstractmethod
    def client(self, *, timeout: float = 5.0) -> redis.Redis:
        """A plain client that sees every key; the caller closes it."""

    @property
    @abstractmethod
    def version(self) -> str:
        """For example `Valkey 9.1.2`, reported by the server."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not (hasattr(Server, name) or name in ("dir", "port", "pid", "config")):
            raise AttributeError(name)
        if name == "address":  # proxies use it
            pytest.skip(f"{self.lacks}: clients would bypass a proxy")
        pytest.skip(f"{self.lacks}: there is no server.{name}")


class EmbeddedSeat(Seat):
    """The embedded server of its own home folder, found by that folder, as a program without a URL finds it."""

    lacks = "embedded is Windlass's to start and stop"

    def __init__(self, home: Path) -> None:
        self._server = EmbeddedServer(home)
        self.socket_path = Path(self._server.ensure())

    @property
    def url(self) -> str:
        return f"embedded://{self._server.home}"

    @property
    def address(self) -> Path:
        """The socket behind which a proxy connects."""
        return self.socket_path

    def client(self, *, timeout: float = 5.0) -> redis.Redis:
        return plain_client(socket_path=self.socket_path, timeout=timeout)

    def command(self, *args: str | bytes | int) -> Any:
        """Send one command; returns the raw reply."""
        with self.client() as client:
            client.response_callbacks.clear()
            return client.execute_command(*args)

    @property
    def version(self) -> str:
        return self._server.status().version or "unknown"


class _PrimaryClient(redis.Redis):
    """Hides the sentinels' connections from CLIENT LIST."""

    def client_list(self, *args: Any, **kwargs: Any) -> list[dict[str, str]]:
        every = super().client_list(*args, **kwargs)
        return [each for each in every if not each["name"].startswith("sentinel-")]


class PrimarySeat(Seat):
    """A Sentinel group: apps find the primary through the sentinels; the test's client connects to the primary."""

    lacks = "sentinel is a group of servers"

    def __init__(self, group: SentinelGroup) -> None:
        self._group = group

    @property
    def url(self) -> str:
        return self._group.url

    def client(self, *, timeout: float = 5.0) -> redis.Redis:
        return _PrimaryClient(
            host=HOST,
            port=self._group.primary.port or 0,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def command(self, *args: str | bytes | int) -> Any:
        """Send one command to the primary; returns the raw reply."""
        return self._group.primary.command(*args)

    @functools.cached_property
    def version(self) -> str:
        return self._group.primary.version


class _ClusterClient(redis.RedisCluster):
    """Sends server-wide questions to every primary; the library would ask any one node."""

    def keys(self, *args: Any, **kwargs: Any) -> list[bytes | str]:
        return [key for node in self._each() for key in node.keys(*args, **kwargs)]

    def info(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The numbers of every primary added up; other values from the last."""
        told: dict[str, Any] = {}
        for node in self._each():
            for name, value in node.info(*args, **kwargs).items():
                told[name] = _sum(told[name], value) if name in told else value
        return told

    def config_set(self, *args: Any, **kwargs: Any) -> bool:
        return all(node.config_set(*args, **kwargs) for node in self._each())

    def client_list(self, *args: Any, **kwargs: Any) -> list[dict[str, str]]:
        """The clients of all nodes; ids are made unique per node."""
        return [
            each | {"id": f"{place}:{each['id']}"}
            for place, node in enumerate(self._each())
            for each in node.client_list(*args, **kwargs)
        ]

    def client_kill_filter(self, *_: Any, **kwargs: Any) -> int:
        place, _, id = kwargs["_id"].partition(":")
        return self._each()[int(place)].client_kill_filter(**kwargs | {"_id": id})

    def pubsub_numsub(self, *channels: Any, **kwargs: Any) -> list[tuple[bytes | str, int]]:
        """Subscribers on all nodes: a message published on one is delivered on all."""
        counted = [node.pubsub_numsub(*channels, **kwargs) for node in self._each()]
        return [(column[0][0], sum(count for _, count in column)) for column in zip(*counted, strict=True)]

    @property
    def connection_pool(self) -> redis.ConnectionPool:
        """A pool for subscribers, who may connect to any node."""
        return self._each()[0].connection_pool

    def _each(self) -> list[redis.Redis]:
        primaries = sorted(self.get_primaries(), key=lambda node: node.name)  # type: ignore[no-untyped-call]
        return [self.get_redis_connection(node) for node in primaries]


def _sum(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {name: _sum(first.get(name, 0), value) for name, value in second.items()}
    return first + second if isinstance(first, int | float) else second


class ClusterSeat(Seat):
    """A cluster: the URL of a node, and a client that finds every key."""

    lacks = "cluster is many servers"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def url(self) -> str:
        return self._cluster.url

    def client(self, *, timeout: float = 5.0) -> redis.Redis:
        return cast(redis.Redis, _ClusterClient.from_url(self.url, socket_timeout=timeout))

    @functools.cached_property
    def version(self) -> str:
        return self._cluster.nodes[0].version


class _SteadyClient(_ClusterClient):
    """Stays open, because discovering the cluster is slow and stays valid for every test."""

    def __exit__(self, *_: object) -> None:
        """Does nothing: the seat closes the client."""


class SteadyClusterSeat(ClusterSeat):
    """A cluster in which no slot moves and no node changes its role."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._client = _SteadyClient.from_url(self.url, socket_timeout=5.0)

    def client(self, *, timeout: float = 5.0) -> redis.Redis:
        return cast(redis.Redis, self._client)

    def close(self) -> None:
        self._client.close()


@contextmanager
def embedded_seat() -> Iterator[EmbeddedSeat]:
    """An embedded server, stopped at the end of the block."""
    base = Path(tempfile.mkdtemp(prefix="wl-")).resolve()  # short, because a socket path is limited to about 100 bytes
    try:
        yield EmbeddedSeat(base / "home")
    finally:
        for pid in servers_of(base / "home"):
            kill(pid)
        shutil.rmtree(base)


@contextmanager
def sentinel_seat() -> Iterator[PrimarySeat]:
    """One primary, two replicas, three sentinels, stopped at the end of the block."""
    with SentinelGroup(down_after_ms=DOWN_AFTER_MS, appendonly=True) as group:
        yield PrimarySeat(group)


@contextmanager
def cluster_seat() -> Iterator[ClusterSeat]:
    """Three primaries, each with a replica, stopped at the end of the block."""
    with Cluster(replicas=1, node_timeout_ms=DOWN_AFTER_MS, appendonly=True) as cluster:
        seat = SteadyClusterSeat(cluster)
        yield seat
        seat.close()
