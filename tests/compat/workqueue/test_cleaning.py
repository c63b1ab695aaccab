"""Cleaning in the layout of Redis Work Queue: what was abandoned comes back, whoever abandoned it, and nothing else."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
import redis

from tests.compat.workqueue.conftest import CLEANING, PREFIX, PROCESSING, QUEUE, Look, add, lease_keys, names
from tests.contract.leasing import drain, take
from tests.support.internals import perform_call
from tests.support.layouts import pass_time
from tests.support.repairing import repaired
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from windlass import Cleaned, Queue, RawJob, Windlass


@pytest.mark.speaks("workqueue", "R5")
def test_an_expired_lease_returns_its_item_to_the_back(queue: Queue, client: redis.Redis, look: Look) -> None:
    queue.enqueue_many([RawJob(b"", id=id) for id in "abc"])
    lease = take(queue, seconds=0.05)
    wait_until(lambda: not client.exists(*lease_keys("a")), "the lease to end")
    assert queue.clean() == Cleaned(recovered=1)
    assert look()["queue"] == [b"a", b"c", b"b"]
    assert not queue.complete(lease), "it was lost"
    assert drain(queue) == ["b", "c", "a"]


@pytest.mark.speaks("workqueue", "R5")
def test_all_that_a_lost_worker_had_returns_to_the_back(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue_many([RawJob(b"", id=id) for id in "abcdef"])
    assert len(queue.lease_many(4, 0.05, holder="lost")) == 4
    wait_until(lambda: not client.exists(*lease_keys("a")), "the leases to end")
    (kept,) = queue.lease_many(1, 60, holder="alive")
    assert kept.id == "e"
    assert drain(queue) == ["f", "a", "b", "c", "d"]
    assert queue.complete(kept)


@pytest.mark.speaks("workqueue", "R5")
def test_eight_cleaners_take_back_each_item_once(server: Server, queue: Queue, client: redis.Redis) -> None:
    ids = [queue.enqueue(b"").id for _ in range(100)]
    queue.lease_many(60, 60, holder="lost")
    queue.lease_many(30, 60)
    pass_time(client, "workqueue", PREFIX, 61)
    apps = [Windlass(server.url) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        cleaned = list(threads.map(lambda app: app.queue(PREFIX, layout="workqueue").audit(repair=True), apps))
    for app in apps:
        app.close()
    assert sum(each.recovered for each in cleaned) == 90
    assert sum(each.repaired for each in cleaned) == 0
    assert sorted(drain(queue)) == sorted(ids)


@pytest.mark.speaks("workqueue", "R5")
@pytest.mark.parametrize("key", [0, 1], ids=["documented key", "packages' key"])
def test_cleaning_leaves_leased_items_alone(queue: Queue, client: redis.Redis, look: Look, key: int) -> None:
    for id in ("theirs", "ours"):
        add(client, id)
    assert client.lmove(QUEUE, PROCESSING, "RIGHT", "LEFT") == b"theirs"
    client.set(lease_keys("theirs")[key], "f" * 32, ex=60)
    lease = take(queue)
    before = look()
    for _ in range(2):
        assert repaired(queue) == (0, 0)
    assert look() == before
    assert queue.complete(lease)


@pytest.mark.speaks("workqueue", "R5")
def test_a_peer_that_died_between_its_move_and_its_lease_is_mended(queue: Queue, client: redis.Redis) -> None:
    """Whoever looks next finds it, and leaves it alone for a second: that peer may just be slow."""
    add(client, "a", b"1")
    assert client.lmove(QUEUE, PROCESSING, "RIGHT", "LEFT") == b"a"
    began = monotonic()
    assert queue.lease() is None
    assert client.lrange(PROCESSING, 0, -1) == [b"a"]
    lease = queue.lease(wait=LIMIT_S)
    assert lease is not None
    assert (lease.id, lease.data) == ("a", b"1")
    assert monotonic() - began > 0.9


@pytest.mark.speaks("workqueue", "R5")
def test_an_item_that_a_peer_works_on_is_put_where_it_can_be_completed(queue: Queue, client: redis.Redis) -> None:
    """A cleaner took it back in the moment before the lease was set: it is on the queue, and leased."""
    add(client, "a")
    client.set(lease_keys("a")[1], "f" * 32, ex=60)
    assert queue.lease() is None
    assert repaired(queue) == (0, 0)
    assert client.lrange(PROCESSING, 0, -1) == [b"a"]
    client.delete(lease_keys("a")[1])
    assert queue.clean() == Cleaned(recovered=1)
    assert drain(queue) == ["a"]


@pytest.mark.speaks("workqueue", "R5")
def test_an_abandoned_item_that_waits_already_is_not_put_on_the_queue_again(
    queue: Queue, client: redis.Redis, look: Look
) -> None:
    add(client, "a")
    client.lpush(PROCESSING, "a", "a")
    assert repaired(queue) == (0, 0)
    assert look() == {"item:a": b"x", "queue": [b"a"]}


@pytest.mark.speaks("workqueue", "R5")
def test_a_deep_clean_finds_items_that_are_in_no_list(queue: Queue, client: redis.Redis, look: Look) -> None:
    ids = [f"lost {n}" for n in range(2500)]
    client.mset({f"{PREFIX}:item:{id}": id for id in ids})
    client.set(f"{PREFIX}:lease:lost 7", "f" * 32, ex=60)
    client.set(f"{PREFIX}x:item:other", "of another queue", ex=60)
    queue.enqueue(b"", id="fine")
    assert queue.clean() == Cleaned(0)
    assert repaired(queue) == (0, 2499)
    assert repaired(queue) == (0, 0)
    assert sorted(drain(queue)) == sorted({*ids, "fine"} - {"lost 7"})
    assert set(look()) == {"item:lost 7", "lease:lost 7"}
    client.delete(f"{PREFIX}:item:lost 7")


@pytest.mark.speaks("workqueue", "R5")
def test_a_prefix_is_taken_as_it_is_and_not_as_a_pattern(app: Windlass, client: redis.Redis) -> None:
    queue, other = (app.queue(name, layout="workqueue") for name in ("par*[ab]?\\", "parcel-ab"))
    for each in (queue, other):
        client.set(f"{each.name}:item:lost", "x")
    assert repaired(queue) == (0, 1)
    assert drain(other) == []
    assert drain(queue) == ["lost"]
    client.delete("parcel-ab:item:lost")


@pytest.mark.speaks("workqueue", "R5")
def test_what_a_dead_cleaner_had_in_its_hands_is_mended(queue: Queue, client: redis.Redis, look: Look) -> None:
    """`cleaning` of the packages: one is nowhere else, one was put back before, one is done by now."""
    for id in ("nowhere", "back"):
        add(client, id)
    client.lrem(QUEUE, 0, "nowhere")
    client.lpush(CLEANING, "nowhere", "back", "done")
    assert repaired(queue) == (0, 0), "that cleaner may be alive"
    assert look()["cleaning"] == [b"back", b"nowhere"]
    assert [wait_until(lambda: queue.lease(), "an item").id for _ in range(2)] == ["back", "nowhere"]
    assert "cleaning" not in look()


@pytest.mark.speaks("workqueue", "R5")
def test_a_sweep_looks_at_a_bounded_number_and_comes_to_all(queue: Queue, client: redis.Redis) -> None:
    """2,500 are worked on by peers; the lease of one in the middle ends."""
    ids = [f"{n}" for n in range(2500)]
    client.mset({f"{PREFIX}:item:{id}": "x" for id in ids})
    client.mset({f"{PREFIX}:lease:{id}": "f" * 32 for id in ids if id != "1200"})
    client.rpush(PROCESSING, *reversed(ids))
    lease = queue.lease(wait=10)
    assert lease is not None
    assert lease.id == "1200"
    client.delete(*(f"{PREFIX}:lease:{id}" for id in ids))


# -- much to clean -------------------------------------------------------------------------------


def commands(client: redis.Redis) -> Counter[str]:
    """How often the server has run each command, those in scripts included."""
    stats: dict[str, Any] = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()})


def abandon(client: redis.Redis, ids: list[str], where: str = PROCESSING) -> None:
    """Peers left these there, the first one first."""
    client.mset({f"{PREFIX}:item:{id}": "x" for id in ids})
    client.lpush(where, *ids)


@pytest.mark.speaks("workqueue", "R5")
def test_many_abandoned_items_come_back_in_bounded_steps(app: Windlass, queue: Queue, client: redis.Redis) -> None:
    """Each step walks through the lists a few times, not once for each item."""
    waiting, left = [f"w{n}" for n in range(300)], [f"{n}" for n in range(2500)]
    abandon(client, waiting, QUEUE)
    abandon(client, [*left, "done", *left[:300], "works"])
    client.delete(f"{PREFIX}:item:done")
    client.set(lease_keys("works")[0], "f" * 32, ex=60)
    before = commands(client)
    layout = app.layout(PREFIX, "workqueue")
    steps = [perform_call(app, layout.turn()).swept for _ in range(4)]
    assert steps == [1000, 1000, 500, 0]
    ran = commands(client) - before
    assert ran["lpos"] + ran["lrem"] <= 20
    assert ran["lrange"] < 30
    assert client.lrange(PROCESSING, 0, -1) == [b"works"]
    assert drain(queue) == [*waiting, *left]
    client.delete(f"{PREFIX}:item:works", lease_keys("works")[0])


@pytest.mark.speaks("workqueue", "R5")
def test_a_clean_goes_on_past_many_that_wait_already(queue: Queue, client: redis.Redis) -> None:
    twice = [f"{n}" for n in range(1500)]
    abandon(client, twice)
    client.lpush(QUEUE, *twice)
    abandon(client, ["last"])
    assert queue.clean() == Cleaned(recovered=1)
    assert client.llen(PROCESSING) == 0
    assert drain(queue) == [*twice, "last"]


@pytest.mark.speaks("workqueue", "R5")
def test_many_that_a_dead_cleaner_had_come_back(queue: Queue, client: redis.Redis) -> None:
    """Of a hundred some wait again, some are worked on, some are done, and the rest is nowhere else."""
    ids = [f"{n}" for n in range(100)]
    abandon(client, ids, CLEANING)
    client.lpush(QUEUE, *ids[:20])
    client.lpush(PROCESSING, *ids[20:40])
    client.mset({lease_keys(id)[1]: "f" * 32 for id in ids[20:40]})
    client.delete(*(f"{PREFIX}:item:{id}" for id in ids[40:60]))
    assert queue.clean() == Cleaned(0)
    assert wait_until(lambda: queue.clean().recovered, "the rest") == 40
    assert client.llen(CLEANING) == 0
    assert sorted(drain(queue)) == sorted(ids[:20] + ids[60:])
    assert client.lrange(PROCESSING, 0, -1) == [id.encode() for id in reversed(ids[20:40])]
    client.delete(*(f"{PREFIX}:item:{id}" for id in ids), *(lease_keys(id)[1] for id in ids))


@pytest.mark.speaks("workqueue", "R5")
def test_a_deep_clean_reads_no_list_where_all_items_are_worked_on(
    app: Windlass, queue: Queue, client: redis.Redis
) -> None:
    queue.enqueue_many([b""] * 100)
    queue.lease_many(100)
    before = commands(client)
    audit = app.layout(PREFIX, "workqueue").audit("items", "0")
    assert perform_call(app, audit)[1] == 0
    ran = commands(client) - before
    assert ran["scan"] == 1
    assert (ran["lrange"], ran["lpos"]) == (0, 0)


# -- whose it was --------------------------------------------------------------------------------


@pytest.mark.speaks("workqueue", "R4", "R5")
@pytest.mark.parametrize("holder", ["worker-1", None])
@pytest.mark.parametrize("lists", [(PROCESSING,), (), (QUEUE,)], ids=["abandoned", "in no list", "waits already"])
def test_what_was_taken_back_can_be_settled_only_by_who_has_it_next(
    queue: Queue, client: redis.Redis, holder: str | None, lists: tuple[str, ...]
) -> None:
    """A peer has moved it to `processing` and has not set its lease yet: in this moment it looks as if it were ours."""
    queue.enqueue(b"", id="a")
    (lease,) = queue.lease_many(1, 60, holder=holder)
    client.delete(*lease_keys("a"))
    if PROCESSING not in lists:
        client.delete(PROCESSING)
    if QUEUE in lists:
        client.lpush(PROCESSING, "a")
        client.lpush(QUEUE, "a")
    queue.audit(repair=True)
    ledger = f"windlass:{{{PREFIX}}}:workqueue"
    assert not client.exists(f"{ledger}:runs", f"{ledger}:held")
    assert len(names(client, f"{ledger}:holders")) == (1 if holder else 0)
    assert client.lmove(QUEUE, PROCESSING, "RIGHT", "LEFT") == b"a"
    for settle in (queue.complete, queue.release, queue.fail, lambda lease: queue.retry(lease, delay=0)):
        assert not settle(lease)
    assert not queue.extend(lease, 60)
    assert client.lrange(PROCESSING, 0, -1) == [b"a"]
    assert client.exists(f"{PREFIX}:item:a")


@pytest.mark.speaks("workqueue", "R5")
def test_what_a_dead_cleaner_had_comes_back_to_an_idle_queue(queue: Queue, client: redis.Redis) -> None:
    """Nobody can tell at once that the cleaner is dead: the queue looks idle, and the note about the item must stay."""
    client.set(f"{PREFIX}:item:a", b"x")
    client.lpush(CLEANING, "a")
    assert queue.lease() is None
    assert 0 < client.pttl(f"windlass:{{{PREFIX}}}:workqueue:state") <= 86_400_000
    wait_until(lambda: queue.lease(), "the item to be leased")
