"""A cluster of three: each queue in one slot, found from any node, and at work while slots and nodes change."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis

from tests.support.cluster import Cluster
from tests.support.internals import layout_of, settle
from tests.support.seats import ClusterSeat
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.topology.life import BOTH_FACES, QueueLife, drain, every_verb, fill_every_key, through
from windlass import Queue, Status, Windlass
from windlass.errors import ResultMissing
from windlass.storage.native import keys
from windlass.values.outcome import Completed, Kept


@pytest.fixture
def server(cluster: Cluster) -> ClusterSeat:
    return ClusterSeat(cluster)


class TestOnACluster(QueueLife):
    """The representative life."""


def names_on_each_node(cluster: Cluster, prefix: str) -> list[str]:
    """A queue name for each primary, in their order."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < cluster.primaries:
        name = f"{prefix}-{number}"
        found.setdefault(cluster.owner(cluster.slot_of(keys.queue_key(name, "state"))), name)
        number += 1
    return [found[index] for index in sorted(found)]


def slot_of(cluster: Cluster, queue: Queue) -> int:
    return cluster.slot_of(keys.queue_key(queue.name, "state"))


def holder_of(cluster: Cluster, queue: Queue) -> Server:
    return cluster.nodes[cluster.owner(slot_of(cluster, queue))]


