"""Byte for byte: keys, types and values below a prefix after each verb, as the document and the packages have them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import redis

from tests.compat.workqueue.conftest import PREFIX, Look, lease_keys, names
from tests.contract.leasing import take
from tests.support.repairing import repaired
from windlass import Cleaned, Lease, Queue, RawJob, Status
from windlass.errors import KeyConflict


def three(queue: Queue) -> None:
    queue.enqueue_many([RawJob(b"1", id="a"), RawJob(b"2", id="b"), RawJob(b"3", id="c")])


ITEMS = {"item:a": b"1", "item:b": b"2", "item:c": b"3"}


def test_an_item_is_its_data_and_an_id_at_the_left(queue: Queue, look: Look) -> None:
    data = bytes(range(256))
    queue.enqueue(data, id="a")
    assert look() == {"item:a": data, "queue": [b"a"]}
    queue.enqueue(b"", id="Kiste 7: größer\n")
    assert look() == {"item:a": data, "item:Kiste 7: größer\n": b"", "queue": ["Kiste 7: größer\n".encode(), b"a"]}


def test_an_id_that_is_there_changes_nothing(queue: Queue, look: Look) -> None:
    queue.enqueue(b"1", id="a")
    assert queue.enqueue(b"2", id="a").status == Status.KEPT
    assert look() == {"item:a": b"1", "queue": [b"a"]}
    lease = take(queue)
    before = look()
    assert queue.enqueue(b"2", id="a").status == Status.KEPT
    assert look() == before
    queue.complete(lease)


def test_json_is_written_as_the_packages_write_it(queue: Queue, look: Look) -> None:
    queue.enqueue_json({"path": "a.png", "sizes": [1, 2]}, id="a")
    assert look()["item:a"] == b'{"path":"a.png","sizes":[1,2]}'


def test_a_lease_moves_the_id_from_the_right_to_the_left_and_names_a_session(
    queue: Queue, look: Look, client: redis.Redis
) -> None:
    three(queue)
    first, second = take(queue, seconds=40), take(queue, seconds=80)
    assert (first.data, second.data) == (b"1", b"2")
    seen = look()
    one, other = seen["lease:a"], seen["lease:b"]
    assert one != other
    for session in (one, other):
        assert re.fullmatch(rb"[0-9a-f]{32}", session)
    assert seen == ITEMS | {
        "queue": [b"c"],
        "processing": [b"b", b"a"],
        "lease:a": one,
        "leased_by_session:a": one,
        "lease:b": other,
        "leased_by_session:b": other,
    }
    for key in lease_keys("a"):
        assert 20_000 < client.pttl(key) <= 40_000
    for key in lease_keys("b"):
        assert 60_000 < client.pttl(key) <= 80_000


def test_all_leases_of_a_holder_name_one_session_and_its_beat_extends_them(
    queue: Queue, look: Look, client: redis.Redis
) -> None:
    three(queue)
    queue.beat("worker", 5, register=True)
    queue.lease_many(3, 5, holder="worker")
    seen = look()
    assert len({seen[key] for key in seen if key.startswith("lease")}) == 1
    assert queue.beat("worker", 60)
    for id in "abc":
        for key in lease_keys(id):
            assert 30_000 < client.pttl(key) <= 60_000
    assert look() == seen


ENDINGS: dict[str, tuple[Callable[[Queue, Lease], bool], dict[str, object]]] = {
    "complete": (lambda queue, lease: queue.complete(lease), {"queue": [b"c", b"b"], "item:b": b"2", "item:c": b"3"}),
    "fail": (lambda queue, lease: queue.fail(lease, "no"), {"queue": [b"c", b"b"], "item:b": b"2", "item:c": b"3"}),
    "release": (lambda queue, lease: queue.release(lease), ITEMS | {"queue": [b"c", b"b", b"a"]}),
    "retry": (lambda queue, lease: queue.retry(lease, delay=0), ITEMS | {"queue": [b"a", b"c", b"b"]}),
}


@pytest.mark.parametrize("verb", ENDINGS)
def test_an_item_that_ends_leaves_neither_lease_nor_entry(queue: Queue, look: Look, verb: str) -> None:
    act, expected = ENDINGS[verb]
    three(queue)
    lease = take(queue)
    assert act(queue, lease)
    assert look() == expected
    assert not act(queue, lease)
    assert look() == expected


def test_an_extended_lease_is_the_same_with_more_time(queue: Queue, look: Look, client: redis.Redis) -> None:
    queue.enqueue(b"1", id="a")
    lease = take(queue, seconds=5)
    before = look()
    assert queue.extend(lease, 90)
    assert look() == before
    for key in lease_keys("a"):
        assert 60_000 < client.pttl(key) <= 90_000


def test_a_cancelled_item_is_gone(queue: Queue, look: Look, client: redis.Redis) -> None:
    three(queue)
    assert queue.cancel("b")
    assert look() == {"item:a": b"1", "item:c": b"3", "queue": [b"c", b"a"]}
    lease = take(queue)
    client.lpush(f"{PREFIX}:queue", "a")  # a second entry of it
    before = look()
    assert not queue.cancel("a"), "it runs"
    assert not queue.cancel("nobody")
    assert look() == before
    queue.complete(lease)


def test_an_abandoned_item_returns_to_the_left(queue: Queue, look: Look, client: redis.Redis) -> None:
    three(queue)
    take(queue)
    client.delete(*lease_keys("a"))
    assert queue.clean() == Cleaned(recovered=1)
    assert look() == ITEMS | {"queue": [b"a", b"c", b"b"]}


def test_a_purge_leaves_nothing(queue: Queue, look: Look, client: redis.Redis) -> None:
    three(queue)
    take(queue)
    client.lpush(f"{PREFIX}:cleaning", "gone")
    assert queue.purge("ready") == 2
    assert {"item:a", "processing", "cleaning"} <= set(look())
    assert queue.purge() == 1
    assert look() == {}


def test_a_purge_takes_along_what_a_dead_cleaner_had(queue: Queue, look: Look, client: redis.Redis) -> None:
    three(queue)
    assert client.lmove(f"{PREFIX}:queue", f"{PREFIX}:cleaning", "RIGHT", "LEFT") == b"a"
    assert queue.purge() == 3
    assert look() == {}


@pytest.mark.parametrize("in_work", [True, False], ids=["in processing", "taken back too early"])
def test_a_purge_of_what_waits_spares_an_item_in_work(
    queue: Queue, look: Look, client: redis.Redis, in_work: bool
) -> None:
    """It has an entry among those that wait: a second one, or, by a cleaner that saw no lease yet, the only one."""
    three(queue)
    lease = take(queue)
    client.rpush(f"{PREFIX}:queue", "a")
    if not in_work:
        client.delete(f"{PREFIX}:processing")
    assert queue.purge("ready") == 2
    session = look()["lease:a"]
    assert look() == {"item:a": b"1", "processing": [b"a"], "lease:a": session, "leased_by_session:a": session}
    assert queue.complete(lease)
    assert look() == {}


def test_a_purge_of_what_waits_comes_to_the_end_past_items_in_work(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue_many([b""] * 1100)
    leases = queue.lease_many(1000)
    client.rpush(f"{PREFIX}:queue", *(lease.id for lease in leases))
    assert queue.purge("ready") == 100
    assert (queue.counts().ready, queue.counts().running) == (0, 1000)


def test_beside_them_lies_only_the_ledger(queue: Queue, client: redis.Redis) -> None:
    three(queue)
    take(queue)
    others = {key for key in names(client, "*") if not key.startswith(PREFIX)}
    assert others == {f"windlass:{{{PREFIX}}}:workqueue:{name}" for name in ("state", "runs", "holders", "held")}
    queue.purge()
    assert set(names(client, "*")) <= {f"windlass:{{{PREFIX}}}:workqueue:state"}


@pytest.mark.parametrize("list", ["queue", "processing", "cleaning"])
def test_a_key_of_another_type_is_named_and_nothing_changes(
    queue: Queue, client: redis.Redis, look: Look, list: str
) -> None:
    queue.enqueue(b"1", id="a")
    lease = take(queue)
    client.delete(f"{PREFIX}:{list}")
    client.set(f"{PREFIX}:{list}", "mine")
    before = look()
    for act in (
        lambda: queue.enqueue(b"2", id="b"),
        lambda: queue.lease(),
        lambda: queue.complete(lease),
        lambda: queue.audit(repair=True),
        lambda: queue.counts(),
        lambda: queue.purge(),
    ):
        with pytest.raises(KeyConflict, match=f"{PREFIX}:{list}"):
            act()
        assert look() == before
    client.delete(f"{PREFIX}:{list}", f"{PREFIX}:item:a")


def test_an_item_that_is_no_string_is_no_item(queue: Queue, client: redis.Redis, look: Look) -> None:
    queue.enqueue(b"2", id="b")
    client.rpush(f"{PREFIX}:item:a", "mine")
    with pytest.raises(KeyConflict, match=f"{PREFIX}:item:a"):
        queue.enqueue_many([RawJob(b"3", id="c"), RawJob(b"1", id="a")])
    assert look() == {"item:a": [b"mine"], "item:b": b"2", "queue": [b"b"]}, "neither was added"
    client.rpush(f"{PREFIX}:queue", "a")
    assert [lease.id for lease in queue.lease_many(5)] == ["b"]
    assert repaired(queue) == (0, 0)
    assert look()["processing"] == [b"b"]
    client.delete(f"{PREFIX}:item:a")
