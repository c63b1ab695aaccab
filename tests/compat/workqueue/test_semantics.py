"""The rows of Redis Work Queue in its own layout: items, leases, one completion, cleaning, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from redis_work_queue import WorkQueue  # type: ignore[import-untyped]

from tests.compat.workqueue.conftest import PREFIX, PROCESSING, QUEUE, Look, add, lease_keys, somebody_waits
from tests.contract.leasing import drain, take
from tests.support.server import Server
from tests.support.waiting import FOREVER_S, LIMIT_S, wait_until
from windlass import Lease, Queue, RawJob, State, Status, Windlass
from windlass.errors import InvalidId, InvalidName, InvalidOption, UnsupportedByLayout

# -- items ---------------------------------------------------------------------------------------


@pytest.mark.speaks("workqueue", "R1")
def test_an_item_is_an_id_and_any_bytes(queue: Queue) -> None:
    data = bytes(range(256)) * 10
    chosen, random = queue.enqueue(data, id="mine"), [queue.enqueue(b"").id for _ in range(50)]
    assert chosen.id == "mine"
    assert len(set(random)) == 50
    assert take(queue).data == data
    assert take(queue).id == random[0]


@pytest.mark.speaks("workqueue", "R1")
def test_json_goes_in_and_comes_out(queue: Queue) -> None:
    value = {"name": "größer", "sizes": [1, 2.5, None, True]}
    queue.enqueue_json(value)
    assert take(queue).json() == value


@pytest.mark.speaks("workqueue", "R2")
def test_an_id_is_added_once_and_the_receipt_says_so(queue: Queue) -> None:
    assert [queue.enqueue(data, id="a").status for data in (b"1", b"2")] == [Status.ADDED, Status.KEPT]
    assert queue.counts().ready == 1
    lease = take(queue)
    assert lease.data == b"1"
    assert queue.enqueue(b"3", id="a").status == Status.KEPT, "it is there as long as it is not completed"
    queue.complete(lease)
    assert queue.enqueue(b"4", id="a").status == Status.ADDED


@pytest.mark.speaks("workqueue", "R2")
def test_an_item_can_be_added_in_a_callers_own_transaction(queue: Queue, client: redis.Redis, look: Look) -> None:
    """With the caller's own write, or not at all; and as the published `add_unique_item` does it."""
    with client.pipeline(transaction=True) as pipeline:
        pipeline.set("order", b"paid")
        assert queue.enqueue_in(pipeline, b"1", id="a") == "a"
        random = queue.enqueue_in(pipeline, b"2") or ""
        assert look() == {}, "nothing is sent before the caller does"
        pipeline.execute()
    assert look() == {"item:a": b"1", f"item:{random}": b"2", "queue": [random.encode(), b"a"]}
    assert [(lease.id, lease.data) for lease in queue.lease_many(5)] == [("a", b"1"), (random, b"2")]
    with client.pipeline(transaction=True) as pipeline:
        pipeline.watch("order")  # type: ignore[no-untyped-call]
        with pytest.raises(InvalidOption, match=r"Call its multi\(\)"):
            queue.enqueue_in(pipeline, b"3", id="c")
        pipeline.multi()
        queue.enqueue_in(pipeline, b"3", id="c")
        client.set("order", b"changed by another")
        with pytest.raises(redis.WatchError):
            pipeline.execute()
    assert queue.counts().ready == 0
    client.delete("order")


@pytest.mark.speaks("workqueue", "R2")
async def test_an_asyncio_pipeline_takes_it_too(
    app: Windlass, server: Server, theirs: WorkQueue, client: redis.Redis
) -> None:
    queue = app.queue(PREFIX, layout="workqueue")
    async with redis.asyncio.from_url(server.url) as other, other.pipeline() as pipeline:
        queue.enqueue_in(pipeline, b"1", id="a")
        await pipeline.execute()
    item = theirs.lease(client, 5, block=False)
    assert (item.id(), item.data()) == ("a", b"1")
    assert theirs.complete(client, item)


