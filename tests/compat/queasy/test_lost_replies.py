"""A call whose reply was lost is repeated and applied once, and answers as it did the first time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.compat.queasy.conftest import NAME
from tests.contract.leasing import take
from tests.contract.performing import perform
from tests.support.proxy import CUT_REQUEST, DROP_REPLY, DROP_REQUEST, FaultProxy, nth, random_faults
from tests.support.repairing import repaired
from windlass import Lease, Limits, Queue, Receipt, Status, Windlass

SCRIPT_CALLS = {"EVALSHA"}


@pytest.fixture
def lossy(proxy: FaultProxy) -> Iterator[Queue]:
    """The queue behind the proxy."""
    with Windlass(proxy.url, retry_for=10) as app:
        queue = app.queue(NAME, layout="queasy")
        yield queue
        proxy.faults = None
        queue.purge()


def leased(queue: Queue) -> Lease:
    queue.enqueue(b"1", id="a")
    return take(queue, seconds=60)


def waiting(queue: Queue) -> None:
    queue.enqueue(b"1", id="a")


def nothing(queue: Queue) -> None:
    pass


VERBS: dict[str, tuple[Callable[[Queue], Any], Callable[[Queue, Any], Any], Any]] = {
    "enqueue": (nothing, lambda q, _: q.enqueue(b"1", id="a"), Receipt("a", Status.ADDED)),
    "enqueue twice": (waiting, lambda q, _: q.enqueue(b"2", id="a"), Receipt("a", Status.UPDATED)),
    "enqueue behind": (leased, lambda q, _: q.enqueue(b"2", id="a"), Receipt("a", Status.BLOCKED)),
    "update": (waiting, lambda q, _: q.update("a", max_failures=1), True),
    "complete": (leased, lambda q, lease: q.complete(lease), True),
    "release": (leased, lambda q, lease: q.release(lease), True),
    "retry": (leased, lambda q, lease: q.retry(lease), True),
    "fail": (leased, lambda q, lease: q.fail(lease, "no"), True),
    "extend": (leased, lambda q, lease: q.extend(lease, 60), True),
    "beat": (nothing, lambda q, _: q.beat("w", register=True), False),
    "cancel": (waiting, lambda q, _: q.cancel("a"), True),
    "purge": (lambda q: q.enqueue_many([b"1"] * 3), lambda q, _: q.purge(), 3),
    "clean": (waiting, lambda q, _: repaired(q), (0, 0)),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "fault", [DROP_REPLY, DROP_REQUEST, CUT_REQUEST], ids=["reply lost", "request lost", "request cut"]
)
def test_a_lost_call_is_repeated_and_answers_as_the_first(
    lossy: Queue, proxy: FaultProxy, verb: str, fault: Any
) -> None:
    prepare, act, expected = VERBS[verb]
    prepared = prepare(lossy)
    proxy.faults = nth(fault, only=SCRIPT_CALLS)
    assert act(lossy, prepared) == expected
    assert sum(proxy.counts[kind] for kind in ("drop_reply", "drop_request", "cut_request")) == 1


@pytest.mark.parametrize("holder", [None, "worker-1"])
def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(
    lossy: Queue, proxy: FaultProxy, holder: str | None
) -> None:
    lossy.enqueue_many([b"1"] * 5)
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    leases = lossy.lease_many(2, 60, holder=holder)
    assert [lease.data for lease in leases] == [b"1", b"1"]
    assert lossy.counts().leased == 2
    assert {job.id: job.fence for job in lossy.jobs("leased").jobs} == {lease.id: lease.fence for lease in leases}


def test_a_caught_failure_whose_reply_was_lost_is_given_again(lossy: Queue, proxy: FaultProxy) -> None:
    perform(lossy, lambda layout: layout.beat("worker-1", 60, register=True, failure_handler=Limits()))
    assert lossy.fail(leased(lossy), "no")
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    lease = take(lossy, holder="worker-1")
    assert lease.is_failure_job
    assert lossy._layout.failure(lease).message == "no"
    assert lossy.counts().leased == 1


def test_a_lost_retry_charges_one_failure(lossy: Queue, proxy: FaultProxy) -> None:
    lease = leased(lossy)
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    assert lossy.retry(lease, delay=0)
    assert take(lossy).failures == 1


def test_a_thousand_operations_with_lost_replies_have_no_double_effect(lossy: Queue, proxy: FaultProxy) -> None:
    proxy.faults = random_faults(7, drop_reply=0.02, drop_request=0.01, cut_request=0.01, only=SCRIPT_CALLS)
    chance = random.Random(7)
    added: set[str] = set()
    done: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    operations = 0
    while operations < 1000 or len(done) < len(added):
        operations += 1
        if operations < 1000 and chance.random() < 0.4:
            receipt = lossy.enqueue(b"1", id=f"job-{operations}")
            assert receipt.status is Status.ADDED
            added.add(receipt.id)
            continue
        for lease in lossy.lease_many(chance.randint(1, 3), 600):
            operations += 1
            assert lease.failures == failures[lease.id], "a failure was charged twice, or not at all"
            if chance.random() < 0.2:
                assert lossy.retry(lease, delay=0)
                failures[lease.id] += 1
            else:
                assert lossy.complete(lease)
                done[lease.id] += 1
    assert set(done) == added
    assert set(done.values()) == {1}
    assert proxy.counts["drop_reply"] > 5
    assert lossy.counts().waiting == lossy.counts().leased == 0
