"""Lost replies and lost requests: each call is applied once, and at every moment each task is in one place."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.compat.worqr.conftest import NAME, contents
from tests.support.lost_replies import EACH_LOSS, SCRIPT_CALLS, Verb, lease_losing_the_reply, nothing, queue_behind
from tests.support.proxy import FaultProxy, random_faults
from tests.support.repairing import repaired
from windlass import Lease, Queue, Status, Windlass


@pytest.fixture
def queue(proxy: FaultProxy) -> Iterator[Queue]:
    """The queue behind the proxy."""
    with queue_behind(proxy, NAME, "worqr") as queue:
        yield queue


def places(client: redis.Redis) -> Counter[bytes]:
    """Every task, as often as it is anywhere."""
    found: Counter[bytes] = Counter()
    for key, value in contents(client).items():
        if key.startswith(("worqr:queues:", "worqr:processes:")):
            found.update(value)
    return found


def leased(queue: Queue) -> Lease:
    queue.enqueue(b"T0")
    lease = queue.lease(60, holder="w1")
    assert lease is not None
    return lease


def recoverable(queue: Queue) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    queue.lease_many(2, 0.001)


# Each verb with what it must answer, although its first reply is dropped after the server has applied it, and how many
# tasks there are then.
VERBS: dict[str, Verb[Queue, int]] = {
    "enqueue": Verb(nothing, lambda q, _: q.enqueue(b"T0").status, Status.ADDED, 1),
    "enqueue_many": Verb(nothing, lambda q, _: len(q.enqueue_many([b"T0", b"T1"])), 2, 2),
    "complete": Verb(leased, lambda q, lease: q.complete(lease), True, 0),
    "complete_many": Verb(leased, lambda q, lease: q.complete_many([lease, lease]), [True, False], 0),
    "release": Verb(leased, lambda q, lease: q.release(lease), True, 1),
    "retry": Verb(leased, lambda q, lease: q.retry(lease, delay=0), True, 1),
    "fail": Verb(leased, lambda q, lease: q.fail(lease, "no"), True, 0),
    "extend": Verb(leased, lambda q, lease: q.extend(lease, 60), True, 1),
    "beat": Verb(leased, lambda q, _: q.beat("w1"), True, 1),
    "cancel": Verb(lambda q: q.enqueue_many([b"T0"] * 3), lambda q, _: q.cancel("T0"), True, 0),
    "cancel running": Verb(leased, lambda q, _: q.cancel("T0", running=True), True, 1),
    "purge": Verb(lambda q: q.enqueue_many([b"T0"] * 3), lambda q, _: q.purge(), 3, 0),
    "clean": Verb(recoverable, lambda q, _: repaired(q), (2, 0), 3),
}  # fmt: skip


@pytest.mark.speaks("worqr", "W2")
@pytest.mark.parametrize("verb", VERBS)
@EACH_LOSS
def test_a_lost_call_is_repeated_and_answers_as_the_first(
    client: redis.Redis, queue: Queue, proxy: FaultProxy, verb: str, fault: Any
) -> None:
    VERBS[verb].survives(queue, proxy, fault)
    assert places(client).total() == VERBS[verb].left


@pytest.mark.speaks("worqr", "W5")
@pytest.mark.parametrize("holder", [None, "w1"])
def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(
    client: redis.Redis, queue: Queue, proxy: FaultProxy, holder: str | None
) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    leases = lease_losing_the_reply(queue, proxy, holder)
    assert [lease.data for lease in leases] == [b"T0", b"T1"]
    assert places(client) == Counter([b"T0", b"T1", b"T2"])
    assert len(contents(client)["worqr:workingProcesses:tubes"]) == 2
    assert queue.complete_many(leases) == [True, True]


@pytest.mark.speaks("worqr", "W2", "W5")
def test_many_operations_with_lost_replies_have_no_double_effect(client: redis.Redis, proxy: FaultProxy) -> None:
    proxy.faults = random_faults(2, drop_reply=0.02, drop_request=0.01, cut_request=0.01, only=SCRIPT_CALLS)
    chance = random.Random(2)
    expected: Counter[bytes] = Counter()
    done: Counter[bytes] = Counter()
    with Windlass(proxy.url, retry_for=30) as app:
        queue = app.queue(NAME, layout="worqr")
        for number in range(250):
            task = b"%d" % number
            queue.enqueue(task)
            expected[task] += 1
            for lease in queue.lease_many(chance.randint(1, 3), 600) if chance.random() < 0.7 else []:
                step = chance.random()
                if step < 0.5:
                    assert queue.complete(lease)
                    done[lease.data] += 1
                    del expected[lease.data]
                else:
                    assert queue.release(lease) if step < 0.75 else queue.retry(lease, delay=0)
            assert places(client) == expected, "each in one place"
        proxy.faults = None
        queue.purge()
    assert set(done.values()) == {1}
    assert proxy.counts["drop_reply"] > 3
