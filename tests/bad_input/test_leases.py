"""Leases of another queue, lost or invented, and what cannot be said of a lease: nothing changes on the server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.contract.leasing import take
from tests.support.bad_input import Refused, dump
from windlass import Lease, Queue, Windlass
from windlass.errors import ForeignLease, InvalidOption
from windlass.storage.native.keys import queue_key

# -- what is said of a lease -----------------------------------------------------------------------


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, True, "0.5", None])
def test_progress_that_is_none(queue: Queue, refused: Refused, value: Any) -> None:
    queue.enqueue(b"")
    lease = take(queue)
    with refused(InvalidOption, "progress must be a number from 0 to 1", repr(value)):
        queue.progress(lease, value)


@pytest.mark.parametrize("message", [b"bytes", 42, None, ValueError("x")])
def test_a_message_that_is_no_text(queue: Queue, refused: Refused, message: Any) -> None:
    queue.enqueue(b"")
    lease = take(queue)
    verbs: list[Callable[[], Any]] = [lambda: queue.fail(lease, message), lambda: queue.retry(lease, message=message)]
    for verb in verbs:
        with refused(InvalidOption, "message must be text", type(message).__name__):
            verb()


# -- the lease itself ------------------------------------------------------------------------------


SETTLE: dict[str, Callable[[Queue, Any], Any]] = {
    "complete": lambda queue, lease: queue.complete(lease),
    "complete_many": lambda queue, lease: queue.complete_many([lease]),
    "release": lambda queue, lease: queue.release(lease),
    "retry": lambda queue, lease: queue.retry(lease, delay=0),
    "retry by backoff": lambda queue, lease: queue.retry(lease),
    "fail": lambda queue, lease: queue.fail(lease, "message"),
}
ON_A_LEASE = SETTLE | {
    "extend": lambda queue, lease: queue.extend(lease, 30),
    "progress": lambda queue, lease: queue.progress(lease, 0.5),
}


@pytest.mark.parametrize("verb", ON_A_LEASE)
def test_a_lease_of_another_queue(queue: Queue, app: Windlass, refused: Refused, verb: str) -> None:
    queue.enqueue(b"", id="a")
    take(queue)
    other = app.queue("another")
    other.enqueue(b"", id="a")
    lease = take(other)
    with refused(ForeignLease, "'a'", "'another'", repr(queue.name), "settle it there"):
        ON_A_LEASE[verb](queue, lease)
    assert other.complete(lease)


@pytest.mark.parametrize("verb", ON_A_LEASE)
def test_what_is_no_lease(queue: Queue, refused: Refused, verb: str) -> None:
    for lease in (None, "a", b"a", 42, {"id": "a"}):
        with refused(ForeignLease, repr(lease), "lease()"):
            ON_A_LEASE[verb](queue, lease)


def test_one_foreign_lease_in_a_batch_settles_none(queue: Queue, app: Windlass, refused: Refused) -> None:
    queue.enqueue_many([b""] * 2)
    first, second = queue.lease_many(2)
    foreign = Lease("another", "a", b"", 1)
    with refused(ForeignLease):
        queue.complete_many([first, foreign, second])
    assert queue.complete_many([first, second]) == [True, True]


@pytest.mark.parametrize("verb", ON_A_LEASE)
def test_a_stale_lease_changes_nothing(
    queue: Queue, client: redis.Redis, later: Callable[[float], None], verb: str
) -> None:
    queue.enqueue(b"", id="a")
    stale = take(queue, seconds=10)
    later(11)
    fresh = take(queue, seconds=1000)
    queue.enqueue(b"", id="a")  # blocked behind the fresh one
    invented = Lease(queue.name, "nobody", b"", 1)
    before = dump(client)
    for lease in (stale, invented):
        assert ON_A_LEASE[verb](queue, lease) in (False, [False])
    after = dump(client)
    if verb not in SETTLE:  # the answer itself is remembered, for a repeat
        for each in (before, after):
            each.pop(queue_key(queue.name, "state").encode())
    assert after == before
    assert queue.complete(fresh)