def test_a_job_is_added_in_a_pipeline_only(queue: Queue, client: redis.Redis, look: Look) -> None:
    for wrong in (client, None, "pipeline"):
        with pytest.raises(InvalidOption, match=r"Pass client\.pipeline\(\)"):
            queue.enqueue_in(cast(Any, wrong), b"1")
    with pytest.raises(InvalidId):
        queue.enqueue_in(client.pipeline(), b"1", id="")
    assert look() == {}


# -- leasing -------------------------------------------------------------------------------------


@pytest.mark.speaks("workqueue", "R3")
def test_a_lease_waits_for_so_long_or_not_at_all(queue: Queue) -> None:
    assert queue.lease() is None
    began = monotonic()
    assert queue.lease(wait=0.3) is None
    assert monotonic() - began >= 0.3


@pytest.mark.speaks("workqueue", "R3")
def test_a_waiting_lease_gets_what_windlass_adds_at_once(queue: Queue, patient: Queue, client: redis.Redis) -> None:
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(patient.lease, 30, FOREVER_S)
        wait_until(lambda: somebody_waits(client), "somebody to wait")
        queue.enqueue(b"", id="a")
        lease = waiting.result(LIMIT_S)
    assert lease is not None


@pytest.mark.speaks("workqueue", "R3")
def test_a_lease_passes_over_ids_without_data(queue: Queue, client: redis.Redis, look: Look) -> None:
    client.lpush(QUEUE, "gone", "0", "gone")
    add(client, "a")
    client.lpush(QUEUE, "gone")
    assert [lease.id for lease in queue.lease_many(5)] == ["a"]
    assert set(look()) == {"item:a", "processing", "lease:a", "leased_by_session:a"}
    assert look()["processing"] == [b"a"]


@pytest.mark.speaks("workqueue", "R3", "R4")
def test_an_item_that_was_added_twice_is_worked_on_once(queue: Queue, client: redis.Redis, look: Look) -> None:
    add(client, "a")
    add(client, "a")
    lease = take(queue)
    assert queue.lease() is None
    assert look()["processing"] == [b"a"]
    assert queue.complete(lease)
    assert look() == {}


# -- completing ----------------------------------------------------------------------------------


@pytest.mark.speaks("workqueue", "R4")
def test_complete_is_true_once_from_eight_threads(queue: Queue) -> None:
    queue.enqueue_many([b""] * 50)
    leases = queue.lease_many(50)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: queue.complete_many(leases), range(8)))
    assert [sum(answer[i] for answer in answers) for i in range(50)] == [1] * 50


def completed_as_documented(client: redis.Redis, id: str) -> bool:
    """Who deletes the data has completed it."""
    return client.delete(f"{PREFIX}:item:{id}") == 1


def completed_as_packaged(client: redis.Redis, id: str) -> bool:
    """Who takes it from `processing` has completed it; the data goes in a second step, which is still to come here."""
    return client.lrem(PROCESSING, 0, id) == 1


@pytest.mark.speaks("workqueue", "R4")
@pytest.mark.parametrize("peer", [completed_as_documented, completed_as_packaged])
def test_complete_is_true_once_whoever_calls_it(
    queue: Queue, client: redis.Redis, peer: Callable[[redis.Redis, str], bool]
) -> None:
    """Although a peer has only begun to complete it, it is his."""
    queue.enqueue_many([RawJob(b"", id="a"), RawJob(b"", id="b")])
    first, second = queue.lease_many(2)
    assert peer(client, "a")
    assert not queue.complete(first)
    assert queue.complete(second)
    assert not peer(client, "b")
    client.delete(f"{PREFIX}:item:a")


@pytest.mark.speaks("workqueue", "R4")
@pytest.mark.parametrize("key", [0, 1], ids=["documented key", "packages' key"])
def test_a_lease_that_a_peer_took_over_settles_nothing(queue: Queue, client: redis.Redis, look: Look, key: int) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    client.set(lease_keys("a")[key], "f" * 32, ex=60)
    before = look()
    for settle in (queue.complete, queue.release, queue.fail, lambda lease: queue.retry(lease, delay=0)):
        assert not settle(lease)
    assert not queue.extend(lease, 100)
    assert look() == before


