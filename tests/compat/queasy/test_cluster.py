"""On a cluster: all keys of a queue, ours beside it included, share one slot, and every step is one script there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.compat.queasy.peer import Peer
from tests.contract.leasing import take
from tests.support.cluster import Cluster
from tests.support.internals import layout_of, perform
from tests.support.repairing import repaired
from windlass import Limits, Queue, Status, Windlass


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(primaries=3) as cluster:
        yield cluster


@pytest.fixture(params=["emails", "thumbs", "sms"])
def queue(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue; these three are on different nodes."""
    with Windlass(cluster.url, retry_for=5) as app:
        queue = app.queue(request.param, layout="queasy")
        yield queue
        queue.purge()


def test_the_queues_of_these_tests_are_on_different_nodes(cluster: Cluster) -> None:
    assert len({cluster.owner(key_slot(name.encode())) for name in ("emails", "thumbs", "sms")}) == 3


@pytest.mark.speaks("queasy", "Q13")
def test_a_queue_lives_in_one_slot(cluster: Cluster, queue: Queue) -> None:
    client: Any = redis.RedisCluster.from_url(cluster.url)
    peer = Peer(cluster.node_of(queue.name).client(), queue.name)
    perform(queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    queue.enqueue_many([b"1"] * 10)
    queue.enqueue(b"1", id="~")
    assert len(peer.dequeue(5)) == 5
    lease = next(lease for lease in queue.lease_many(10, holder="worker-1") if lease.id == "~")
    assert queue.enqueue(b"2", id="~").status is Status.BLOCKED
    assert queue.retry(lease, delay=0)
    assert queue.fail(take(queue), "no")
    failure = take(queue, holder="worker-1")
    assert layout_of(queue).failure(failure).data == b"2"
    queue.enqueue(b"1", id="later", delay=60)
    assert repaired(queue) == (0, 0)
    keys = {key for key in client.keys("*", target_nodes="all") if queue.name.encode() in key}
    assert {key_slot(key) for key in keys} == {key_slot(queue.name.encode())}
    kinds = {key.partition(b"_job:")[0] for key in keys}
    braced = b"{" + queue.name.encode() + b"}"
    assert kinds == {
        *(braced + part for part in (b":waiting", b":active", b"-fail:waiting", b"-fail:active")),
        *(b"windlass:" + braced + b":queasy:" + name for name in (b"state", b"runs", b"holders", b"held")),
    }
    client.close()


@pytest.mark.speaks("queasy", "Q13")
def test_a_queue_goes_on_while_its_slot_moves(cluster: Cluster, queue: Queue) -> None:
    slot = key_slot(queue.name.encode())
    home = cluster.owner(slot)
    for id in "abc":
        queue.enqueue(b"1", id=id)
    lease = take(queue)
    cluster.move_slot(slot, (home + 1) % 3)
    assert queue.complete(lease)
    queue.enqueue(b"1", id="d")
    assert [each.id for each in queue.lease_many(5)] == ["b", "c", "d"]
    cluster.move_slot(slot, home)
    assert queue.counts().running == 3
