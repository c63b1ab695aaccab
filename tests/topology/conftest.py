"""The clusters and groups that the tests of this folder share: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.sentinel import SentinelGroup


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
