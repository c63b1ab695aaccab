"""What a finished job leaves behind when asked to: a result, for a while; and events, for those who watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.contract.leasing import take
from tests.support.internals import layout_of, perform, settle
from tests.support.waiting import wait_until
from windlass import Lease, Limits, Queue
from windlass.storage.native.keys import queue_key, result_key
from windlass.values.job import Result
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    Kept,
    Outcome,
    Released,
    Retried,
    Snoozed,
    UnknownTask,
)

pytestmark = pytest.mark.needs("RESULTS")

Later = Callable[[float], None]
MINUTE = 60_000


@pytest.fixture(autouse=True)
def _forget_results(raw_queue: Queue, client: redis.Redis) -> Iterator[None]:
    yield
    for key in client.scan_iter(result_key(raw_queue.name, "*")):
        client.delete(key)


def result(queue: Queue, id: str = "a") -> Result | None:
    return perform(queue, lambda layout: layout.remains(id)).result


def leased(queue: Queue, id: str = "a", **options: int) -> Lease:
    queue.enqueue(b"", id=id, **options)  # type: ignore[arg-type]
    return take(queue)


# -- results ---------------------------------------------------------------------------------------


def test_nothing_is_kept_unless_it_is_asked_for(raw_queue: Queue) -> None:
    assert result(raw_queue) is None
    assert raw_queue.complete(leased(raw_queue))
    assert result(raw_queue) is None
    assert raw_queue.fail(leased(raw_queue), "no")
    assert result(raw_queue) is None


@pytest.mark.parametrize("data", [b"42", b"", b'{"\xc3\xa4": [1, null]}', bytes(range(256)), b"x" * 100_000])
def test_a_result_is_kept_byte_for_byte(raw_queue: Queue, data: bytes) -> None:
    lease = leased(raw_queue)
    assert settle(raw_queue, Completed(lease, Kept(data, MINUTE))) == (True,)
    assert result(raw_queue) == Result(True, data)
    assert result(raw_queue) == Result(True, data), "reading does not take it away"
    assert raw_queue.get("a") is None


def test_a_result_goes_by_itself(raw_queue: Queue, client: redis.Redis) -> None:
    assert settle(raw_queue, Completed(leased(raw_queue), Kept(b"1", MINUTE))) == (True,)
    assert 50_000 < client.pttl(result_key(raw_queue.name, "a")) <= MINUTE
    assert settle(raw_queue, Completed(leased(raw_queue), Kept(b"2", 20))) == (True,)
    wait_until(lambda: result(raw_queue) is None, "the result to go")


def test_a_failure_is_kept_with_its_message(raw_queue: Queue) -> None:
    assert settle(raw_queue, Failed(leased(raw_queue), "user deleted — ä", MINUTE)) == (True,)
    assert result(raw_queue) == Result(False, "user deleted — ä".encode())


def test_a_failure_that_is_caught_is_kept_too(raw_queue: Queue) -> None:
    perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    assert settle(raw_queue, Failed(leased(raw_queue), "user deleted", MINUTE)) == (True,)
    assert result(raw_queue) == Result(False, b"user deleted")


def test_the_last_result_of_an_id_counts(raw_queue: Queue) -> None:
    assert settle(raw_queue, Failed(leased(raw_queue), "no", MINUTE)) == (True,)
    assert settle(raw_queue, Completed(leased(raw_queue), Kept(b"1", MINUTE))) == (True,)
    assert result(raw_queue) == Result(True, b"1")


def test_a_lost_lease_keeps_no_result(raw_queue: Queue, later: Later) -> None:
    sleeper = leased(raw_queue)
    later(31)
    successor = take(raw_queue)
    assert settle(raw_queue, Completed(sleeper, Kept(b"late", MINUTE))) == (False,)
    assert result(raw_queue) is None
    assert settle(raw_queue, Completed(successor, Kept(b"right", MINUTE))) == (True,)
    assert settle(raw_queue, Failed(sleeper, "later still", MINUTE)) == (False,)
    assert result(raw_queue) == Result(True, b"right")


def test_each_of_a_batch_has_its_own_result(raw_queue: Queue) -> None:
    """Also when some are refused, some keep nothing, and some end otherwise."""
    for id in "abcdefg":
        raw_queue.enqueue(b"", id=id)
    leases = {lease.id: lease for lease in raw_queue.lease_many(7)}
    assert raw_queue.release(leases["b"])
    outcomes: list[Outcome] = [
        Completed(leases["a"], Kept(b"A", MINUTE)),
        Completed(leases["b"], Kept(b"B", MINUTE)),
        Completed(leases["c"]),
        Failed(leases["d"], "D", MINUTE),
        Failed(leases["e"], "E"),
        Retried(leases["f"], ("in", 0), "F"),
        Completed(leases["g"], Kept(b"G", MINUTE)),
    ]
    assert settle(raw_queue, *outcomes) == (True, False, True, True, True, True, True)
    found = {id: result(raw_queue, id) for id in "abcdefg"}
    assert found == {
        "a": Result(True, b"A"),
        "b": None,
        "c": None,
        "d": Result(False, b"D"),
        "e": None,
        "f": None,
        "g": Result(True, b"G"),
    }


def test_a_result_is_forgotten_when_its_id_is_enqueued_again(raw_queue: Queue) -> None:
    """Else it would be taken for the result of the next job, whatever becomes of that."""
    assert settle(raw_queue, Completed(leased(raw_queue), Kept(b"1", MINUTE))) == (True,)
    assert not raw_queue.update("a", priority=1)
    assert result(raw_queue) == Result(True, b"1"), "a change of no job changes nothing"
    lease = leased(raw_queue)
    assert result(raw_queue) is None
    assert raw_queue.complete(lease)
    assert result(raw_queue) is None


def test_ids_that_begin_alike_have_results_of_their_own(raw_queue: Queue) -> None:
    for id in ("a", "a:b", "ä", "a b\0"):
        assert settle(raw_queue, Completed(leased(raw_queue, id), Kept(id.encode(), MINUTE))) == (True,)
    assert [result(raw_queue, id) for id in ("a", "a:b", "ä", "a b\0")] == [
        Result(True, id.encode()) for id in ("a", "a:b", "ä", "a b\0")
    ]


# -- events ----------------------------------------------------------------------------------------


class Wakeups:
    """Hears what is published about one job."""

    def __init__(self, client: redis.Redis, queue: Queue, id: str) -> None:
        self._sub = client.pubsub()  # type: ignore[no-untyped-call]
        self._sub.subscribe(layout_of(queue).event_channel(id))
        assert self._sub.get_message(timeout=5) is not None
        self._channel = layout_of(queue).event_channel(id)
        self._node: Any = client
        if isinstance(client, redis.RedisCluster):  # messages keep their order only from one node to another
            self._node = client.get_redis_connection(client.get_node_from_key(queue_key(queue.name, "state")))

    def heard(self) -> list[str]:
        """What came so far: all of it has come when our own message has."""
        self._node.publish(self._channel, "so far")
        found: list[str] = []
        while (message := self._sub.get_message(ignore_subscribe_messages=True, timeout=5)) is not None:
            if message["data"] == b"so far":
                return found
            found.append(message["data"].decode())
        raise AssertionError("nothing is heard")

    def close(self) -> None:
        self._sub.close()


@pytest.fixture
def ear(raw_queue: Queue, client: redis.Redis) -> Iterator[Wakeups]:
    """Hears of job `a`, which is watched."""
    ear = Wakeups(client, raw_queue, "a")
    assert perform(raw_queue, lambda layout: layout.watch("a", 60))
    yield ear
    ear.close()


def test_a_watched_job_tells_its_life(raw_queue: Queue, ear: Wakeups) -> None:
    lease = leased(raw_queue)
    assert raw_queue.progress(lease, 0.25)
    assert raw_queue.release(lease)
    assert raw_queue.complete(take(raw_queue))
    assert ear.heard() == ["started", "progress 0.25", "released", "started", "completed"]


ENDS: dict[str, tuple[Callable[[Lease], Outcome], str]] = {
    "completed": (Completed, "completed"),
    "completed with a result": (lambda lease: Completed(lease, Kept(b"1", MINUTE)), "completed"),
    "released": (Released, "released"),
    "retried": (lambda lease: Retried(lease, ("in", 0), "no"), "retried"),
    "snoozed": (lambda lease: Snoozed(lease, ("in", 0), "no"), "snoozed"),
    "failed": (Failed, "dead"),
    "crashed": (lambda lease: Crashed(lease, "", True), "crashed"),
    "suspect": (lambda lease: Crashed(lease, "", False), "crashed"),
    "broken": (lambda lease: Broken(lease, ""), "broken"),
    "unknown": (lambda lease: UnknownTask(lease, "task"), "released"),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_an_attempt_is_told(raw_queue: Queue, ear: Wakeups, end: str) -> None:
    make, told = ENDS[end]
    assert settle(raw_queue, make(leased(raw_queue))) == (True,)
    assert ear.heard() == ["started", told]


@pytest.mark.parametrize("end", ["released", "failed", "unknown"])
def test_a_cancelled_job_says_so_when_its_attempt_ends(raw_queue: Queue, ear: Wakeups, end: str) -> None:
    lease = leased(raw_queue)
    assert raw_queue.cancel("a", running=True)
    assert settle(raw_queue, ENDS[end][0](lease)) == (True,)
    assert ear.heard() == ["started", "cancelled"]


def test_a_cancelled_job_that_waits_says_so_at_once(raw_queue: Queue, ear: Wakeups) -> None:
    raw_queue.enqueue(b"", id="a")
    assert raw_queue.cancel("a")
    assert ear.heard() == ["cancelled"]


def test_what_a_sweep_does_is_told(raw_queue: Queue, ear: Wakeups, later: Later) -> None:
    leased(raw_queue, max_stalls=1)
    for _ in range(2):
        later(31)
        raw_queue.lease()
    assert ear.heard() == ["started", "stalled", "started", "dead"]


def test_a_cancelled_job_of_a_lost_holder_says_so(raw_queue: Queue, ear: Wakeups, later: Later) -> None:
    leased(raw_queue)
    assert raw_queue.cancel("a", running=True)
    later(31)
    assert raw_queue.clean().recovered == 1
    assert ear.heard() == ["started", "cancelled"]


def test_a_caught_failure_is_told_as_the_end_of_its_job(raw_queue: Queue, ear: Wakeups) -> None:
    perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    assert raw_queue.fail(leased(raw_queue), "no")
    assert raw_queue.complete(take(raw_queue))
    assert ear.heard() == ["started", "dead"]


def test_what_was_refused_is_not_told(raw_queue: Queue, ear: Wakeups) -> None:
    lease = leased(raw_queue)
    assert raw_queue.release(lease)
    assert not raw_queue.complete(lease)
    assert not raw_queue.progress(lease, 0.5)
    assert ear.heard() == ["started", "released"]


def test_nobody_hears_of_a_job_that_is_not_watched(raw_queue: Queue, client: redis.Redis, ear: Wakeups) -> None:
    other = Wakeups(client, raw_queue, "b")
    assert raw_queue.complete(leased(raw_queue, "b"))
    assert other.heard() == ear.heard() == []
    other.close()


def test_watching_ends_by_itself(raw_queue: Queue, client: redis.Redis) -> None:
    key = queue_key(raw_queue.name, "watched")
    assert perform(raw_queue, lambda layout: layout.watch("a", 60))
    assert perform(raw_queue, lambda layout: layout.watch("b", 10))
    assert 50_000 < client.pttl(key) <= 60_000, "the longest counts, and then not even the key is left"
    assert client.zcard(key) == 2


def test_those_who_do_not_watch_any_more_are_forgotten(raw_queue: Queue, client: redis.Redis, later: Later) -> None:
    key = queue_key(raw_queue.name, "watched")
    assert perform(raw_queue, lambda layout: layout.watch("a", 10))
    later(11)
    assert perform(raw_queue, lambda layout: layout.watch("b", 10))
    assert client.zrange(key, 0, -1) == [b"b"]
