"""Calls whose reply or request was lost: repeated, applied once, answered as the first time. Peers see one effect."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.compat.workqueue.conftest import PREFIX, Look, lease_keys
from tests.support.faces import FACES, Blocking
from tests.support.proxy import CUT_REQUEST, DROP_REPLY, DROP_REQUEST, FaultProxy, nth, random_faults
from tests.support.repairing import repaired
from windlass import Cleaned, Lease, Queue, Receipt, State, Status, Windlass

SCRIPT_CALLS = {"EVALSHA"}
OPERATIONS = int(os.environ.get("WINDLASS_LOSSY_OPERATIONS", "1000"))
SEED = int(os.environ.get("WINDLASS_LOSSY_SEED", "20"))


@pytest.fixture(params=FACES)
def queue(proxy: FaultProxy, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A queue behind the proxy, in both faces."""
    with Windlass(proxy.url, retry_for=10) as app:
        queue = app.queue(PREFIX, layout="workqueue")
        face = request.param(queue)
        yield face
        proxy.faults = None
        queue.purge()
        face.close()


def waiting(queue: Queue) -> None:
    queue.enqueue(b"x", id="a")


def leased(queue: Queue) -> Lease:
    queue.enqueue(b"x", id="a")
    lease = queue.lease(60)
    assert lease is not None
    return lease


Verb = tuple[Callable[[Queue], Any], Callable[[Queue, Any], Any], Any, set[str]]
READY, LEASED = {"queue", "item:a"}, {"processing", "item:a", "lease:a", "leased_by_session:a"}

# Each verb: what was before, the call, its answer, and the keys that are there afterwards.
VERBS: dict[str, Verb] = {
    "enqueue": (lambda q: None, lambda q, _: q.enqueue(b"x", id="a"), Receipt("a", Status.ADDED), READY),
    "enqueue twice": (waiting, lambda q, _: q.enqueue(b"y", id="a"), Receipt("a", Status.KEPT), READY),
    "complete": (leased, lambda q, lease: q.complete(lease), True, set()),
    "complete_many": (leased, lambda q, lease: q.complete_many([lease, lease]), [True, False], set()),
    "release": (leased, lambda q, lease: q.release(lease), True, READY),
    "retry": (leased, lambda q, lease: q.retry(lease, delay=0), True, READY),
    "fail": (leased, lambda q, lease: q.fail(lease, "no"), True, set()),
    "extend": (leased, lambda q, lease: q.extend(lease, 60), True, LEASED),
    "cancel": (waiting, lambda q, _: q.cancel("a"), True, set()),
    "cancel running": (leased, lambda q, _: q.cancel("a"), False, LEASED),
    "purge": (leased, lambda q, _: q.purge(), 1, set()),
    "purge ready": (waiting, lambda q, _: q.purge("ready"), 1, set()),
    "clean": (leased, lambda q, _: repaired(q), (0, 0), LEASED),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "fault", [DROP_REPLY, DROP_REQUEST, CUT_REQUEST], ids=["reply lost", "request lost", "request cut"]
)
def test_a_lost_call_is_repeated_and_answers_as_the_first(
    queue: Queue, proxy: FaultProxy, look: Look, verb: str, fault: Any
) -> None:
    prepare, act, expected, left = VERBS[verb]
    prepared = prepare(queue)
    proxy.faults = nth(fault, only=SCRIPT_CALLS)
    assert act(queue, prepared) == expected
    assert sum(proxy.counts[kind] for kind in ("drop_reply", "drop_request", "cut_request")) == 1
    seen = look()
    assert set(seen) == left
    assert [id for key in ("queue", "processing") for id in seen.get(key, [])] == [b"a"][: len(left)]


def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(queue: Queue, proxy: FaultProxy, look: Look) -> None:
    for i in range(5):
        queue.enqueue(b"%d" % i, id=str(i))
    for holder in (None, "w"):
        proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
        leases = queue.lease_many(2, 60, holder=holder)
        proxy.faults = None
        assert [lease.data for lease in leases] == [b"0", b"1"]
        assert look()["processing"] == [b"1", b"0"]
        stored = {job.id: job.fence for job in queue.jobs(State.LEASED).jobs}
        assert stored == {lease.id: lease.fence for lease in leases}
        for lease in reversed(leases):
            assert queue.release(lease)


def test_what_a_clean_took_back_is_counted_once(
    queue: Queue, proxy: FaultProxy, look: Look, client: redis.Redis
) -> None:
    leased(queue)
    client.delete(*lease_keys("a"))
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    assert queue.clean() == Cleaned(recovered=1)
    assert look() == {"queue": [b"a"], "item:a": b"x"}


def test_a_lease_that_was_lost_on_the_way_is_not_given_again(
    queue: Queue, proxy: FaultProxy, client: redis.Redis
) -> None:
    """The repeated call finds that a peer has taken its item meanwhile: it comes back with the other alone."""
    for id in ("a", "b"):
        queue.enqueue(b"x", id=id)

    def steal(request: list[bytes]) -> Any:
        fault = drop(request)
        if request[0] == b"EVALSHA" and client.exists(lease_keys("a")[1]):
            client.set(lease_keys("a")[1], "f" * 32, ex=60)
        return fault

    drop = nth(DROP_REPLY, only=SCRIPT_CALLS)
    proxy.faults = steal
    leases = queue.lease_many(2, 60)
    proxy.faults = None
    assert [lease.id for lease in leases] == ["b"]
    assert queue.complete(leases[0])


@pytest.mark.parametrize("face", FACES)
def test_thousands_of_operations_with_lost_replies_have_no_double_effect(
    proxy: FaultProxy, client: redis.Redis, look: Look, face: type[Blocking]
) -> None:
    """1 % of the replies dropped, 1 % of the requests lost or cut."""
    proxy.faults = random_faults(SEED, drop_reply=0.01, drop_request=0.005, cut_request=0.005, only=SCRIPT_CALLS)
    chance = random.Random(SEED)
    added: set[str] = set()
    done: Counter[str] = Counter()
    operations = 0
    with Windlass(proxy.url, retry_for=30) as app:
        queue: Any = face(app.queue(PREFIX, layout="workqueue"))
        while operations < OPERATIONS or len(done) < len(added):
            operations += 1
            if operations < OPERATIONS and chance.random() < 0.4:
                receipt = queue.enqueue(b"%d" % operations, id=f"item-{operations}")
                assert receipt.status == Status.ADDED
                added.add(receipt.id)
                continue
            for lease in queue.lease_many(chance.randint(1, 3), 600):
                operations += 1
                if chance.random() < 0.2:
                    assert chance.choice([queue.release, lambda lease: queue.retry(lease, delay=0)])(lease)
                else:
                    assert queue.complete(lease)
                    done[lease.id] += 1
        assert set(done) == added
        assert set(done.values()) == {1}
        assert look() == {}
        queue.close()
    assert proxy.counts["drop_reply"] > OPERATIONS // 400