# -- the rest ------------------------------------------------------------------------------------


@pytest.mark.speaks("workqueue", "R6")
def test_queue_length_and_items_in_work(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue_many([b""] * 5)
    queue.lease_many(2)
    counts = queue.counts()
    assert (counts.ready, counts.running) == (3, 2) == (client.llen(QUEUE), client.llen(PROCESSING))


@pytest.mark.speaks("workqueue", "R7")
def test_at_least_once_and_at_most_once(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue_many([RawJob(b"", id="often"), RawJob(b"", id="once")])
    take(queue)
    completed_first = take(queue)
    assert queue.complete(completed_first), "from here on it cannot come again, whatever happens to us"
    client.delete(*lease_keys("often"))
    queue.clean()
    assert drain(queue) == ["often"]


@pytest.mark.speaks("workqueue", "R9")
def test_whoever_waits_for_work_cleans(server: Server, queue: Queue, client: redis.Redis) -> None:
    """No cleaner was started and nobody adds anything: a lease that waits finds what others abandoned."""
    queue.enqueue(b"", id="a")
    with Windlass(server.url) as dead:
        assert dead.queue(PREFIX, layout="workqueue").lease(0.2) is not None
    lease = queue.lease(wait=5)
    assert lease is not None
    assert lease.id == "a"


def test_items_can_be_looked_at(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue_many([RawJob(b"%d" % n, id=str(n)) for n in range(250)])
    lease = take(queue, holder="worker-1")
    add(client, "theirs")
    assert client.lmove(QUEUE, PROCESSING, "LEFT", "LEFT") == b"theirs"
    client.set(lease_keys("theirs")[1], "f" * 32, ex=60)
    assert [job.data for job in queue.all_jobs(State.READY)] == [b"%d" % n for n in range(1, 250)]
    running = {job.id: (job.holder, job.fence) for job in queue.all_jobs(State.RUNNING)}
    assert running == {"0": ("worker-1", lease.fence), "theirs": (None, None)}
    for id, state in (("0", State.RUNNING), ("theirs", State.RUNNING), ("7", State.READY)):
        job = queue.get(id)
        assert job is not None
        assert (job.id, job.state) == (id, state)
    assert queue.get("nobody") is None


REFUSED: dict[str, tuple[Callable[[Queue, Lease], Any], str]] = {
    "run time": (lambda queue, _: queue.enqueue(b"", delay=5), "native or queasy"),
    "priority": (lambda queue, _: queue.enqueue(b"", priority=1), "native or processor"),
    "limits": (lambda queue, _: queue.enqueue(b"", max_failures=1), "native or queasy"),
    "update": (lambda queue, _: queue.update("a", data=b""), "native or queasy"),
    "retry later": (lambda queue, lease: queue.retry(lease, delay=5), "native or queasy"),
    "cancel running": (lambda queue, _: queue.cancel("a", running=True), "native or worqr"),
    "progress": (lambda queue, lease: queue.progress(lease, 0.5), "native or processor"),
    "pause": (lambda queue, _: queue.pause(), "native"),
    "revive": (lambda queue, _: queue.revive("a"), "native or hworker"),
}


@pytest.mark.parametrize("verb", REFUSED)
def test_what_the_layout_cannot_do_is_refused_and_says_who_can(queue: Queue, look: Look, verb: str) -> None:
    act, able = REFUSED[verb]
    queue.enqueue(b"", id="a")
    lease = take(queue)
    before = look()
    with pytest.raises(UnsupportedByLayout, match=f"'workqueue'.*{able}"):
        act(queue, lease)
    assert look() == before


@pytest.mark.parametrize("name", ["", "two words", "{braces}", "x" * 129])
def test_a_prefix_that_cannot_be_one_is_refused(app: Windlass, name: str) -> None:
    with pytest.raises(InvalidName, match="workqueue"):
        app.queue(name, layout="workqueue")
