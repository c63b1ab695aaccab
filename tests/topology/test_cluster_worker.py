"""A worker whose queues lie on two nodes of a cluster: when one node stands still, the other queue does not notice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.support.cluster import Cluster
from tests.support.seats import ClusterSeat
from tests.support.server import Server
from tests.support.workers import Workshop, pass_time, wait_dead
from windlass.storage.native import keys

LEASE = 1.5
GRACE = 5.0  # seconds that holders get for a heartbeat after a server silence, before they are declared lost


class LivelySeat(ClusterSeat):
    """A cluster where a workshop expects a server."""

    alive = True


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """Two primaries and nobody to take their place; so patient that a node that stands still is not called dead."""
    with Cluster(primaries=2, node_timeout_ms=60_000) as cluster:
        yield cluster


@pytest.fixture
def shop(pair: Cluster, tmp_path: Path) -> Iterator[Workshop]:
    with Workshop(cast(Server, LivelySeat(pair)), tmp_path) as shop:
        yield shop


def queue_on(cluster: Cluster, index: int) -> str:
    """The name of a queue on one of the primaries."""
    names = (f"split-{number}" for number in range(1000))
    return next(name for name in names if cluster.owner(cluster.slot_of(keys.queue_key(name, "state"))) == index)


@pytest.mark.parametrize(
    ("patience", "silence"), [(0.5, GRACE + 0.5), (10.0, 1.5 * LEASE)], ids=["long silence", "patient calls"]
)
def test_a_node_that_stands_still_disturbs_only_its_own_queue(
    pair: Cluster, shop: Workshop, tmp_path: Path, patience: float, silence: float
) -> None:
    frozen, healthy = queue_on(pair, 0), queue_on(pair, 1)
    worker = shop.start(
        "gated",
        queues={frozen: 1, healthy: 1},
        lease=LEASE,
        concurrency=20,
        processes=4,
        kill_grace=0.5,
        environment={"WINDLASS_TEST_PATIENCE": str(patience)},
    )
    gate, open_gate = tmp_path / "gate", tmp_path / "open"
    open_gate.touch()
    held = {
        queue: [shop.send(f"{way}_gate", str(gate), queue=queue) for way in ("loop", "process")]
        for queue in (frozen, healthy)
    }
    starts = shop.journal.wait(4, "start")
    pids = {entry.id: entry.pid for entry in starts}
    at = time.monotonic()
    quick = []
    with pair.nodes[0].paused():
        while time.monotonic() < at + silence:
            quick.append(shop.send("loop_gate", str(open_gate), queue=healthy))
            shop.journal.wait(1, "end", id=quick[-1])
            pass_time(0.1)
        # What ran of the frozen queue was stopped before its lease had ended.
        assert shop.journal.ids("stopped") == held[frozen][:1]
        wait_dead(pids[held[frozen][1]])
        gate.touch()
        for id in held[healthy]:
            shop.journal.wait(1, "end", id=id)
        assert "Runner " not in worker.log
    for id in held[frozen]:
        shop.journal.wait(1, "end", id=id)
    shop.wait_empty(frozen, healthy)
    starts_of, ends_of = Counter(shop.journal.ids("start")), Counter(shop.journal.ids("end"))
    undisturbed = [*quick, *held[healthy]]
    assert {starts_of[id] for id in undisturbed} == {ends_of[id] for id in undisturbed} == {1}
    assert all(starts_of[id] > 1 for id in held[frozen]), "run again"
    assert not shop.journal.overlaps()
    assert all(shop.queue(queue).counts().dead == 0 for queue in (frozen, healthy))
    assert worker.stop() == 0


def test_what_ends_on_a_node_that_stands_still_holds_up_nobody(pair: Cluster, shop: Workshop, tmp_path: Path) -> None:
    """Its outcomes wait for the node; the jobs of the other queue do not."""
    frozen, healthy = queue_on(pair, 0), queue_on(pair, 1)
    shop.start("gated", queues={frozen: 1, healthy: 1}, lease=30.0, concurrency=20)
    gate, open_gate = tmp_path / "gate", tmp_path / "open"
    open_gate.touch()
    ids = [shop.send("loop_gate", str(gate), queue=frozen) for _ in range(3)]
    shop.journal.wait(3, "start")
    shop.send("loop_gate", str(open_gate), queue=healthy)
    shop.journal.wait(1, "end")
    with pair.nodes[0].paused():
        gate.touch()
        shop.journal.wait(4, "end")
        for _ in range(5):
            id = shop.send("loop_gate", str(open_gate), queue=healthy)
            shop.journal.wait(1, "end", id=id)
            shop.wait_job_gone(healthy, id)
    shop.wait_empty(frozen, healthy)
    assert {entry.attempt for entry in shop.journal.all("end")} == {1}
    assert all(count == 1 for count in Counter(shop.journal.ids("end")).values())
    assert set(ids) <= set(shop.journal.ids("end"))


def test_a_worker_that_starts_while_a_node_stands_still_serves_the_other(
    pair: Cluster, shop: Workshop, tmp_path: Path
) -> None:
    frozen, healthy = queue_on(pair, 0), queue_on(pair, 1)
    gate = tmp_path / "gate"
    gate.touch()
    early = [shop.send("loop_gate", str(gate), queue=queue) for queue in (frozen, healthy)]
    with pair.nodes[0].paused():
        # It must not ask the node that stands still for the way.
        shop.url = pair.nodes[1].tcp_url
        worker = shop.start(
            "gated",
            wait=False,
            queues={frozen: 1, healthy: 1},
            lease=LEASE,
            environment={"WINDLASS_TEST_PATIENCE": str(2 * LEASE)},
        )
        shop.journal.wait(1, "end", id=early[1])
        at = time.monotonic()
        while time.monotonic() < at + LEASE:
            id = shop.send("loop_gate", str(gate), queue=healthy)
            shop.journal.wait(1, "end", id=id)
        assert not shop.journal.all("start", id=early[0])
        assert all(count == 1 for count in Counter(shop.journal.ids("start")).values())
        assert "Runner " not in worker.log
    shop.journal.wait(1, "end", id=early[0])
    shop.wait_empty(frozen, healthy)
