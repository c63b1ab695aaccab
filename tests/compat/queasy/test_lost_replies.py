"""A call whose reply was lost is repeated and applied once, and answers as it did the first time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.queasy.conftest import NAME
from tests.contract.leasing import take
from tests.support.internals import layout_of, perform
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
from windlass import Lease, Limits, Queue, Receipt, Status


@pytest.fixture
def lossy(proxy: FaultProxy) -> Iterator[Queue]:
    """The queue behind the proxy."""
    with queue_behind(proxy, NAME, "queasy") as queue:
        yield queue


def leased(queue: Queue) -> Lease:
    queue.enqueue(b"1", id="a")
    return take(queue, seconds=60)


def waiting(queue: Queue) -> None:
    queue.enqueue(b"1", id="a")


VERBS: dict[str, Verb[Queue, None]] = {
    "enqueue": Verb(nothing, lambda q, _: q.enqueue(b"1", id="a"), Receipt("a", Status.ADDED)),
    "enqueue twice": Verb(waiting, lambda q, _: q.enqueue(b"2", id="a"), Receipt("a", Status.UPDATED)),
    "enqueue behind": Verb(leased, lambda q, _: q.enqueue(b"2", id="a"), Receipt("a", Status.BLOCKED)),
    "update": Verb(waiting, lambda q, _: q.update("a", max_failures=1), True),
    "complete": Verb(leased, lambda q, lease: q.complete(lease), True),
    "release": Verb(leased, lambda q, lease: q.release(lease), True),
    "retry": Verb(leased, lambda q, lease: q.retry(lease), True),
    "fail": Verb(leased, lambda q, lease: q.fail(lease, "no"), True),
    "extend": Verb(leased, lambda q, lease: q.extend(lease, 60), True),
    "beat": Verb(nothing, lambda q, _: q.beat("w", register=True), False),
    "cancel": Verb(waiting, lambda q, _: q.cancel("a"), True),
    "purge": Verb(lambda q: q.enqueue_many([b"1"] * 3), lambda q, _: q.purge(), 3),
    "clean": Verb(waiting, lambda q, _: repaired(q), (0, 0)),
}


@pytest.mark.parametrize("verb", VERBS)
@EACH_LOSS
def test_a_lost_call_is_repeated_and_answers_as_the_first(
    lossy: Queue, proxy: FaultProxy, verb: str, fault: Any
) -> None:
    VERBS[verb].survives(lossy, proxy, fault)


@pytest.mark.parametrize("holder", [None, "worker-1"])
def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(
    lossy: Queue, proxy: FaultProxy, holder: str | None
) -> None:
    lossy.enqueue_many([b"1"] * 5)
    leases = lease_losing_the_reply(lossy, proxy, holder)
    assert [lease.data for lease in leases] == [b"1", b"1"]
    assert lossy.counts().running == 2
    assert {job.id: job.fence for job in lossy.jobs("running").jobs} == {lease.id: lease.fence for lease in leases}


def test_a_caught_failure_whose_reply_was_lost_is_given_again(lossy: Queue, proxy: FaultProxy) -> None:
    perform(lossy, lambda layout: layout.beat("worker-1", 60, register=True, failure_handler=Limits()))
    assert lossy.fail(leased(lossy), "no")
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    lease = take(lossy, holder="worker-1")
    assert lease.is_failure_job
    assert layout_of(lossy).failure(lease).message == "no"
    assert lossy.counts().running == 1


def test_a_lost_retry_charges_one_failure(lossy: Queue, proxy: FaultProxy) -> None:
    lease = leased(lossy)
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    assert lossy.retry(lease, delay=0)
    assert take(lossy).failures == 1


def test_a_thousand_operations_with_lost_replies_have_no_double_effect(lossy: Queue, proxy: FaultProxy) -> None:
    live_with_losses(lossy, proxy, 1000, 7)
