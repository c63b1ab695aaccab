"""What a peer adds again under the uuid of a finished job is a job as any other; keys that are no jobs stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.compat.processor.conftest import QUEUE, Look, Perform
from tests.compat.processor.test_peers import Peer
from tests.contract.leasing import take
from tests.support.server import Server
from windlass import Queue, RawJob, Windlass
from windlass.storage.compat.processor import ProcessorLayout


@pytest.fixture
def peer(client: redis.Redis, queue: Queue) -> Iterator[Peer]:
    yield Peer(client)
    client.delete(*(f"workers_{name}:{QUEUE}" for name in ("idle", "busy", "last_seen")))


@pytest.fixture
def short(server: Server) -> Iterator[Queue]:
    """A queue that keeps one finished job."""
    with Windlass(server.url, max_dead=1) as app:
        yield app.queue(QUEUE, layout="processor")


def finish(queue: Queue, *ids: str) -> None:
    for id in ids:
        queue.enqueue(b"{}", id=id)
        lease = take(queue)
        assert lease.id == id
        assert queue.complete(lease)


# -- added again ---------------------------------------------------------------------------------


@pytest.mark.speaks("processor", "P9")
def test_what_is_added_again_is_not_dropped_with_the_finished(short: Queue, peer: Peer, client: redis.Redis) -> None:
    finish(short, "a")
    short.enqueue(b"{}", id="b")
    other = take(short)
    peer.add_job("a", again=1)
    assert short.complete(other), "which is one more than is kept"
    assert client.ttl("a") == -1
    assert not client.hexists("a", "finished_at")
    lease = take(short)
    assert (lease.id, lease.json()["again"]) == ("a", 1)
    assert short.complete(lease)


@pytest.mark.speaks("processor", "P9")
def test_nor_while_a_peer_has_it(short: Queue, peer: Peer, client: redis.Redis, look: Look) -> None:
    finish(short, "a")
    peer.add_job("a")
    peer.worker_idle("w")
    assert peer.dispatch() == ("w", "a")
    finish(short, "b")
    assert look()["jobs_dispatched"] == {"a": "now"}
    assert client.hget("a", "json")
    peer.job_accepted("w", "a")
    client.zadd(f"jobs_finished:{QUEUE}", {"a": 1000.0})
    finish(short, "c")
    assert client.hget("a", "json")
    assert client.ttl("a") == -1
    peer.job_finished("w", "a")


@pytest.mark.speaks("processor", "P9")
def test_many_that_are_added_again_stay_and_the_others_go(
    server: Server, queue: Queue, peer: Peer, client: redis.Redis
) -> None:
    queue.enqueue_many([RawJob(b"{}", id=f"{n}") for n in range(50)])
    assert all(queue.complete_many(queue.lease_many(50)))
    for n in range(0, 50, 2):
        peer.add_job(f"{n}")
    with Windlass(server.url, max_dead=1) as app:
        last = app.queue(QUEUE, layout="processor")
        lease = take(last)
        assert lease.id == "0"
        assert last.complete(lease)
    assert {n for n in range(50) if client.exists(f"{n}")} == set(range(0, 50, 2))
    assert [client.ttl(f"{n}") for n in range(2, 50, 2)] == [-1] * 24


@pytest.mark.speaks("processor", "P9")
def test_what_waits_does_not_expire(app: Windlass, queue: Queue, peer: Peer, client: redis.Redis, look: Look) -> None:
    finish(queue, "a", "b")
    peer.add_job("a")
    other = app.queue("thumbs", layout="processor")
    client.hset("b", "json", '{"uuid":"b","queue_name":"thumbs"}')
    client.lpush("jobs_queued:thumbs", "b")
    assert client.ttl("a") > 0
    queue.clean()
    other.clean()
    assert (client.ttl("a"), client.ttl("b")) == (-1, -1)
    assert "finished_at" not in look()["a"].keys() | look()["b"].keys()
    assert set(look()["jobs_finished"]) == {"b"}, "another queue does not know of it"
    assert queue.complete(take(queue))
    assert take(other).id == "b"
    other.purge()


def test_all_that_waits_is_looked_at_some_at_a_time(queue: Queue, peer: Peer, client: redis.Redis) -> None:
    finish(queue, "a")
    peer.add_job("a")
    for _ in range(3):
        queue.enqueue_many([RawJob(b"{}") for _ in range(800)])
    seen = []
    for _ in range(4):
        queue.clean()
        seen.append((client.hget(f"windlass:{{{QUEUE}}}:processor:state", "looked"), client.ttl("a") == -1))
    assert seen == [(b"1000", False), (b"2000", False), (None, True), (b"1000", True)]


def test_some_more_are_kept_so_that_they_go_many_at_once(server: Server, queue: Queue, client: redis.Redis) -> None:
    with Windlass(server.url, max_dead=50) as app:
        few = app.queue(QUEUE, layout="processor")
        few.enqueue_many([RawJob(b"{}") for _ in range(60)])
        kept = []
        for lease in few.lease_many(60):
            assert few.complete(lease)
            kept.append(client.zcard(f"jobs_finished:{QUEUE}"))
    assert kept[50:] == [51, 52, 53, 54, 55, 50, 51, 52, 53, 54]


# -- no jobs -------------------------------------------------------------------------------------


def test_a_purge_leaves_keys_that_are_no_jobs(queue: Queue, client: redis.Redis, look: Look) -> None:
    client.set("precious", "1")
    client.hset("user", mapping={"name": "Ada", "finished_at": "never"})
    client.lpush(f"jobs_queued:{QUEUE}", "precious", "user", "nothing")
    client.zadd(f"jobs_processing:{QUEUE}", {"precious": 1, "user": 1})
    client.zadd(f"jobs_finished:{QUEUE}", {"precious": 1e12, "user": 1e12})
    queue.enqueue(b"{}", id="a")
    queue.clean()
    client.lpush(f"jobs_queued:{QUEUE}", "precious", "user")
    assert not queue.cancel("precious")
    assert not queue.cancel("user")
    client.lpush(f"jobs_queued:{QUEUE}", "precious", "user")
    assert queue.purge() == 1
    assert (client.get("precious"), client.hget("user", "name")) == (b"1", b"Ada")
    assert client.hget("user", "finished_at") == b"never"
    client.delete("precious", "user")
    assert look() == {}


def test_a_purge_of_thousands_counts_jobs(queue: Queue, client: redis.Redis) -> None:
    for _ in range(3):
        queue.enqueue_many([RawJob(b"{}", priority=n % 3) for n in range(800)])
    client.rpush(f"jobs_queued:{QUEUE}", *(f"no-{n}" for n in range(1500)))
    assert queue.purge() == 2400
    assert queue.counts().ready == 0


# -- workers that services hear of ---------------------------------------------------------------


@pytest.mark.speaks("processor", "P2")
def test_a_service_forgets_only_whom_nobody_else_has_heard_of(
    queue: Queue, peer: Peer, layout: ProcessorLayout, perform: Perform, look: Look
) -> None:
    assert perform(layout.hail("w", 0, busy=False, service="A"))
    assert not perform(layout.forget("w", "B"))
    assert perform(layout.hail("w", 0, busy=False, service="B"))
    assert not perform(layout.forget("w", "A"))
    peer.worker_idle("w")
    assert not perform(layout.forget("w", "B")), "a published one has heard of it"
    assert look() == {"workers_idle": {"w"}, "workers_last_seen": {"w": "now"}}
    assert perform(layout.hail("w", 0, busy=True, service="A"))
    assert perform(layout.forget("w", "A"))
    assert not perform(layout.forget("w", "A"))
    assert look() == {}


@pytest.mark.speaks("processor", "P2")
def test_who_has_a_job_is_not_forgotten(queue: Queue, layout: ProcessorLayout, perform: Perform, look: Look) -> None:
    queue.enqueue(b"{}", id="a")
    assert perform(layout.hail("w", 0, busy=False, service="A"))
    assert perform(layout.dispatch(["w"]))
    assert perform(layout.accept("w", 0, "a", "now", "A"))
    assert not perform(layout.forget("w", "A"))
    assert perform(layout.finish("w", 0, "a", "now", b"{}", "A"))
    assert perform(layout.forget("w", "A"))
    assert not [key for key in look() if key.startswith("workers")]
