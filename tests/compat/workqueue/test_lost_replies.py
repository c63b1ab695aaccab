"""Calls whose reply or request was lost: repeated, applied once, answered as the first time. Peers see one effect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.compat.workqueue.conftest import PREFIX, Look, lease_keys
from tests.support.faces import FACES, Blocking
from tests.support.lost_replies import (
    EACH_LOSS,
    SCRIPT_CALLS,
    Verb,
    lease_losing_the_reply,
    live_with_losses,
    nothing,
    queue_behind,
)
from tests.support.proxy import DROP_REPLY, FaultProxy, nth
from tests.support.repairing import repaired
from windlass import Cleaned, Lease, Queue, Receipt, State, Status

OPERATIONS = int(os.environ.get("WINDLASS_LOSSY_OPERATIONS", "1000"))
SEED = int(os.environ.get("WINDLASS_LOSSY_SEED", "20"))


@pytest.fixture(params=FACES)
def queue(proxy: FaultProxy, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A queue behind the proxy, in both faces."""
    with queue_behind(proxy, PREFIX, "workqueue") as queue:
        face = request.param(queue)
        yield face
        face.close()


def waiting(queue: Queue) -> None:
    queue.enqueue(b"x", id="a")


def leased(queue: Queue) -> Lease:
    queue.enqueue(b"x", id="a")
    lease = queue.lease(60)
    assert lease is not None
    return lease


READY, LEASED = {"queue", "item:a"}, {"processing", "item:a", "lease:a", "leased_by_session:a"}

# Each verb: what was before, the call, its answer, and the keys that are there afterwards.
VERBS: dict[str, Verb[Queue, set[str]]] = {
    "enqueue": Verb(nothing, lambda q, _: q.enqueue(b"x", id="a"), Receipt("a", Status.ADDED), READY),
    "enqueue twice": Verb(waiting, lambda q, _: q.enqueue(b"y", id="a"), Receipt("a", Status.KEPT), READY),
    "complete": Verb(leased, lambda q, lease: q.complete(lease), True, set()),
    "complete_many": Verb(leased, lambda q, lease: q.complete_many([lease, lease]), [True, False], set()),
    "release": Verb(leased, lambda q, lease: q.release(lease), True, READY),
    "retry": Verb(leased, lambda q, lease: q.retry(lease, delay=0), True, READY),
    "fail": Verb(leased, lambda q, lease: q.fail(lease, "no"), True, set()),
    "extend": Verb(leased, lambda q, lease: q.extend(lease, 60), True, LEASED),
    "cancel": Verb(waiting, lambda q, _: q.cancel("a"), True, set()),
    "cancel running": Verb(leased, lambda q, _: q.cancel("a"), False, LEASED),
    "purge": Verb(leased, lambda q, _: q.purge(), 1, set()),
    "purge ready": Verb(waiting, lambda q, _: q.purge("ready"), 1, set()),
    "clean": Verb(leased, lambda q, _: repaired(q), (0, 0), LEASED),
}


@pytest.mark.parametrize("verb", VERBS)
@EACH_LOSS
def test_a_lost_call_is_repeated_and_answers_as_the_first(
    queue: Queue, proxy: FaultProxy, look: Look, verb: str, fault: Any
) -> None:
    VERBS[verb].survives(queue, proxy, fault)
    left, seen = VERBS[verb].left or set(), look()
    assert set(seen) == left
    assert [id for key in ("queue", "processing") for id in seen.get(key, [])] == [b"a"][: len(left)]


def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(queue: Queue, proxy: FaultProxy, look: Look) -> None:
    for i in range(5):
        queue.enqueue(b"%d" % i, id=str(i))
    for holder in (None, "w"):
        leases = lease_losing_the_reply(queue, proxy, holder)
        assert [lease.data for lease in leases] == [b"0", b"1"]
        assert look()["processing"] == [b"1", b"0"]
        stored = {job.id: job.fence for job in queue.jobs(State.RUNNING).jobs}
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
    proxy: FaultProxy, look: Look, face: type[Blocking]
) -> None:
    with queue_behind(proxy, PREFIX, "workqueue") as queue:
        both: Any = face(queue)
        live_with_losses(both, proxy, OPERATIONS, SEED, charges=False)
        assert look() == {}
        both.close()