def another(cluster: Cluster, slot: int) -> int:
    """The index of a primary that does not hold the slot."""
    owners = {cluster.owner(edge) for edge in (0, 16_383 // 2, 16_383)}
    return min(owners - {cluster.owner(slot)})


def refusals(node: Server, code: str) -> int:
    """How often a node has answered with this error."""
    told = node.info("errorstats").get(f"errorstat_{code}", "count=0")
    return int(told.removeprefix("count="))


def wait_for_refusal(node: Server, code: str) -> None:
    """Returns when the node has answered with this error once more."""
    before = refusals(node, code)
    wait_until(lambda: refusals(node, code) > before, f"a call to be answered with {code}")


def wait_for_owner(cluster: Cluster, slot: int, index: int) -> None:
    wait_until(lambda: cluster.owner(slot) == index, f"node {index} to have slot {slot}")


# -- where a queue is -----------------------------------------------------------------------------


@pytest.mark.serves("Q13")
def test_every_key_of_a_queue_lies_in_one_slot(cluster: Cluster, app: Windlass, client: redis.Redis) -> None:
    names = names_on_each_node(cluster, "slots")
    for name in names:
        queue = app.queue(name)
        fill_every_key(queue, client.lpush, lambda key: client.zadd(key, {"nobody": 1}))
    places: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    for index, node in enumerate(cluster.nodes[: cluster.primaries]):
        for key in node.command("KEYS", "windlass:{slots-*"):
            queue_name = key.decode().partition("{")[2].partition("}")[0]
            places[queue_name].append((index, node.command("CLUSTER", "KEYSLOT", key)))
    for name in names:
        assert len(places[name]) == len(keys.NAMES), "not every kind of key is there"
        assert len(set(places[name])) == 1
    assert len({spots[0][0] for spots in places.values()}) == cluster.primaries
    for name in names:
        app.queue(name).purge()
        client.delete(*(keys.queue_key(name, each) for each in ("idle", "schedules", "ticks")))


@BOTH_FACES
@pytest.mark.parametrize("seed", range(6), ids=lambda index: f"node{index}")
@pytest.mark.usefixtures("client")
def test_every_verb_from_any_node(cluster: Cluster, seed: int, face: type) -> None:
    with Windlass(cluster.nodes[seed].tcp_url, retry_for=5) as app:
        for name in names_on_each_node(cluster, "seeds"):
            queue = through(face, app.queue(name))
            every_verb(queue)
            queue.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("index", range(3))
def test_a_wait_subscribes_on_the_node_of_its_queue(
    cluster: Cluster, server: ClusterSeat, app: Windlass, index: int
) -> None:
    """Another node forwards messages later: a wait could hear of the end of an earlier job with the same id."""
    queue = app.queue(names_on_each_node(cluster, "wait")[index])
    queue.enqueue(b"", id="a", delay=3600)
    node, channel = holder_of(cluster, queue), layout_of(queue).event_channel("a")
    with Windlass(server.url) as newcomer, ThreadPoolExecutor() as pool:
        waits = pool.submit(newcomer.job(queue.name, "a").result)  # its first call: it knows one node of the cluster
        wait_until(lambda: waits.done() or node.command("PUBSUB", "NUMSUB", channel)[1], "a subscription")
        assert not waits.done()
        assert queue.cancel("a")
        with pytest.raises(ResultMissing):
            waits.result()


@pytest.mark.usefixtures("client")
def test_a_dead_seed_is_passed_over(cluster: Cluster) -> None:
    seeds = ",".join(["127.0.0.1:1", *(f"127.0.0.1:{node.port}" for node in cluster.nodes)])
    for _ in range(5):
        with Windlass(f"redis://{seeds}/0", retry_for=5) as app:
            queue = app.queue("seeds")
            queue.enqueue(b"x")
            assert drain(queue) == [b"x"]


@pytest.mark.usefixtures("client")
def test_scripts_touch_no_key_that_they_do_not_declare(cluster: Cluster) -> None:
    queue_name = names_on_each_node(cluster, "declared")[0]
    node = cluster.node_of(keys.queue_key(queue_name, "state"))
    own = [f"~{key}" for key in (*keys.queue_keys(queue_name), keys.result_key(queue_name, "*"))]
    for each in cluster.nodes:
        each.command("ACL", "SETUSER", "confined", "reset", "on", ">pw", "+@all", "&*", *own)
        each.command("ACL", "LOG", "RESET")
    try:
        with Windlass(f"redis://confined:pw@127.0.0.1:{node.port}/0", retry_for=5) as app:
            queue = app.queue(queue_name)
            every_verb(queue)
            fill_every_key(
                queue,
                lambda key, data: node.command("LPUSH", key, data),
                lambda key: node.command("ZADD", key, 1, "nobody"),
            )
            assert queue.audit(repair=True).repaired == 1  # the waiter that never was
            assert queue.purge() == 8
            node.command("DEL", keys.queue_key(queue_name, "schedules"), keys.queue_key(queue_name, "ticks"))
        assert [each.command("ACL", "LOG") for each in cluster.nodes] == [[]] * len(cluster.nodes)
    finally:
        for each in cluster.nodes:
            each.command("ACL", "DELUSER", "confined")


# -- slots on the move ----------------------------------------------------------------------------


def test_a_moved_slot_is_followed_once(cluster: Cluster, raw_queue: Queue) -> None:
    raw_queue.enqueue(b"before")
    slot = slot_of(cluster, raw_queue)
    source = holder_of(cluster, raw_queue)
    before = refusals(source, "MOVED")
    cluster.move_slot(slot, another(cluster, slot))
    for number in range(20):
        raw_queue.enqueue(b"%d" % number)
    assert refusals(source, "MOVED") - before == 1
    assert len(drain(raw_queue)) == 21


@BOTH_FACES
def test_a_call_is_answered_by_the_node_that_the_slot_goes_to(
    cluster: Cluster, raw_queue: Queue, client: redis.Redis, face: type
) -> None:
    """With every key there the target can answer before the move is over (ASK)."""
    queue = through(face, raw_queue)
    fill_every_key(queue, client.lpush, lambda key: client.zadd(key, {"nobody": 2**52}))
    slot = slot_of(cluster, queue)
    source = holder_of(cluster, queue)
    before = refusals(source, "ASK")
    move = cluster.begin_move(slot, another(cluster, slot))
    while move.migrate():
        pass
    try:
        assert queue.counts().inbox == 1
        assert queue.enqueue(b"more").status is Status.ADDED  # with an id a result's key comes, which is not there
        assert refusals(source, "ASK") - before >= 2
    finally:
        move.finish()
    assert queue.counts().ready == 2
    client.delete(keys.queue_key(queue.name, "idle"))
    queue.close()  # type: ignore[attr-defined]


class Traffic:
    """Threads that enqueue, cancel, lease, and complete with results; and a ledger of what they were told."""

    def __init__(self, url: str, name: str, *, producers: int = 2, workers: int = 2, retry_for: float = 20.0) -> None:
        self.acknowledged: list[tuple[float, bytes]] = []
        self.completed: Counter[bytes] = Counter()
        self.errors: list[BaseException] = []
        self._app = Windlass(url, retry_for=retry_for, call_timeout=2)
        self._queue = self._app.queue(name)
        self._ending = threading.Event()
        self._producing = [threading.Thread(target=self._guarded, args=(self._produce, n)) for n in range(producers)]
        self._working = [threading.Thread(target=self._guarded, args=(self._work, n)) for n in range(workers)]

    @contextmanager
    def running(self) -> Iterator[Traffic]:
        """Producers run inside; at the end they stop, and workers go on until the queue is empty."""
        for thread in (*self._producing, *self._working):
            thread.start()
        try:
            yield self
        finally:
            self._ending.set()
            for thread in (*self._producing, *self._working):
                thread.join(60)
            self._app.close()

    def wait_for_more(self, count: int = 20) -> None:
        """Returns when so many more jobs were completed, or something went wrong."""
        goal = self.completed.total() + count
        wait_until(lambda: self.errors or self.completed.total() >= goal, "work to go on")

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self, number: int) -> None:
        count = 0
        while not self._ending.is_set():
            data = b"%d:%d" % (number, count)
            self._queue.enqueue(data, id=data.decode())
            self.acknowledged.append((time.monotonic(), data))
            if count % 5 == 0:  # leaves a mark
                self._queue.enqueue(b"", id=f"no {number}", delay=3600)
                assert self._queue.cancel(f"no {number}")
            count += 1

    def _work(self, _: int) -> None:
        while True:
            ended = self._ending.is_set() and not any(thread.is_alive() for thread in self._producing)
            batch = self._queue.lease_many(5, seconds=60, wait=0.05)
            settled = settle(self._queue, *(Completed(lease, Kept(b"", 1)) for lease in batch))
            for lease, accepted in zip(batch, settled, strict=True):
                self.completed[lease.data] += accepted
            if ended and not batch:
                return

    def assert_nothing_lost_or_doubled(self) -> None:
        assert self.errors == []
        assert self.completed == Counter(data for _, data in self.acknowledged)
        assert set(self.completed.values()) == {1}


@pytest.mark.usefixtures("client")
def test_a_slot_moved_key_by_key_under_load_loses_nothing(cluster: Cluster) -> None:
    name = names_on_each_node(cluster, "resharded")[0]
    slot = cluster.slot_of(keys.queue_key(name, "state"))
    with Windlass(cluster.url, retry_for=5) as app, Traffic(cluster.url, name).running() as traffic:
        app.queue(name).enqueue(b"ballast", id="ballast", delay=3600)  # so that there are always keys to be torn apart
        for _ in range(3):
            traffic.wait_for_more()
            source = cluster.nodes[cluster.owner(slot)]
            move = cluster.begin_move(slot, another(cluster, slot))
            move.migrate(1)
            wait_for_refusal(source, "TRYAGAIN")  # the slot is torn
            while move.migrate(1):
                pass
            wait_for_refusal(source, "ASK")  # it is empty here, and not yet handed over
            move.finish()
        traffic.wait_for_more()
        assert app.queue(name).cancel("ballast")
    traffic.assert_nothing_lost_or_doubled()


@pytest.mark.usefixtures("client")
def test_a_slot_moved_at_once_under_load_loses_nothing(cluster: Cluster) -> None:
    """Valkey 9 can move a slot as a whole; calls see no more than MOVED."""
    name = names_on_each_node(cluster, "migrated")[1]
    slot = cluster.slot_of(keys.queue_key(name, "state"))
    with Traffic(cluster.url, name).running() as traffic:
        for _ in range(3):
            traffic.wait_for_more()
            to_index = another(cluster, slot)
            source = cluster.nodes[cluster.owner(slot)]
            source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", cluster.node_id(to_index))
            wait_for_owner(cluster, slot, to_index)
        traffic.wait_for_more()
    traffic.assert_nothing_lost_or_doubled()
    cluster.wait_ok()


# -- nodes that come and go -----------------------------------------------------------------------


@pytest.fixture
def nameless(cluster: Cluster) -> Iterator[Cluster]:
    """Nodes that do not tell their address, as behind a load balancer: clients must keep the one they used."""
    for node in cluster.nodes:
        node.command("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
    yield cluster
    for node in cluster.nodes:
        node.command("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


@BOTH_FACES
@pytest.mark.usefixtures("client")
def test_nodes_that_do_not_tell_their_address(nameless: Cluster, face: type) -> None:
    names = names_on_each_node(nameless, "nameless")
    with Windlass(nameless.nodes[0].tcp_url, retry_for=5) as app:
        for name in names:
            queue = through(face, app.queue(name))
            every_verb(queue)
            queue.close()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("client")
def test_a_planned_failover_under_load_loses_nothing(cluster: Cluster) -> None:
    name = names_on_each_node(cluster, "planned")[2]
    slot = cluster.slot_of(keys.queue_key(name, "state"))
    old = cluster.nodes[cluster.owner(slot)]
    replica = next(node for node in cluster.nodes if node is not old and follows(node, old))
    with Traffic(cluster.url, name).running() as traffic:
        for taking_over in (replica, old):
            traffic.wait_for_more()
            taking_over.command("CLUSTER", "FAILOVER")
            wait_for_owner(cluster, slot, cluster.nodes.index(taking_over))
        traffic.wait_for_more()
    traffic.assert_nothing_lost_or_doubled()
    cluster.wait_ok()


def follows(node: Server, primary: Server) -> bool:
    role = node.command("ROLE")
    return bool(role[0] == b"slave" and role[2] == primary.port)


@pytest.mark.usefixtures("client")
def test_work_resumes_when_a_replica_takes_the_place_of_a_dead_node(cluster: Cluster) -> None:
    name = names_on_each_node(cluster, "killed")[0]
    key = keys.queue_key(name, "state")
    doomed = cluster.node_of(key)
    with Traffic(cluster.url, name).running() as traffic:
        traffic.wait_for_more()
        doomed.kill()
        wait_until(lambda: cluster.node_of(key) is not doomed, "a replica to take over")
        promoted_at = time.monotonic()
        traffic.wait_for_more()
    doomed.start()
    cluster.wait_ok()
    with Windlass(cluster.url, retry_for=5) as app:
        app.queue(name).purge()  # a completion may be among what was lost: its job is leased again
    assert traffic.errors == []
    # Replication is asynchronous: what was acknowledged just before the death may be gone, nothing after it.
    safe = {data for when, data in traffic.acknowledged if when > promoted_at}
    assert len(safe) > 0
    assert safe <= traffic.completed.keys()


@BOTH_FACES
@pytest.mark.usefixtures("client")
def test_a_waiter_outlives_the_node_it_waits_on(cluster: Cluster, face: type) -> None:
    name = names_on_each_node(cluster, "waiting")[1]
    key = keys.queue_key(name, "idle")
    old = cluster.node_of(key)
    with Windlass(cluster.url, retry_for=20, call_timeout=2) as app, Windlass(cluster.url, retry_for=20) as other:
        queue = through(face, app.queue(name))
        found: list[bytes] = []
        waiter = threading.Thread(target=lambda: found.append(leased_in(queue, 30)))
        waiter.start()
        wait_until(lambda: old.command("ZCARD", key), "the waiter to be idle")
        old.kill()
        wait_until(lambda: cluster.node_of(key) is not old, "a replica to take over")
        other.queue(name).enqueue(b"at last")
        waiter.join(20)
        assert found == [b"at last"]
        queue.close()  # type: ignore[attr-defined]
    old.start()
    cluster.wait_ok()


def leased_in(queue: Queue, patience: float) -> bytes:
    lease = queue.lease(30, patience)
    assert lease is not None
    assert queue.complete(lease)
    return lease.data
