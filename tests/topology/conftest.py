"""The clusters and groups that the tests of this folder share: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import redis

from tests.support.cluster import Cluster
from tests.support.sentinel import SentinelGroup


class ClusterSeat:
    """A cluster where a test expects a server: the URL of a node, and a client that finds every key."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def url(self) -> str:
        return self._cluster.url

    def client(self) -> redis.Redis:
        return cast(redis.Redis, redis.RedisCluster.from_url(self.url))


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Three primaries, each with a replica. A test that changes their roles or slots leaves the cluster whole."""
    with Cluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def group() -> Iterator[SentinelGroup]:
    """A primary and two replicas, watched by three sentinels."""
    with SentinelGroup() as group:
        yield group
